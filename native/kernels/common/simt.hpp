// Small helpers of SIMT lanes.
#pragma once

#include <kernels/common/core.hpp>

namespace epsim::simt {

__simt_callee__ uint32_t lane() { return threadIdx.x % kWarpLanes; }
__simt_callee__ uint32_t warp() { return threadIdx.x / kWarpLanes; }
__simt_callee__ uint32_t num_warps() { return blockDim.x / kWarpLanes; }

__simt_callee__ uint32_t count_bits(uint32_t word) { return static_cast<uint32_t>(__builtin_popcount(word)); }

// Sum over this lane and those below it. All lanes of the warp take part.
__simt_callee__ uint32_t inclusive_sum(uint32_t value) {
  for (uint32_t step = 1; step < kWarpLanes; step *= 2) {
    const uint32_t below = asc_shfl_up(value, step);
    value += lane() >= step ? below : 0;
  }
  return value;
}

// Lanes that share one token: the next power of two, so that a token never crosses a warp.
constexpr uint32_t lanes_per_token(uint32_t num_topk) {
  uint32_t lanes = 1;
  while (lanes < num_topk) {
    lanes *= 2;
  }
  return lanes;
}

// Poll a reduction word until it has `arrivals`; waits inside a rank have no time limit.
__simt_callee__ uint32_t wait_arrivals(gm<const uint32_t> word, uint32_t arrivals) {
  uint32_t value = asc_ldcg(word);
  while (layout::word_arrivals(value) != arrivals) {
    asc_nop(kPollCycles);
    value = asc_ldcg(word);
  }
  return layout::word_value(value);
}

// The same for words that other ranks add to.
__simt_callee__ uint32_t wait_arrivals(gm<const uint32_t> word, uint32_t arrivals, uint64_t timeout_cycles) {
  const uint64_t num_polls = timeout_cycles / kPollCycles + 1;
  uint32_t value = asc_ldcg(word);
  for (uint64_t poll = 0; layout::word_arrivals(value) != arrivals; ++poll) {
    if (poll == num_polls) {
      asc_trap(kTrapTimeout);
    }
    asc_nop(kPollCycles);
    value = asc_ldcg(word);
  }
  return layout::word_value(value);
}

// The same place in a peer's window.
__simt_callee__ uint64_t at_peer(const Comm& comm, uint32_t peer, uint64_t offset) {
  const uint64_t base = gm<const uint64_t>(comm.window + layout::kPeerPtrs)[peer];
  return base + offset;
}

}  // namespace epsim::simt
