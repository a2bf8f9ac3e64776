// Fetching a task of combine: which rows a token has, its weights, and its requests. SIMT, a warp per token.
#pragma once

#include <kernels/common/jetty.hpp>
#include <kernels/ep/combine_plan.hpp>

namespace epsim::ep {

// What all tasks of an AIV share.
struct CombineSource {
  uint64_t sq_base;
  uint32_t head;  // running block of request 0
};

template <class Cfg>
constexpr uint32_t combine_bytes(const Cfg& cfg) {
  return layout::combine_record_bytes(cfg.hidden, cfg.num_topk);
}

// Where the record of a token lies in the combine region of its home.
template <class Cfg>
__simt_callee__ uint64_t home_offset(const Cfg& cfg, uint32_t rank, uint32_t position_k,
                                     uint32_t home_token) {
  const bool by_rank = layout::groups_by_rank(cfg.num_ranks, cfg.num_topk, cfg.single_reduction != 0);
  return layout::combine_offset(by_rank ? rank : position_k, home_token, cfg.num_max_tokens,
                                combine_bytes(cfg));
}

// How many requests a token sends: one, or without a reduction before the journey one per row.
template <class Cfg>
__simt_callee__ uint32_t requests_of(const Cfg& cfg, uint32_t num_rows) {
  return cfg.single_reduction ? num_rows : 1;
}

__simt_vf__ __launch_bounds__(kMaxThreads) inline void load_combine_tables(CombineTensors t, CombineUb plan,
                                                                           uint32_t num_ranks) {
  for (uint32_t rank = threadIdx.x; rank < num_ranks; rank += blockDim.x) {
    const uint32_t sum = asc_ldcg(gm<const uint32_t>(t.psum_rank) + rank);
    ub<uint32_t>(plan.psum_rank)[rank] = sum;
  }
  if (num_ranks > 1) {
    simt::load_peers(t.comm, num_ranks, ub<uint64_t>(plan.peers));
  }
  if (threadIdx.x == 0) {
    ub<uint32_t>(plan.num_requests)[0] = 0;
  }
}

// Write the K weights of one record, zero where this rank does not own the position. One warp.
template <class Cfg>
__simt_callee__ void store_weights(const Cfg& cfg, const CombineTensors& t, int32_t row, uint64_t record) {
  if (simt::lane() >= cfg.num_topk) {
    return;
  }
  uint32_t bits = 0;
  if (row >= 0 && t.topk_weights != 0) {
    bits = gm<const uint32_t>(t.topk_weights)[row];
  }
  asc_stcg(gm<uint32_t>(record + 2 * cfg.hidden) + simt::lane(), bits);
}

// Read a token's line of metadata into the stage and write its weights. One warp.
template <class Cfg>
__simt_callee__ void fetch_token(const Cfg& cfg, const CombineTensors& t, const Task& task, uint32_t position,
                                 ub<uint32_t> token) {
  const uint32_t k = simt::lane();
  const gm<const int32_t> line =
      gm<const int32_t>(t.recv_src_metadata) + uint64_t{position} * (cfg.num_topk + 2);
  int32_t row = -1;
  if (k < cfg.num_topk) {
    row = line[k];
  }
  const int32_t gid = line[cfg.num_topk];
  const uint32_t home_token = static_cast<uint32_t>(gid) % cfg.num_max_tokens;
  const uint32_t owned = asc_ballot(row >= 0);
  if (row >= 0) {
    const uint32_t index = simt::count_bits(owned & ((uint32_t{1} << k) - 1));
    token[kTaskRows + index] = static_cast<uint32_t>(row);
    token[kTaskRows + cfg.num_topk + index] = k;
  }
  if (k == 0) {
    token[kTaskNumRows] = simt::count_bits(owned);
    token[kTaskHomeToken] = home_token;
  }
  asc_syncwarp();
  if (task.home != t.comm.rank) {
    store_weights(cfg, t, row, t.send_buffer + uint64_t{position} * combine_bytes(cfg));
    return;
  }
  // Without a reduction every row has a record of its own at home; each gets all weights that are owned here.
  const uint64_t region = t.comm.window + layout::kEpOffset;
  const uint32_t num_records = requests_of(cfg, simt::count_bits(owned));
  const uint32_t num_rows = simt::count_bits(owned);
  for (uint32_t i = num_rows - num_records; i < num_rows; ++i) {
    const uint32_t position_k = token[kTaskRows + cfg.num_topk + i];
    store_weights(cfg, t, row, region + home_offset(cfg, t.comm.rank, position_k, home_token));
  }
}

// Word 0..15 of the two blocks of a request: row i of a token, or with a reduction its only or reduced row.
template <class Cfg>
__simt_callee__ uint64_t combine_word(const Cfg& cfg, const CombineTensors& t, const CombineUb& plan,
                                      const Task& task, uint32_t position, ub<const uint32_t> token,
                                      uint32_t i, uint32_t head, uint32_t word) {
  const uint64_t record = t.send_buffer + uint64_t{position} * combine_bytes(cfg);
  if (word < urma::kHeaderWords) {
    const uint32_t position_k = token[kTaskRows + cfg.num_topk + i];
    const uint32_t home_token = token[kTaskHomeToken];
    const ub<const uint64_t> peer = ub<const uint64_t>(plan.peers) + task.home * urma::kPeerInfoWords;
    const uint64_t offset = home_offset(cfg, t.comm.rank, position_k, home_token);
    return simt::write_header_word(word, urma::write_flags(head, false, cfg.sq_depth), 2, peer, offset);
  }
  switch (word - urma::kHeaderWords) {
    case 0:
      return 2 * cfg.hidden;
    case 1: {
      const uint32_t num_rows = token[kTaskNumRows];
      const uint32_t row = token[kTaskRows + i];
      const bool is_in_place = cfg.single_reduction || num_rows == 1;
      return is_in_place ? t.x + uint64_t{row} * 2 * cfg.hidden : record;
    }
    case 2:
      return combine_bytes(cfg) - 2 * cfg.hidden;
    case 3:
      return record + 2 * cfg.hidden;
    default:
      return 0;
  }
}

// Write the requests of one token; the jetty does not see them before the head moves. One warp.
template <class Cfg>
__simt_callee__ void write_token_requests(const Cfg& cfg, const CombineTensors& t, const CombineUb& plan,
                                          const CombineSource& source, const Task& task, uint32_t index,
                                          ub<const uint32_t> stage) {
  const uint32_t token_words = task_token_words(cfg.num_topk);
  uint32_t request = ub<uint32_t>(plan.num_requests)[0];
  for (uint32_t before = 0; before < index; ++before) {
    const uint32_t num_rows = stage[before * token_words + kTaskNumRows];
    request += requests_of(cfg, num_rows);
  }
  const ub<const uint32_t> token = stage + index * token_words;
  const uint32_t num_rows = token[kTaskNumRows];
  const uint32_t num_sent = requests_of(cfg, num_rows);
  const uint32_t position = task.first + index * cfg.num_aivs;
  for (uint32_t i = num_rows - num_sent; i < num_rows; ++i, ++request) {
    const uint32_t head = source.head + urma::kCombineWqebbs * request;
    if (simt::lane() < urma::kCombineWqebbs * urma::kWqebbWords) {
      // With a reduction the token's last row stands for all: its position is the master.
      const uint64_t word = combine_word(cfg, t, plan, task, position, token, i, head, simt::lane());
      asc_stcg(simt::sq_word(source.sq_base, cfg.sq_depth, head, simt::lane()), word);
    }
  }
}

template <class Cfg>
__simt_vf__ __launch_bounds__(kMaxThreads) void fetch_task(Cfg cfg, CombineTensors t, CombineUb plan,
                                                           CombineSource source, Task task,
                                                           uint32_t stage_idx) {
  const ub<uint32_t> stage(plan.stages + stage_idx * plan.stage_bytes);
  const uint32_t token_words = task_token_words(cfg.num_topk);
  for (uint32_t i = simt::warp(); i < task.count; i += simt::num_warps()) {
    fetch_token(cfg, t, task, task.first + i * cfg.num_aivs, stage + i * token_words);
  }
  asc_syncthreads();
  if (task.home != t.comm.rank) {
    for (uint32_t i = simt::warp(); i < task.count; i += simt::num_warps()) {
      write_token_requests(cfg, t, plan, source, task, i, stage);
    }
    asc_syncthreads();
    if (threadIdx.x == 0) {
      uint32_t end = ub<uint32_t>(plan.num_requests)[0];
      for (uint32_t i = 0; i < task.count; ++i) {
        const uint32_t num_rows = stage[i * token_words + kTaskNumRows];
        end += requests_of(cfg, num_rows);
      }
      ub<uint32_t>(plan.num_requests)[0] = end;
      ub<uint32_t>(plan.requests_end)[stage_idx] = end;
    }
  }
  asc_threadfence();
}

}  // namespace epsim::ep
