// The symmetric window: device memory that peers reach by plain pointers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <runtime/cann.hpp>
#include <runtime/links.hpp>
#include <runtime/releases.hpp>

namespace epsim::runtime {

struct Window {
  HcclComm comm = nullptr;  // a communicator that was made again under its old name knows no memory of the former one
  uint32_t rank = 0;
  uint64_t num_bytes = 0;
  std::string tag;  // by which a peer finds this window, equal on all ranks
  void* memory = nullptr;
  HcclMemHandle handle = nullptr;
  std::vector<uint64_t> bases;  // [R] as this rank reaches them; empty until connect_window
  bool is_leased = false;
};

// Lease a zeroed window; `releases` gives it back. Peers write to it only after the exchange of ports, which follows.
//
// HCCL cannot forget a registered memory, and freeing it would leave mappings at the peers: windows live as long as the
// process and serve again. Tags count the windows of the process, so all ranks must make theirs in the same order.
Window& lease_window(HcclComm comm, const std::string& comm_name, uint32_t rank, uint64_t num_bytes,
                     Releases& releases);

// Open UB_MEM channels to all peers, learn where their windows are, and write that into the workspace at our window's
// start. Only once per window.
void connect_window(HcclComm comm, Window& window, const std::vector<Peer>& peers);

}  // namespace epsim::runtime
