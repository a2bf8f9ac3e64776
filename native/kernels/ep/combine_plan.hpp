// How combine deals its work out to AIVs and tasks, and where it keeps what in UB.
#pragma once

#include <kernels/common/core.hpp>

namespace epsim::ep {

inline constexpr uint32_t kTaskTokens = 8;
inline constexpr uint32_t kTaskStages = 2;
inline constexpr uint32_t kTasksPerDoorbell = 8;

// UB offsets. A token of a task stage: how many rows, its record at home, then rows and positions, [K] each.
struct CombineUb {
  uint32_t psum_rank;     // [R]
  uint32_t peers;         // [6 R] u64
  uint32_t num_requests;  // [1] written so far by this AIV
  uint32_t requests_end;  // [kTaskStages] the same at the end of a stage's task
  uint32_t stages;
  uint32_t stage_bytes;
  uint32_t rows;  // the rest: slots of rows
};

constexpr uint32_t task_token_words(uint32_t num_topk) { return 2 + 2 * num_topk; }
inline constexpr uint32_t kTaskNumRows = 0;
inline constexpr uint32_t kTaskHomeToken = 1;
inline constexpr uint32_t kTaskRows = 2;

template <class Cfg>
constexpr CombineUb plan_combine_ub(const Cfg& cfg) {
  UbPlanner ub;
  CombineUb plan{};
  plan.psum_rank = ub.take(4 * cfg.num_ranks);
  plan.peers = ub.take(8 * urma::kPeerInfoWords * cfg.num_ranks);
  plan.num_requests = ub.take(4);
  plan.requests_end = ub.take(4 * kTaskStages);
  plan.stage_bytes = layout::align_up<uint32_t>(4 * kTaskTokens * task_token_words(cfg.num_topk), 32);
  plan.stages = ub.take(kTaskStages * plan.stage_bytes);
  plan.rows = ub.end;
  return plan;
}

// Tokens of one home rank for one AIV: stream positions first, first + C, ...
struct HomeShare {
  uint32_t first;
  uint32_t count;
};

// The start turns with the home rank, so that no AIV gets the odd token of every rank.
template <class Cfg>
__aicore__ HomeShare home_share(const Cfg& cfg, ub<const uint32_t> psum_rank, uint32_t home, uint32_t aiv) {
  uint32_t base = 0;
  if (home > 0) {
    base = psum_rank[home - 1];
  }
  const uint32_t end = psum_rank[home];
  const uint32_t turn = layout::ceil_div<uint32_t>(cfg.num_aivs, cfg.num_ranks);
  const uint32_t start = (aiv + home * turn) % cfg.num_aivs;
  const uint32_t num_records = end - base;
  return {base + start,
          num_records > start ? layout::ceil_div<uint32_t>(num_records - start, cfg.num_aivs) : 0};
}

// Up to eight tokens of one home rank.
struct Task {
  uint32_t home;
  uint32_t first;  // stream position; the others follow at a distance of C
  uint32_t count;  // 0 = there is no task left
};

// Deals tasks round robin over the home ranks, from own rank + 1 + AIV on.
template <class Cfg>
class TaskDealer {
 public:
  __aicore__ TaskDealer(const Cfg& cfg, ub<const uint32_t> psum_rank, uint32_t rank, uint32_t aiv)
      : cfg_(cfg), psum_rank_(psum_rank), first_home_(rank + aiv + 1), aiv_(aiv) {}

  __aicore__ Task take() {
    while (true) {
      if (turn_ == cfg_.num_ranks) {
        if (!had_task_) {
          return {0, 0, 0};
        }
        turn_ = 0;
        had_task_ = false;
        ++round_;
      }
      const uint32_t home = (first_home_ + turn_) % cfg_.num_ranks;
      ++turn_;
      const HomeShare share = home_share(cfg_, psum_rank_, home, aiv_);
      const uint32_t done = round_ * kTaskTokens;
      if (done < share.count) {
        had_task_ = true;
        return {home, share.first + done * cfg_.num_aivs, least(kTaskTokens, share.count - done)};
      }
    }
  }

 private:
  const Cfg& cfg_;
  ub<const uint32_t> psum_rank_;
  uint32_t first_home_;
  uint32_t aiv_;
  uint32_t round_ = 0;
  uint32_t turn_ = 0;
  bool had_task_ = false;
};

}  // namespace epsim::ep
