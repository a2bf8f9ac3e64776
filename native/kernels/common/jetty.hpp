// A jetty: the send queue of one AIV with its completion queue, and what lanes need to write requests.
#pragma once

#include <kernels/common/simt.hpp>

namespace epsim {

__aicore__ gm<const uint64_t> jetty_words(const Comm& comm, uint32_t index) {
  return gm<const uint64_t>(asc_load_dev(gm<const uint64_t>(comm.jetty_table) + index));
}

// Read past the cache: the head moves between launches.
__aicore__ urma::JettyInfo read_jetty_info(const Comm& comm, uint32_t index) {
  const gm<const uint64_t> source = jetty_words(comm, index);
  uint64_t words[urma::kJettyInfoWords];
  for (uint32_t i = 0; i < urma::kJettyInfoWords; ++i) {
    words[i] = asc_load_dev(source + i);
  }
  urma::JettyInfo info;
  __builtin_memcpy(&info, words, sizeof(info));
  const uint64_t packed_head = asc_load_dev(gm<const uint64_t>(info.sq_head_address));
  info.wqebb_head = static_cast<uint32_t>(packed_head);
  info.num_expected_completions = static_cast<uint32_t>(packed_head >> 32);
  return info;
}

// The queue of this AIV, checked: a call starts at a multiple of four blocks, and all its requests fit.
__aicore__ urma::JettyInfo open_jetty(const Comm& comm, uint32_t aiv, uint64_t num_blocks,
                                      uint32_t sq_depth) {
  const urma::JettyInfo jetty = read_jetty_info(comm, aiv);
  if (jetty.wqebb_head % urma::kSqStartStep != 0) {
    asc_trap(kTrapQueueStart);
  }
  if (num_blocks > sq_depth) {
    asc_trap(kTrapQueueTooSmall);
  }
  return jetty;
}

// Publish all requests below `head` to the device, and how many completions will come of all requests so far.
// All that they read, their words included, must be complete and known to S.
__aicore__ void ring_doorbell(const urma::JettyInfo& jetty, uint32_t head,
                              uint32_t num_expected_completions) {
  const uint64_t packed = uint64_t{head} | uint64_t{num_expected_completions} << 32;
  asc_sync_data_barrier(DSB_DDR);
  asc_store_dev(gm<uint64_t>(jetty.sq_head_address), packed);
  asc_sync_data_barrier(DSB_DDR);
  asc_store_dev(gm<uint64_t>(jetty.sq_doorbell_address), uint64_t{head});
  asc_sync_data_barrier(DSB_DDR);
}

// Take all completions that this queue still owes. Returns at once when it owes none.
__aicore__ void drain_jetty(const Comm& comm, uint32_t index, uint64_t timeout_cycles) {
  const urma::JettyInfo jetty = read_jetty_info(comm, index);
  uint32_t tail = asc_load_dev(gm<const uint32_t>(jetty.cq_tail_address));
  if (tail == jetty.num_expected_completions) {
    return;
  }
  const int64_t start = asc_get_system_cycle();
  for (; tail != jetty.num_expected_completions; ++tail) {
    const gm<const uint32_t> entry(jetty.cq_base + uint64_t{tail % jetty.cq_depth} * jetty.cqe_bytes);
    uint32_t word = asc_load_dev(entry);
    while (!urma::is_new_cqe(word, tail, jetty.cq_depth)) {
      if (static_cast<uint64_t>(asc_get_system_cycle() - start) > timeout_cycles) {
        asc_trap(kTrapTimeout);
      }
      asc_nop(kPollCycles);
      word = asc_load_dev(entry);
    }
    if (urma::get(urma::kCqeStatus, word) != 0 || urma::get(urma::kCqeSubstatus, word) != 0) {
      asc_trap(kTrapCompletionStatus);
    }
  }
  asc_store_dev(gm<uint32_t>(jetty.cq_tail_address), tail);
  asc_store_dev(gm<uint64_t>(jetty.cq_doorbell_address), uint64_t{tail & urma::kCqDoorbellMask});
  asc_store_dev(gm<uint32_t>(jetty.completion_tail_address), tail);
  asc_sync_data_barrier(DSB_DDR);
}

namespace simt {

// Copy what requests must know of every peer to UB, at peers[6 q ..]; the entry of the rank itself stays
// empty.
__simt_callee__ void load_peers(const Comm& comm, uint32_t num_ranks, ub<uint64_t> peers) {
  const uint32_t num_words = num_ranks * urma::kPeerInfoWords;
  for (uint32_t i = threadIdx.x; i < num_words; i += blockDim.x) {
    const uint32_t peer = i / urma::kPeerInfoWords;
    if (peer == comm.rank) {
      continue;
    }
    const uint64_t entry = gm<const uint64_t>(comm.peer_table)[urma::peer_entry(peer, comm.rank)];
    const uint64_t word = gm<const uint64_t>(entry)[i % urma::kPeerInfoWords];
    peers[i] = word;
  }
}

// The place of a word of the ring, counted from block `head`.
__simt_callee__ gm<uint64_t> sq_word(uint64_t sq_base, uint32_t sq_depth, uint32_t head, uint32_t word) {
  const uint32_t block = (head + word / urma::kWqebbWords) & (sq_depth - 1);
  return gm<uint64_t>(sq_base + uint64_t{block} * urma::kWqebbBytes) + word % urma::kWqebbWords;
}

// Header word 0..5 of a write into the EP region of a peer.
__simt_callee__ uint64_t write_header_word(uint32_t word, uint64_t flags, uint32_t num_sges,
                                           ub<const uint64_t> peer, uint64_t region_offset) {
  if (word == 0) {
    return flags;
  }
  if (word == urma::kHeaderWords - 1) {
    const uint64_t window = peer[4];
    return window + layout::kEpOffset + region_offset;
  }
  const uint64_t value = peer[word - 1];
  return word == 1 ? value | urma::put(urma::kNumSges, num_sges) : value;
}

}  // namespace simt
}  // namespace epsim
