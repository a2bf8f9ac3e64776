// The barrier of all ranks of a group: the only global synchronisation of the EP kernels.
//
// Two signal words take turns, and every second time they count down again, so that nothing ever needs
// clearing: phase 0 up, phase 1 up, phase 0 down, phase 1 down.
#pragma once

#include <kernels/common/jetty.hpp>

namespace epsim {

struct BarrierOptions {
  bool flush;            // this AIV's copies to GM are complete first
  bool sync_start;       // all AIVs of the rank have come
  bool sync_end;         // no AIV goes on before the barrier is through
  uint32_t num_jetties;  // jetties that the AIVs of the rank drain, strided by their number; 0 = none
};

// Earlier users of the shared region are finished everywhere.
inline constexpr BarrierOptions kEntryBarrier{
    .flush = false, .sync_start = true, .sync_end = true, .num_jetties = 0};

// All my writes are complete, and every peer says the same of its own.
constexpr BarrierOptions exit_barrier(uint32_t num_aivs, bool sync_start) {
  return {.flush = true, .sync_start = sync_start, .sync_end = true, .num_jetties = num_aivs};
}

__simt_vf__ __launch_bounds__(kMaxThreads) inline void signal_ranks(Comm comm, uint32_t num_ranks,
                                                                    uint32_t phase, int32_t step) {
  asc_threadfence();
  for (uint32_t peer = threadIdx.x; peer < num_ranks; peer += blockDim.x) {
    const uint64_t word = simt::at_peer(comm, peer, layout::kBarrierSignals + sizeof(int32_t) * phase);
    asc_atomic_add(gm<int32_t>(word), step);
  }
}

// One AIV of every rank tells all ranks, then waits until all ranks have told it.
template <class Cfg>
__aicore__ void exchange_signals(const Cfg& cfg, const Comm& comm) {
  const gm<int64_t> counter(comm.window + layout::kBarrierCounter);
  const int64_t num_passed = asc_load_dev(counter);
  const auto phase = static_cast<uint32_t>(num_passed & 1);
  const bool is_down = ((num_passed >> 1) & 1) != 0;
  asc_store_dev(counter, num_passed + 1);
  asc_sync_data_barrier(DSB_DDR);
  asc_vf_call<signal_ranks>(cfg.num_threads, comm, uint32_t{cfg.num_ranks}, phase, is_down ? -1 : 1);
  order(PIPE_V, PIPE_S);
  const gm<const int32_t> own(comm.window + layout::kBarrierSignals + sizeof(int32_t) * phase);
  wait_for_value(own, is_down ? 0 : static_cast<int32_t>(cfg.num_ranks), cfg.timeout_cycles);
}

template <class Cfg>
__aicore__ void rank_barrier(const Cfg& cfg, const Comm& comm, const BarrierOptions& options) {
  const uint32_t aiv = asc_get_block_idx();
  if (options.flush) {
    asc_sync_pipe(PIPE_ALL);
  }
  if (options.sync_start) {
    sync_aivs();
  }
  if (options.num_jetties != 0 && cfg.num_ranks > 1) {
    for (uint32_t jetty = aiv; jetty < options.num_jetties; jetty += asc_get_block_num()) {
      drain_jetty(comm, jetty, cfg.timeout_cycles);
    }
    sync_aivs();
  }
  if (aiv == 0) {
    exchange_signals(cfg, comm);
  }
  if (options.sync_end) {
    sync_aivs();
  }
}

// The standalone barrier kernel: drains every jetty of the rank.
template <class Cfg>
__aicore__ void barrier_impl(gm<const BarrierArgs> args, Cfg cfg) {
  asc_init_soc_state();
  const auto comm = read_struct<Comm>(gm_field(args, &BarrierArgs::comm));
  const uint64_t num_jetties = gm_field(args, &BarrierArgs::num_jetties)[0];
  rank_barrier(cfg, comm,
               {.flush = true,
                .sync_start = false,
                .sync_end = false,
                .num_jetties = static_cast<uint32_t>(num_jetties)});
}

}  // namespace epsim
