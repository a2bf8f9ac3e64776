// The requests of a dispatch: each writes up to six records of one destination, consecutive slots there.
// SIMT.
#pragma once

#include <kernels/common/jetty.hpp>
#include <kernels/ep/dispatch_plan.hpp>

namespace epsim::ep {

// What all requests of an AIV share.
struct RequestSource {
  uint64_t sq_base;
  uint32_t head;  // running block of request 0
  uint32_t own_first;
  uint32_t own_rank;
  uint64_t x;
  uint64_t metadata_image;
};

// One gather element of an entry: its payload row (piece 0) or its metadata (piece 1); word 0 length, word 1
// address.
template <class Cfg>
__simt_callee__ uint64_t gather_word(const Cfg& cfg, const RequestSource& source, uint32_t entry,
                                     uint32_t piece, uint32_t word) {
  const uint64_t token = source.own_first + entry / cfg.num_topk;
  const uint32_t num_bytes = piece == 0 ? cfg.payload_bytes : record_of(cfg).image_bytes();
  if (word == 0) {
    return num_bytes;
  }
  return (piece == 0 ? source.x : source.metadata_image) + token * num_bytes;
}

// Word 0..31 of the four blocks of a request with `num_records` records; blocks that it does not need carry
// NOPs.
template <class Cfg>
__simt_callee__ uint64_t request_word(const Cfg& cfg, const RequestSource& source, const DispatchUb& plan,
                                      uint32_t request, uint32_t num_records, uint32_t word) {
  const uint32_t head = source.head + urma::kDispatchWqebbs * request;
  const uint32_t num_words = urma::kHeaderWords + 2 * urma::kSgeWords * num_records;
  const uint32_t first_pair = urma::kDispatchRecords * request;
  if (word < urma::kHeaderWords) {
    const uint32_t entry = ub<uint32_t>(plan.pair_entry)[first_pair];
    const uint32_t rank = ub<uint32_t>(plan.entry_rank)[entry];
    const uint32_t slot = ub<uint32_t>(plan.entry_slot)[entry];
    const uint32_t num_requests = ub<uint32_t>(plan.num_requests)[0];
    const uint64_t flags = urma::write_flags(head, request + 1 == num_requests, cfg.sq_depth);
    const ub<const uint64_t> peer = ub<const uint64_t>(plan.peers) + rank * urma::kPeerInfoWords;
    const uint64_t offset =
        layout::receive_offset(source.own_rank, slot, cfg.num_max_tokens, record_of(cfg).bytes);
    return simt::write_header_word(word, flags, 2 * num_records, peer, offset);
  }
  if (word < num_words) {
    const uint32_t piece = (word - urma::kHeaderWords) / urma::kSgeWords;
    const uint32_t entry = ub<uint32_t>(plan.pair_entry)[first_pair + piece / 2];
    return gather_word(cfg, source, entry, piece % 2, word % urma::kSgeWords);
  }
  const uint32_t block = word / urma::kWqebbWords;
  const bool is_nop =
      word % urma::kWqebbWords == 0 && block >= layout::ceil_div(num_words, urma::kWqebbWords);
  return is_nop ? urma::nop_flags(head + block, false, cfg.sq_depth) : 0;
}

// Write requests [first, last) into the queue: a warp per request, a lane per word. The last request of the
// AIV closes the set: strong order, fence and completion.
template <class Cfg>
__simt_vf__ __launch_bounds__(kMaxThreads) void write_requests(Cfg cfg, RequestSource source, DispatchUb plan,
                                                               uint32_t first, uint32_t last) {
  for (uint32_t request = first + simt::warp(); request < last; request += simt::num_warps()) {
    int32_t entry = -1;
    if (simt::lane() < urma::kDispatchRecords) {
      entry = ub<int32_t>(plan.pair_entry)[urma::kDispatchRecords * request + simt::lane()];
    }
    const uint32_t num_records = simt::count_bits(asc_ballot(entry >= 0));
    const uint64_t word = request_word(cfg, source, plan, request, num_records, simt::lane());
    const uint32_t head = source.head + urma::kDispatchWqebbs * request;
    asc_stcg(simt::sq_word(source.sq_base, cfg.sq_depth, head, simt::lane()), word);
  }
  // The DSB before the doorbell orders these stores, too, say the documents (a fence or a DSB), and so does
  // the twin, which misses neither alone. Kept until hardware has shown which of them is enough.
  asc_threadfence();
}

}  // namespace epsim::ep
