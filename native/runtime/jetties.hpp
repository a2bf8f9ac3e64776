// Send queues of a rank, one jetty per vector core, and the tables by which kernels find them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include <runtime/cann.hpp>
#include <runtime/links.hpp>
#include <runtime/releases.hpp>
#include <runtime/window.hpp>

namespace epsim::runtime {

using Clock = std::chrono::steady_clock;

// Gather `num_bytes` of every rank at `all`, in the order of ranks. Throws a Failure.
using AllGather = std::function<void(const void* own, void* all, uint64_t num_bytes)>;

struct Tables {
  uint64_t jetty_table = 0;  // see descriptor.hpp
  uint64_t peer_table = 0;
};

// Open the jetties of a rank. `releases` closes them in this order: channels, memory, endpoints.
//
// Channel i belongs to jetty i mod J. The first R - 1 lead to the peers in ascending order, and since a request names
// its peer by itself, any jetty may then send to any peer. Jetties beyond them own a channel to rank ^ 1.
// Returns max(J, R - 1) channels, all of them ready. Throws when they are not by `deadline`.
std::vector<ChannelHandle> open_jetties(const Window& window, const std::vector<Peer>& peers, uint32_t num_jetties,
                                        const AllGather& all_gather, Clock::time_point deadline, Releases& releases);

// Read what the channels point to and write the two tables into device memory, which `releases` frees.
Tables make_tables(const std::vector<ChannelHandle>& channels, uint32_t num_jetties, uint32_t num_peers,
                   Releases& releases);

}  // namespace epsim::runtime
