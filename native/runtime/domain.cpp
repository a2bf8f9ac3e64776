#include <runtime/domain.hpp>

#include <cstring>
#include <thread>

#include <epsim_native/layout.hpp>
#include <runtime/failure.hpp>
#include <runtime/links.hpp>
#include <runtime/window.hpp>

namespace epsim::runtime {
namespace {

constexpr std::chrono::microseconds kPollGap{10};

void check_spec(const DomainSpec& spec) {
  if (spec.num_ranks == 0 || spec.num_ranks > layout::kMaxArrivals || spec.rank >= spec.num_ranks) {
    throw Failure("rank " + std::to_string(spec.rank) + " of " + std::to_string(spec.num_ranks) +
                  " ranks: there must be 1 to 255, and the rank one of them");
  }
  if (spec.num_jetties == 0 || spec.num_jetties > layout::kMaxAivs) {
    throw Failure("num_jetties is " + std::to_string(spec.num_jetties) + ": it must be 1 to 64");
  }
  if (spec.num_ranks % 2 == 1 && spec.num_jetties > spec.num_ranks - 1 && spec.num_ranks > 1) {
    throw Failure("num_ranks is " + std::to_string(spec.num_ranks) +
                  ": it must be even, since jetties beyond the peers pair rank with rank ^ 1");
  }
  if (spec.window_bytes < layout::kWorkspaceBytes || spec.window_bytes % layout::kWorkspaceBytes != 0) {
    throw Failure("window_bytes is " + std::to_string(spec.window_bytes) + ": it must be a multiple of 2 MiB");
  }
}

}  // namespace

Domain::Domain(const DomainSpec& spec, const AllGather& all_gather) {
  check_spec(spec);
  const Clock::time_point deadline = Clock::now() + spec.cpu_timeout;
  HcclComm comm = nullptr;
  EPSIM_CALL(HcclCommGetHandleWithName, spec.comm_name.c_str(), &comm);
  Window& window = lease_window(comm, spec.comm_name, spec.rank, spec.window_bytes, releases_);
  addresses_.window = reinterpret_cast<uint64_t>(window.memory);
  const std::vector<Peer> peers =
      spec.num_ranks == 1 ? std::vector<Peer>{} : find_peers(comm, spec.rank, spec.num_ranks);
  connect_window(comm, window, peers);
  open_host_workspace();
  if (!peers.empty()) {
    const auto channels = open_jetties(window, peers, spec.num_jetties, all_gather, deadline, releases_);
    const Tables tables = make_tables(channels, spec.num_jetties, spec.num_ranks - 1, releases_);
    addresses_.jetty_table = tables.jetty_table;
    addresses_.peer_table = tables.peer_table;
  }
  // Last in, first out: nothing goes while a kernel may use it. Kernels have drained their queues when they end.
  releases_.add("aclrtSynchronizeDevice", [] { return aclrtSynchronizeDevice(); });
}

void Domain::open_host_workspace() {
  void* host = nullptr;
  EPSIM_CALL(aclrtMallocHost, &host, layout::kWorkspaceBytes);
  releases_.add("aclrtFreeHost", [host] { return aclrtFreeHost(host); });
  std::memset(host, 0, layout::kWorkspaceBytes);
  void* device = nullptr;
  EPSIM_CALL(aclrtHostRegister, host, layout::kWorkspaceBytes, ACL_HOST_REGISTER_MAPPED, &device);
  releases_.add("aclrtHostUnregister", [host] { return aclrtHostUnregister(host); });
  addresses_.host_workspace = reinterpret_cast<uint64_t>(device);
  addresses_.host_workspace_on_host = reinterpret_cast<uint64_t>(host);
}

void Domain::wait_words(uint64_t offset, uint32_t num_words, uint32_t mask, uint32_t value,
                        std::chrono::milliseconds timeout) const {
  const Clock::time_point deadline = Clock::now() + timeout;
  const auto* words = reinterpret_cast<const volatile uint32_t*>(addresses_.host_workspace_on_host + offset);
  for (uint32_t i = 0; i < num_words; ++i) {
    // Volatile: the device writes them behind the compiler's back, each one once.
    while ((words[i] & mask) != value) {
      if (Clock::now() >= deadline) {
        throw Failure("word " + std::to_string(i) + " of " + std::to_string(num_words) +
                      " counts is not there within the CPU time limit: it reads " + std::to_string(words[i]));
      }
      std::this_thread::sleep_for(kPollGap);
    }
  }
}

std::optional<Failure> Domain::close() { return releases_.run(); }

}  // namespace epsim::runtime
