// How many rows every rank will receive: one AIV exchanges counts per expert, another takes counts per rank.
// SIMT.
#pragma once

#include <kernels/common/simt.hpp>
#include <kernels/ep/dispatch_plan.hpp>

namespace epsim::ep {

// Write the running sum of [count] values, one warp: out[i] = sum of steps before i + parts[i]. `steps` are
// what each item moves the sum by, `parts` what of it its own entry shows.
__simt_callee__ void store_running_sum(ub<const uint32_t> steps, ub<const uint32_t> parts, uint32_t count,
                                       gm<int32_t> out) {
  uint32_t total = 0;
  for (uint32_t start = 0; start < count; start += kWarpLanes) {
    const uint32_t index = start + simt::lane();
    uint32_t step = 0;
    if (index < count) {
      step = steps[index];
    }
    const uint32_t up_to = simt::inclusive_sum(step);
    if (index < count) {
      const uint32_t part = parts[index];
      asc_stcg(out + index, static_cast<int32_t>(total + up_to - step + part));
    }
    total += asc_shfl(up_to, kWarpLanes - 1);
  }
}

// Send the counts of all experts of this rank's tokens to the experts' ranks.
template <class Cfg>
__simt_callee__ void send_expert_counts(const Cfg& cfg, const Comm& comm) {
  for (uint32_t expert = threadIdx.x; expert < cfg.num_experts; expert += blockDim.x) {
    const gm<uint32_t> word(comm.window + layout::local_expert_word(expert));
    const uint32_t count = simt::wait_arrivals(word, cfg.num_aivs);
    asc_stcg(word, 0);
    const uint64_t offset = layout::remote_expert_word(expert % num_local_experts(cfg));
    const gm<uint32_t> target(simt::at_peer(comm, expert / num_local_experts(cfg), offset));
    asc_atomic_add(target, layout::pack_word(1, count));
  }
}

// Take the rows of own experts, plain and aligned, [L] each.
template <class Cfg>
__simt_callee__ void take_expert_counts(const Cfg& cfg, const DispatchTensors& t, ub<uint32_t> counts,
                                        ub<uint32_t> aligned) {
  for (uint32_t expert = threadIdx.x; expert < num_local_experts(cfg); expert += blockDim.x) {
    const gm<uint32_t> word(t.comm.window + layout::remote_expert_word(expert));
    const uint32_t count = simt::wait_arrivals(word, cfg.num_ranks, cfg.timeout_cycles);
    asc_stcg(word, 0);
    const uint32_t rows = layout::align_up<uint32_t>(count, cfg.expert_alignment);
    counts[expert] = count;
    aligned[expert] = rows;
    asc_stcg(gm<int32_t>(t.num_unaligned) + expert, static_cast<int32_t>(count));
    if (t.stats != 0) {
      const gm<int32_t> total = gm<int32_t>(t.stats) + expert;
      const int32_t before = asc_ldcg(total);
      asc_stcg(total, before + static_cast<int32_t>(count));
    }
    if (cfg.cpu_sync) {
      const gm<uint32_t> host(t.comm.host_workspace + layout::host_expert_word(expert));
      asc_stcg(host, layout::pack_word(cfg.num_ranks, rows));
    }
  }
}

template <class Cfg>
__simt_vf__ __launch_bounds__(kMaxThreads) void exchange_expert_counts(Cfg cfg, DispatchTensors t,
                                                                       DispatchUb plan) {
  const ub<uint32_t> counts(plan.expert_counts);
  const ub<uint32_t> aligned(plan.aligned_counts);
  send_expert_counts(cfg, t.comm);
  take_expert_counts(cfg, t, counts, aligned);
  asc_syncthreads();
  if (simt::warp() == 0) {
    store_running_sum(aligned, counts, num_local_experts(cfg), gm<int32_t>(t.psum_expert));
  }
  asc_threadfence();
}

template <class Cfg>
__simt_vf__ __launch_bounds__(kMaxThreads) void take_rank_counts(Cfg cfg, DispatchTensors t,
                                                                 DispatchUb plan) {
  const ub<uint32_t> counts(plan.rank_counts);
  for (uint32_t rank = threadIdx.x; rank < cfg.num_ranks; rank += blockDim.x) {
    const gm<uint32_t> word(t.comm.window + layout::remote_rank_word(rank));
    const uint32_t count = simt::wait_arrivals(word, cfg.num_aivs, cfg.timeout_cycles);
    asc_stcg(word, 0);
    counts[rank] = count;
    if (cfg.cpu_sync) {
      const gm<uint32_t> host(t.comm.host_workspace + layout::host_rank_word(rank));
      asc_stcg(host, layout::pack_word(cfg.num_ranks, count));
    }
  }
  asc_syncthreads();
  if (simt::warp() == 0) {
    store_running_sum(counts, counts, cfg.num_ranks, gm<int32_t>(t.psum_rank));
  }
  asc_threadfence();
}

}  // namespace epsim::ep
