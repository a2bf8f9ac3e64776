// Where a dispatch keeps what in UB, and which tokens an AIV owns.
#pragma once

#include <kernels/common/core.hpp>

namespace epsim::ep {

inline constexpr uint32_t kImageStageTokens = 64;
inline constexpr uint32_t kMaxStages = 8;  // flags have eight ids, of which stages use all but the last
inline constexpr uint32_t kMaxFlaggedStages = kMaxStages - 1;

// UB offsets. "entries" are (own token, k) pairs; "pairs" are gather pairs, six to a request.
struct DispatchUb {
  uint32_t expert_counts;   // [E]
  uint32_t aligned_counts;  // [L] rows of own experts' blocks
  uint32_t rank_counts;     // [R] own records per destination
  uint32_t rank_prefix;     // [R] records of the AIVs before
  uint32_t rank_base;       // [R] first request per destination
  uint32_t entry_rank;      // [entries] destination at masters, else -1
  uint32_t entry_slot;      // [entries] number inside the AIV, then slot at the destination
  uint32_t pair_entry;      // [pairs] entry, -1 = none
  uint32_t local_slot;      // [tokens] slot of the copy to this rank itself, -1 = none
  uint32_t num_requests;    // [1]
  uint32_t peers;           // [6 R] u64
  uint32_t stages;          // the rest: images, then whole records of local tokens
};

template <class Cfg>
constexpr layout::DispatchRecord record_of(const Cfg& cfg) {
  return layout::dispatch_record(cfg.payload_bytes, cfg.num_scale_packs, cfg.num_topk, cfg.cached == 0);
}

template <class Cfg>
constexpr uint32_t tokens_per_aiv(const Cfg& cfg) {
  return layout::ceil_div<uint32_t>(cfg.num_max_tokens, cfg.num_aivs);
}

// Every destination may leave its last request partly filled.
template <class Cfg>
constexpr uint32_t num_pairs(const Cfg& cfg) {
  return tokens_per_aiv(cfg) * cfg.num_topk + urma::kDispatchRecords * cfg.num_ranks;
}

template <class Cfg>
constexpr DispatchUb plan_dispatch_ub(const Cfg& cfg) {
  UbPlanner ub;
  DispatchUb plan{};
  const uint32_t num_entries = tokens_per_aiv(cfg) * cfg.num_topk;
  plan.expert_counts = ub.take(4 * cfg.num_experts);
  plan.aligned_counts = ub.take(4 * num_local_experts(cfg));
  plan.rank_counts = ub.take(4 * cfg.num_ranks);
  plan.rank_prefix = ub.take(4 * cfg.num_ranks);
  plan.rank_base = ub.take(4 * cfg.num_ranks);
  plan.entry_rank = ub.take(4 * num_entries);
  plan.entry_slot = ub.take(4 * num_entries);
  plan.pair_entry = ub.take(4 * num_pairs(cfg));
  plan.local_slot = ub.take(4 * tokens_per_aiv(cfg));
  plan.num_requests = ub.take(4);
  plan.peers = ub.take(8 * urma::kPeerInfoWords * cfg.num_ranks);
  plan.stages = ub.end;
  return plan;
}

// How many stages of `stage_bytes` fit behind the plan.
template <class Cfg>
__aicore__ uint32_t num_stages(const Cfg& cfg, const DispatchUb& plan, uint32_t stage_bytes) {
  const uint32_t rest = cfg.ub_bytes > plan.stages ? cfg.ub_bytes - plan.stages : 0;
  const uint32_t count = least(rest / stage_bytes, kMaxFlaggedStages);
  if (count == 0) {
    asc_trap(kTrapUbTooSmall);
  }
  return count;
}

}  // namespace epsim::ep
