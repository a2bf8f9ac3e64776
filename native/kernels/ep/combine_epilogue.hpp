// The reduce epilogue of combine: biases first, then what every contributor sent, in ascending top-k
// position.
//
// An AIV owns a contiguous range of home tokens and starts inside it at a place of its own. Facts:
// deepep-ascend.md section 4.6.
#pragma once

#include <kernels/common/barrier.hpp>
#include <kernels/common/rows.hpp>
#include <kernels/ep/combine_fetch.hpp>

namespace epsim::ep {

inline constexpr uint32_t kPlanTokens = 8;
inline constexpr uint32_t kPlanStages = 2;

// UB: per stage and token the number of records and, [K], their groups.
struct ReduceUb {
  uint32_t stages;
  uint32_t stage_bytes;
  uint32_t rows;
};

template <class Cfg>
constexpr ReduceUb plan_reduce_ub(const Cfg& cfg) {
  UbPlanner ub;
  ReduceUb plan{};
  plan.stage_bytes = layout::align_up<uint32_t>(4 * kPlanTokens * (1 + cfg.num_topk), 32);
  plan.stages = ub.take(kPlanStages * plan.stage_bytes);
  plan.rows = ub.end;
  return plan;
}

// The tokens of an AIV in the order in which it visits them.
struct Visit {
  Share range;
  uint32_t turn;

  constexpr uint32_t token(uint32_t index) const { return range.first + (index + turn) % range.count; }
};

// Find the records of some tokens: one per rank at its highest position, or one per position. A lane per
// token.
template <class Cfg>
__simt_vf__ __launch_bounds__(kMaxThreads) void find_records(Cfg cfg, CombineEpilogueTensors t, ReduceUb plan,
                                                             Visit visit, uint32_t first, uint32_t count,
                                                             uint32_t stage_idx) {
  const bool by_rank = layout::groups_by_rank(cfg.num_ranks, cfg.num_topk, cfg.single_reduction != 0);
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    const ub<uint32_t> entry =
        ub<uint32_t>(plan.stages + stage_idx * plan.stage_bytes) + i * (1 + cfg.num_topk);
    const gm<const int64_t> ids =
        gm<const int64_t>(t.topk_idx) + uint64_t{visit.token(first + i)} * cfg.num_topk;
    uint32_t num_records = 0;
    for (uint32_t k = 0; k < cfg.num_topk; ++k) {
      const int64_t expert = ids[k];
      if (expert < 0) {
        continue;
      }
      const int64_t rank = expert / num_local_experts(cfg);
      bool is_master = true;
      for (uint32_t later = k + 1; later < cfg.num_topk && !cfg.single_reduction; ++later) {
        const int64_t other = ids[later];
        is_master = is_master && !(other >= 0 && other / num_local_experts(cfg) == rank);
      }
      if (is_master) {
        ++num_records;
        entry[num_records] = by_rank ? static_cast<uint32_t>(rank) : k;
      }
    }
    entry[0] = num_records;
  }
}

template <class Cfg>
class Reducer {
 public:
  __aicore__ Reducer(const Cfg& cfg, const CombineEpilogueTensors& t, const ReduceUb& plan, uint32_t aiv)
      : cfg_(cfg),
        t_(t),
        plan_(plan),
        num_biases_(static_cast<uint32_t>((t.bias[0] != 0) + (t.bias[1] != 0))),
        batch_(shape(), cfg.num_threads, plan.rows, cfg.ub_bytes, most_inputs()) {
    const Share range =
        share_of(t.comm.num_tokens, layout::ceil_div<uint32_t>(t.comm.num_tokens, cfg.num_aivs), aiv);
    visit_ = {range, range.count == 0 ? 0 : aiv % range.count};
  }

  __aicore__ void run() {
    const uint32_t num_batches = layout::ceil_div(visit_.range.count, kPlanTokens);
    for (uint32_t batch = 0; batch <= num_batches; ++batch) {
      if (batch < num_batches) {
        const Share part = share_of(visit_.range.count, kPlanTokens, batch);
        asc_vf_call<find_records<Cfg>>(cfg_.num_threads, cfg_, t_, plan_, visit_, part.first, part.count,
                                       batch % kPlanStages);
        asc_sync_notify(PIPE_V, PIPE_S, batch % kPlanStages);
      }
      if (batch > 0) {
        asc_sync_wait(PIPE_V, PIPE_S, (batch - 1) % kPlanStages);
        reduce(batch - 1);
      }
    }
    batch_.finish();
  }

 private:
  __aicore__ bool has_weights() const { return t_.combined_weights != 0; }
  __aicore__ RowShape shape() const {
    return {.slot_words = combine_bytes(cfg_) / 4,
            .row_words = cfg_.hidden / 2,
            .weight_words = has_weights() ? cfg_.num_topk : 0,
            .num_plain = num_biases_};
  }
  __aicore__ uint32_t most_inputs() const {
    return num_biases_ + (cfg_.single_reduction ? cfg_.num_topk : least(cfg_.num_ranks, cfg_.num_topk));
  }

  __aicore__ void reduce(uint32_t batch) {
    const Share part = share_of(visit_.range.count, kPlanTokens, batch);
    const ub<uint32_t> stage(plan_.stages + batch % kPlanStages * plan_.stage_bytes);
    for (uint32_t i = 0; i < part.count; ++i) {
      reduce_token(visit_.token(part.first + i), stage + i * (1 + cfg_.num_topk));
    }
  }

  __aicore__ void reduce_token(uint32_t token, ub<uint32_t> entry) {
    const uint32_t row_bytes = 2 * cfg_.hidden;
    const uint32_t num_records = entry[0];
    const uint64_t weights = has_weights() ? t_.combined_weights + uint64_t{token} * 4 * cfg_.num_topk : 0;
    batch_.add_job(num_biases_ + num_records, {t_.combined_x + uint64_t{token} * row_bytes, weights});
    for (uint32_t bias = 0; bias < num_biases_; ++bias) {
      batch_.load_input(t_.bias[bias] + uint64_t{token} * row_bytes, row_bytes);
    }
    for (uint32_t i = 0; i < num_records; ++i) {
      const uint32_t group = entry[1 + i];
      const uint64_t offset = layout::combine_offset(group, token, cfg_.num_max_tokens, combine_bytes(cfg_));
      batch_.load_input(t_.comm.window + layout::kEpOffset + offset,
                        has_weights() ? combine_bytes(cfg_) : row_bytes);
    }
  }

  const Cfg& cfg_;
  const CombineEpilogueTensors& t_;
  const ReduceUb& plan_;
  uint32_t num_biases_;
  RowBatch batch_;
  Visit visit_{};
};

template <class Cfg>
__aicore__ void combine_epilogue_impl(gm<const CombineEpilogueArgs> args, Cfg cfg) {
  asc_init_soc_state();
  const auto t = read_struct<CombineEpilogueTensors>(gm_field(args, &CombineEpilogueArgs::tensors));
  if (!cfg.barrier_in_prologue) {
    rank_barrier(cfg, t.comm, exit_barrier(cfg.num_aivs, false));
  }
  const ReduceUb plan = plan_reduce_ub(cfg);
  Reducer<Cfg>(cfg, t, plan, asc_get_block_idx()).run();
  asc_sync_pipe(PIPE_ALL);
}

}  // namespace epsim::ep
