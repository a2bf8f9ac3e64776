// Which slot every own token gets at every destination: fresh by counting, cached from the handle. SIMT.
#pragma once

#include <kernels/common/jetty.hpp>
#include <kernels/ep/dispatch_plan.hpp>

namespace epsim::ep {

template <class Cfg>
__simt_callee__ void clear_counters(const Cfg& cfg, const DispatchUb& plan) {
  const ub<int32_t> pair_entry(plan.pair_entry);
  const ub<int32_t> local_slot(plan.local_slot);
  for (uint32_t i = threadIdx.x; i < num_pairs(cfg); i += blockDim.x) {
    pair_entry[i] = -1;
  }
  for (uint32_t i = threadIdx.x; i < tokens_per_aiv(cfg); i += blockDim.x) {
    local_slot[i] = -1;
  }
  for (uint32_t i = threadIdx.x; i < cfg.num_experts; i += blockDim.x) {
    ub<uint32_t>(plan.expert_counts)[i] = 0;
  }
  for (uint32_t i = threadIdx.x; i < cfg.num_ranks; i += blockDim.x) {
    ub<uint32_t>(plan.rank_counts)[i] = 0;
  }
  if (threadIdx.x == 0) {
    ub<uint32_t>(plan.num_requests)[0] = 0;
  }
}

// Count the choices of own tokens per expert, and their records per rank: one per (token, rank), at the
// highest k.
template <class Cfg>
__simt_callee__ void count_choices(const Cfg& cfg, const DispatchTensors& t, const DispatchUb& plan,
                                   Share own) {
  const uint32_t num_lanes = simt::lanes_per_token(cfg.num_topk);
  const uint32_t k = threadIdx.x % num_lanes;
  const gm<const int64_t> topk_idx(t.topk_idx);
  for (uint32_t start = 0; start < own.count; start += blockDim.x / num_lanes) {
    const uint32_t token = start + threadIdx.x / num_lanes;
    const bool is_entry = token < own.count && k < cfg.num_topk;
    int64_t expert = -1;
    if (is_entry) {
      expert = topk_idx[(uint64_t{own.first} + token) * cfg.num_topk + k];
    }
    const int32_t rank = expert < 0 ? -1 : static_cast<int32_t>(expert / num_local_experts(cfg));
    bool is_master = rank >= 0;
    for (uint32_t step = 1; step < num_lanes; ++step) {
      const bool has_other = k + step < num_lanes;
      const int32_t other = asc_shfl(rank, has_other ? simt::lane() + step : simt::lane());
      is_master = is_master && !(has_other && other == rank);
    }
    if (!is_entry) {
      continue;
    }
    const uint32_t entry = token * cfg.num_topk + k;
    ub<int32_t>(plan.entry_rank)[entry] = is_master ? rank : -1;
    if (expert >= 0) {
      asc_atomic_add(ub<uint32_t>(plan.expert_counts) + expert, 1);
    }
    if (is_master) {
      const uint32_t number = asc_atomic_add(ub<uint32_t>(plan.rank_counts) + rank, 1);
      ub<uint32_t>(plan.entry_slot)[entry] = number;
    }
  }
}

// Tell the other AIVs of this rank. Each word carries its own arrival, so no order is needed.
template <class Cfg>
__simt_callee__ void publish_counts(const Cfg& cfg, const Comm& comm, const DispatchUb& plan, uint32_t aiv) {
  for (uint32_t expert = threadIdx.x; expert < cfg.num_experts; expert += blockDim.x) {
    const uint32_t count = ub<uint32_t>(plan.expert_counts)[expert];
    const gm<uint32_t> word(comm.window + layout::local_expert_word(expert));
    asc_atomic_add(word, layout::pack_word(1, count));
  }
  for (uint32_t rank = threadIdx.x; rank < cfg.num_ranks; rank += blockDim.x) {
    const uint32_t count = ub<uint32_t>(plan.rank_counts)[rank];
    asc_stcg(gm<uint32_t>(comm.window + layout::local_rank_word(aiv, rank)), layout::pack_word(1, count));
  }
}

// The order in which an AIV serves its peers: from the next rank on, around.
template <class Cfg>
__simt_callee__ uint32_t nth_peer(const Cfg& cfg, uint32_t own_rank, uint32_t aiv, uint32_t index) {
  const uint32_t num_peers = cfg.num_ranks - 1;
  const uint32_t turned = cfg.rotate_by_aiv ? (index + aiv) % num_peers : index;
  return (own_rank + 1 + turned) % cfg.num_ranks;
}

// Give each destination its requests, six records to each. One warp.
template <class Cfg>
__simt_callee__ void reserve_requests(const Cfg& cfg, const DispatchUb& plan, uint32_t own_rank,
                                      uint32_t aiv) {
  const uint32_t num_peers = cfg.num_ranks - 1;
  uint32_t total = 0;
  for (uint32_t start = 0; start < num_peers; start += kWarpLanes) {
    const uint32_t index = start + simt::lane();
    uint32_t peer = own_rank;
    uint32_t count = 0;
    if (index < num_peers) {
      peer = nth_peer(cfg, own_rank, aiv, index);
      const uint32_t num_records = ub<uint32_t>(plan.rank_counts)[peer];
      count = layout::ceil_div(num_records, urma::kDispatchRecords);
    }
    const uint32_t up_to = simt::inclusive_sum(count);
    if (index < num_peers) {
      ub<uint32_t>(plan.rank_base)[peer] = total + up_to - count;
    }
    total += asc_shfl(up_to, kWarpLanes - 1);
  }
  if (simt::lane() == 0) {
    ub<uint32_t>(plan.num_requests)[0] = total;
  }
}

// Turn the counts of all AIVs into numbers of records before each AIV, for the destinations that this AIV has
// charge of, and tell these destinations the total. One warp per destination.
template <class Cfg>
__simt_callee__ void sum_columns(const Cfg& cfg, const Comm& comm, uint32_t aiv) {
  const uint32_t step = cfg.num_aivs * simt::num_warps();
  for (uint32_t rank = aiv + cfg.num_aivs * simt::warp(); rank < cfg.num_ranks; rank += step) {
    uint32_t total = 0;
    for (uint32_t start = 0; start < cfg.num_aivs; start += kWarpLanes) {
      const uint32_t other = start + simt::lane();
      const gm<uint32_t> word(comm.window + layout::local_rank_word(other, rank));
      const uint32_t count = other < cfg.num_aivs ? simt::wait_arrivals(word, 1) : 0;
      const uint32_t up_to = simt::inclusive_sum(count);
      if (other < cfg.num_aivs) {
        asc_stcg(word, layout::pack_word(2, total + up_to - count));
      }
      total += asc_shfl(up_to, kWarpLanes - 1);
    }
    if (simt::lane() == 0) {
      const gm<uint32_t> word(simt::at_peer(comm, rank, layout::remote_rank_word(comm.rank)));
      asc_stcg(word, layout::pack_word(cfg.num_aivs, total));
    }
  }
}

// Take the own row of the prefixes, and leave it zero for the next dispatch.
template <class Cfg>
__simt_callee__ void take_prefixes(const Cfg& cfg, const Comm& comm, const DispatchUb& plan, uint32_t aiv) {
  for (uint32_t rank = threadIdx.x; rank < cfg.num_ranks; rank += blockDim.x) {
    const gm<uint32_t> word(comm.window + layout::local_rank_word(aiv, rank));
    ub<uint32_t>(plan.rank_prefix)[rank] = simt::wait_arrivals(word, 2);
    asc_stcg(word, 0);
  }
}

template <class Cfg>
__simt_callee__ void assign_slots(const Cfg& cfg, const DispatchTensors& t, const DispatchUb& plan,
                                  Share own) {
  const uint64_t first_entry = uint64_t{own.first} * cfg.num_topk;
  for (uint32_t entry = threadIdx.x; entry < own.count * cfg.num_topk; entry += blockDim.x) {
    const int32_t rank = ub<int32_t>(plan.entry_rank)[entry];
    int32_t slot = -1;
    int32_t pair = -1;
    if (rank >= 0) {
      const uint32_t number = ub<uint32_t>(plan.entry_slot)[entry];
      const uint32_t before = ub<uint32_t>(plan.rank_prefix)[rank];
      slot = static_cast<int32_t>(before + number);
      ub<uint32_t>(plan.entry_slot)[entry] = before + number;
      if (static_cast<uint32_t>(rank) == t.comm.rank) {
        ub<int32_t>(plan.local_slot)[entry / cfg.num_topk] = slot;
      } else {
        const uint32_t base = ub<uint32_t>(plan.rank_base)[rank];
        pair = static_cast<int32_t>(urma::kDispatchRecords * base + number);
        ub<int32_t>(plan.pair_entry)[pair] = static_cast<int32_t>(entry);
      }
    }
    asc_stcg(gm<int32_t>(t.dst_buffer_slot_idx) + (first_entry + entry), slot);
    asc_stcg(gm<int32_t>(t.dst_gsge_idx) + (first_entry + entry), pair);
  }
}

template <class Cfg>
__simt_vf__ __launch_bounds__(kMaxThreads) void route_fresh(Cfg cfg, DispatchTensors t, DispatchUb plan,
                                                            Share own, uint32_t aiv) {
  clear_counters(cfg, plan);
  if (cfg.num_ranks > 1) {
    simt::load_peers(t.comm, cfg.num_ranks, ub<uint64_t>(plan.peers));
  }
  asc_syncthreads();
  count_choices(cfg, t, plan, own);
  asc_syncthreads();
  publish_counts(cfg, t.comm, plan, aiv);
  if (simt::warp() == 0) {
    reserve_requests(cfg, plan, t.comm.rank, aiv);
  }
  sum_columns(cfg, t.comm, aiv);
  take_prefixes(cfg, t.comm, plan, aiv);
  asc_syncthreads();
  assign_slots(cfg, t, plan, own);
  asc_threadfence();
}

// The same maps from the handle of an earlier dispatch.
template <class Cfg>
__simt_vf__ __launch_bounds__(kMaxThreads) void route_cached(Cfg cfg, DispatchTensors t, DispatchUb plan,
                                                             Share own) {
  clear_counters(cfg, plan);
  if (cfg.num_ranks > 1) {
    simt::load_peers(t.comm, cfg.num_ranks, ub<uint64_t>(plan.peers));
  }
  asc_syncthreads();
  const uint64_t first_entry = uint64_t{own.first} * cfg.num_topk;
  for (uint32_t entry = threadIdx.x; entry < own.count * cfg.num_topk; entry += blockDim.x) {
    const int32_t slot = gm<const int32_t>(t.dst_buffer_slot_idx)[first_entry + entry];
    const int32_t pair = gm<const int32_t>(t.dst_gsge_idx)[first_entry + entry];
    if (slot < 0) {
      ub<int32_t>(plan.entry_rank)[entry] = -1;
      continue;
    }
    const int64_t expert = gm<const int64_t>(t.topk_idx)[first_entry + entry];
    ub<int32_t>(plan.entry_rank)[entry] = static_cast<int32_t>(expert / num_local_experts(cfg));
    ub<uint32_t>(plan.entry_slot)[entry] = static_cast<uint32_t>(slot);
    if (pair < 0) {
      ub<int32_t>(plan.local_slot)[entry / cfg.num_topk] = slot;
      continue;
    }
    ub<int32_t>(plan.pair_entry)[pair] = static_cast<int32_t>(entry);
    const uint32_t request = static_cast<uint32_t>(pair) / urma::kDispatchRecords;
    asc_atomic_max(ub<uint32_t>(plan.num_requests), request + 1);
  }
  asc_threadfence();
}

}  // namespace epsim::ep
