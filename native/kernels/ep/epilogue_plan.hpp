// Where the copy epilogue of a dispatch keeps what in UB, and how it cuts its work.
#pragma once

#include <kernels/ep/dispatch_plan.hpp>

namespace epsim::ep {

inline constexpr uint32_t kZeroBytes = 256;
inline constexpr uint32_t kMaxStageBytes = 64 * 1024;

// UB offsets. A stage holds whole records, and behind them their rows of recv_src_metadata.
struct EpilogueUb {
  uint32_t psum_rank;    // [R]
  uint32_t psum_expert;  // [L]
  uint32_t counts;       // [L] own rows per expert, then the next free row
  uint32_t zeros;        // [kZeroBytes]
  uint32_t stages;
  uint32_t stage_bytes;
  uint32_t stage_records;
  uint32_t num_stages;
};

constexpr uint32_t metadata_row_bytes(uint32_t num_topk) { return 4 * (num_topk + 2); }

template <class Cfg>
__aicore__ EpilogueUb plan_epilogue_ub(const Cfg& cfg) {
  UbPlanner ub;
  EpilogueUb plan{};
  plan.psum_rank = ub.take(4 * cfg.num_ranks);
  plan.psum_expert = ub.take(4 * num_local_experts(cfg));
  plan.counts = ub.take(4 * num_local_experts(cfg));
  plan.zeros = ub.take(kZeroBytes);
  plan.stages = ub.end;
  const uint32_t rest = cfg.ub_bytes > ub.end ? cfg.ub_bytes - ub.end : 0;
  const uint32_t row_bytes = record_of(cfg).bytes + metadata_row_bytes(cfg.num_topk);
  const uint32_t half = rest / 2 > layout::kRecordAlignBytes ? rest / 2 - layout::kRecordAlignBytes : 0;
  plan.stage_records = least(most(kMaxStageBytes / row_bytes, 1), half / row_bytes);
  if (plan.stage_records == 0) {
    asc_trap(kTrapUbTooSmall);
  }
  plan.stage_bytes = layout::align_up(plan.stage_records * row_bytes, layout::kRecordAlignBytes);
  plan.num_stages = least(rest / plan.stage_bytes, 4);
  return plan;
}

// Consecutive stream positions of one source rank.
struct Chunk {
  uint32_t src_rank;
  uint32_t slot;  // of its first record in the source's block
  uint32_t position;
  uint32_t count;
};

// Cuts the stream positions [next, end) into chunks.
class Chunks {
 public:
  __aicore__ Chunks(Share range, uint32_t most_records, ub<const uint32_t> psum_rank)
      : next_(range.first),
        end_(range.first + range.count),
        most_records_(most_records),
        psum_rank_(psum_rank) {}

  __aicore__ bool is_done() const { return next_ == end_; }

  __aicore__ Chunk take() {
    uint32_t block_end = psum_rank_[src_rank_];
    while (block_end <= next_) {
      block_start_ = block_end;
      ++src_rank_;
      block_end = psum_rank_[src_rank_];
    }
    const uint32_t count = least(least(block_end, end_) - next_, most_records_);
    const Chunk chunk{src_rank_, next_ - block_start_, next_, count};
    next_ += count;
    return chunk;
  }

 private:
  uint32_t next_;
  uint32_t end_;
  uint32_t most_records_;
  uint32_t src_rank_ = 0;
  uint32_t block_start_ = 0;
  ub<const uint32_t> psum_rank_;
};

}  // namespace epsim::ep
