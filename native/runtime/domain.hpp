// All that a buffer of a rank needs of the host: window, host workspace, jetties, tables.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <runtime/jetties.hpp>
#include <runtime/releases.hpp>

namespace epsim::runtime {

struct DomainSpec {
  std::string comm_name;  // of an HCCL communicator of this process, as torch_npu made it
  uint32_t rank = 0;
  uint32_t num_ranks = 1;
  uint64_t window_bytes = 0;  // with the workspace
  uint32_t num_jetties = 1;   // vector cores that send
  std::chrono::milliseconds cpu_timeout{0};  // for ports and channels
};

struct Addresses {
  uint64_t window = 0;
  uint64_t host_workspace = 0;         // as the device reaches it
  uint64_t host_workspace_on_host = 0;
  uint64_t jetty_table = 0;  // 0 when R = 1
  uint64_t peer_table = 0;
};

class Domain {
 public:
  // Collective. Throws a Failure, after everything acquired so far was released.
  Domain(const DomainSpec& spec, const AllGather& all_gather);

  const Addresses& addresses() const { return addresses_; }

  // Wait until (word & mask) == value for `num_words` 32-bit words of the host workspace at `offset`.
  void wait_words(uint64_t offset, uint32_t num_words, uint32_t mask, uint32_t value,
                  std::chrono::milliseconds timeout) const;

  // Release everything: device quiet, tables, channels, memory, endpoints, host workspace, window. The first failure
  // is returned, the rest was released all the same.
  std::optional<Failure> close();

 private:
  void open_host_workspace();

  Addresses addresses_;
  Releases releases_;
};

}  // namespace epsim::runtime
