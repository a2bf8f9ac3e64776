// Which links lead to the peers, copied out of the library's own arrays.
#pragma once

#include <cstdint>
#include <vector>

#include <runtime/cann.hpp>

namespace epsim::runtime {

struct Peer {
  uint32_t rank;
  CommLink ub_mem;  // loads, stores and atomics by plain pointers
  CommLink ub_ctp;  // work requests
};

// Return the peers of `rank` in ascending order, itself left out.
//
// Links are taken from the second net layer; those for work requests all start at one local endpoint, since one jetty
// serves all peers.
std::vector<Peer> find_peers(HcclComm comm, uint32_t rank, uint32_t num_ranks);

}  // namespace epsim::runtime
