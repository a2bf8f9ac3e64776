// Which row of its expert's block every received record gets: counting, cross-AIV prefix, padding. SIMT.
#pragma once

#include <kernels/common/simt.hpp>
#include <kernels/ep/epilogue_plan.hpp>

namespace epsim::ep {

// Load the counts of the dispatch, clear counters, and zero the own row of prefixes in GM.
template <class Cfg>
__simt_vf__ __launch_bounds__(kMaxThreads) void load_counts(Cfg cfg, DispatchEpilogueTensors t,
                                                            EpilogueUb plan, uint32_t aiv) {
  for (uint32_t rank = threadIdx.x; rank < cfg.num_ranks; rank += blockDim.x) {
    const uint32_t sum = asc_ldcg(gm<const uint32_t>(t.psum_rank) + rank);
    ub<uint32_t>(plan.psum_rank)[rank] = sum;
  }
  const uint32_t num_local = num_local_experts(cfg);
  for (uint32_t expert = threadIdx.x; expert < num_local; expert += blockDim.x) {
    const uint32_t sum = asc_ldcg(gm<const uint32_t>(t.psum_expert) + expert);
    ub<uint32_t>(plan.psum_expert)[expert] = sum;
    ub<uint32_t>(plan.counts)[expert] = 0;
    if (!cfg.cached) {
      asc_stcg(gm<uint32_t>(t.comm.window + layout::epilogue_counter_word(aiv, expert, num_local)), 0);
    }
  }
  for (uint32_t word = threadIdx.x; word < kZeroBytes / 4; word += blockDim.x) {
    ub<uint32_t>(plan.zeros)[word] = 0;
  }
  asc_threadfence();
}

// Count the choices of received records whose expert is here. Ids in a record are global and unmasked.
template <class Cfg>
__simt_vf__ __launch_bounds__(kMaxThreads) void count_rows(Cfg cfg, DispatchEpilogueTensors t,
                                                           EpilogueUb plan, Share range) {
  const layout::DispatchRecord record = record_of(cfg);
  const uint32_t num_local = num_local_experts(cfg);
  uint32_t block_start = 0;
  for (uint32_t src_rank = 0; src_rank < cfg.num_ranks; ++src_rank) {
    const uint32_t block_end = ub<uint32_t>(plan.psum_rank)[src_rank];
    const uint32_t first = most(block_start, range.first);
    const uint32_t end = least(block_end, range.first + range.count);
    for (uint32_t i = threadIdx.x; first < end && i < (end - first) * cfg.num_topk; i += blockDim.x) {
      const uint32_t slot = first - block_start + i / cfg.num_topk;
      const uint64_t place =
          layout::receive_offset(src_rank, slot, cfg.num_max_tokens, record.bytes) + record.ids;
      const gm<const int64_t> ids(t.comm.window + layout::kEpOffset + place);
      const int64_t local = asc_ldcg(ids + i % cfg.num_topk) - int64_t{t.comm.rank} * num_local;
      if (local >= 0 && local < num_local) {
        asc_atomic_add(ub<uint32_t>(plan.counts) + local, 1);
      }
    }
    block_start = block_end;
  }
}

// counts[e] = the first row of this AIV in the block of e: blocks start aligned, earlier AIVs come first.
template <class Cfg>
__simt_vf__ __launch_bounds__(kMaxThreads) void load_first_rows(Cfg cfg, DispatchEpilogueTensors t,
                                                                EpilogueUb plan, uint32_t aiv) {
  const uint32_t num_local = num_local_experts(cfg);
  for (uint32_t expert = threadIdx.x; expert < num_local; expert += blockDim.x) {
    const uint64_t word = t.comm.window + layout::epilogue_counter_word(aiv, expert, num_local);
    const uint32_t before = asc_ldcg(gm<const uint32_t>(word));
    uint32_t start = 0;
    if (expert > 0) {
      const uint32_t end = ub<uint32_t>(plan.psum_expert)[expert - 1];
      start = layout::align_up<uint32_t>(end, cfg.expert_alignment);
    }
    ub<uint32_t>(plan.counts)[expert] = start + before;
  }
}

// Rows behind the real ones of an expert, up to the end of its block.
template <class Cfg>
__simt_callee__ Share gap_of(const Cfg& cfg, ub<const uint32_t> psum_expert, uint32_t expert) {
  const uint32_t end = psum_expert[expert];
  return {end, layout::align_up<uint32_t>(end, cfg.expert_alignment) - end};
}

// Gap rows are dealt out to the AIVs one by one over all experts; `before` counts those of earlier experts.
template <class Cfg>
__simt_callee__ bool is_own_gap(const Cfg& cfg, uint32_t before, uint32_t index, uint32_t aiv) {
  return (before + index) % cfg.num_aivs == aiv;
}

// Zero the scales and weights of gap rows, a word at a time.
template <class Cfg>
__simt_vf__ __launch_bounds__(kMaxThreads) void zero_small_fields(Cfg cfg, DispatchEpilogueTensors t,
                                                                  EpilogueUb plan, uint32_t aiv) {
  uint32_t before = 0;
  for (uint32_t expert = 0; expert < num_local_experts(cfg); ++expert) {
    const Share gap = gap_of(cfg, ub<const uint32_t>(plan.psum_expert), expert);
    const uint32_t num_words = cfg.num_scale_packs + 1;
    for (uint32_t i = threadIdx.x; i < gap.count * num_words; i += blockDim.x) {
      const uint64_t row = gap.first + i / num_words;
      const uint32_t word = i % num_words;
      if (!is_own_gap(cfg, before, i / num_words, aiv)) {
        continue;
      }
      if (word < cfg.num_scale_packs) {
        asc_stcg(gm<uint16_t>(t.recv_scales) + (row * cfg.num_scale_packs + word), 0);
      } else if (t.recv_weights != 0) {
        asc_stcg(gm<uint32_t>(t.recv_weights) + row, 0);
      }
    }
    before += gap.count;
  }
  asc_threadfence();
}

}  // namespace epsim::ep
