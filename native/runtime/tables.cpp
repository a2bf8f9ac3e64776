// From the vendor's records of channels to the tables that kernels read.
#include <cstring>
#include <string>

#include <epsim_native/descriptor.hpp>
#include <runtime/entity.hpp>
#include <runtime/failure.hpp>
#include <runtime/jetties.hpp>

namespace epsim::runtime {
namespace {

template <class T>
T read_device(uint64_t address, const char* what) {
  if (address == 0) {
    throw Failure(std::string("a channel has no ") + what);
  }
  T value;
  EPSIM_CALL(aclrtMemcpy, &value, sizeof(T), reinterpret_cast<const void*>(address), sizeof(T),
             ACL_MEMCPY_DEVICE_TO_HOST);
  return value;
}

template <class T>
uint64_t put_device(const std::vector<T>& values, Releases& releases) {
  const uint64_t num_bytes = values.size() * sizeof(T);
  void* memory = nullptr;
  EPSIM_CALL(aclrtMalloc, &memory, num_bytes, ACL_MEM_MALLOC_HUGE_FIRST);
  releases.add("aclrtFree", [memory] { return aclrtFree(memory); });
  EPSIM_CALL(aclrtMemcpy, memory, num_bytes, values.data(), num_bytes, ACL_MEMCPY_HOST_TO_DEVICE);
  return reinterpret_cast<uint64_t>(memory);
}

// A release with another record must end here, not in a kernel that writes to a wrong doorbell.
ChannelEntity read_channel(ChannelHandle handle) {
  const auto channel = read_device<ChannelEntity>(handle, "handle");
  if (channel.engine != COMM_ENGINE_AIV || channel.protocol != kUbCtp || channel.num_send_queues == 0 ||
      channel.num_completion_queues == 0 || channel.num_remote_memories == 0) {
    throw Failure("the record of a channel reads engine " + std::to_string(channel.engine) + ", protocol " +
                  std::to_string(channel.protocol) + ", " + std::to_string(channel.num_send_queues) +
                  " send queues: this release of CANN has another layout than entity.hpp");
  }
  return channel;
}

urma::JettyInfo jetty_of(const ChannelEntity& channel) {
  const auto sq = read_device<SendQueueEntity>(channel.send_queues, "send queue");
  const auto cq = read_device<CompletionQueueEntity>(channel.completion_queues, "completion queue");
  // Kernels have both numbers compiled in.
  if (sq.num_wqebbs != urma::kSqDepth || sq.wqebb_bytes != urma::kWqebbBytes || cq.num_cqes == 0) {
    throw Failure("a send queue has " + std::to_string(sq.num_wqebbs) + " blocks of " +
                  std::to_string(sq.wqebb_bytes) + " bytes: it must have 32768 of 64");
  }
  urma::JettyInfo info{};
  info.sq_base = sq.ring;
  info.sq_head_address = sq.head_address;
  info.completion_tail_address = sq.tail_address;
  info.sq_doorbell_address = sq.doorbell;
  info.cq_base = cq.ring;
  info.cq_tail_address = cq.tail_address;
  info.cq_doorbell_address = cq.doorbell;
  info.jfs_id = sq.jfs_id;
  info.wqebb_bytes = sq.wqebb_bytes;
  info.jfc_id = cq.jfc_id;
  info.cqe_bytes = cq.cqe_bytes;
  info.cq_depth = cq.num_cqes;
  return info;
}

urma::PeerInfo peer_of(const ChannelEntity& channel) {
  const auto sq = read_device<SendQueueEntity>(channel.send_queues, "send queue");
  // The last memory is the one that was exchanged for this channel.
  const uint64_t address = channel.remote_memories + (channel.num_remote_memories - 1) * sizeof(MemoryEntity);
  const auto memory = read_device<MemoryEntity>(channel.remote_memories == 0 ? 0 : address, "remote memory");
  urma::PeerInfo info{};
  info.tp_and_token_id = urma::put(urma::kTpId, sq.tp_id) | urma::put(urma::kTokenId, memory.token_id);
  std::memcpy(info.eid, sq.remote_eid, sizeof(info.eid));
  info.token_value = memory.token_value;
  info.window_base = memory.address;
  info.window_bytes = memory.num_bytes;
  return info;
}

template <class T>
uint64_t put_table(const std::vector<T>& entries, Releases& releases) {
  const uint64_t first = put_device(entries, releases);
  std::vector<uint64_t> addresses;
  for (size_t i = 0; i < entries.size(); ++i) {
    addresses.push_back(first + i * sizeof(T));
  }
  return put_device(addresses, releases);
}

}  // namespace

Tables make_tables(const std::vector<ChannelHandle>& channels, uint32_t num_jetties, uint32_t num_peers,
                   Releases& releases) {
  std::vector<urma::JettyInfo> jetties;
  std::vector<urma::PeerInfo> peers;
  for (uint32_t i = 0; i < channels.size(); ++i) {
    const ChannelEntity channel = read_channel(channels[i]);
    if (i < num_jetties) {
      jetties.push_back(jetty_of(channel));
    }
    if (i < num_peers) {
      peers.push_back(peer_of(channel));
    }
  }
  return {put_table(jetties, releases), put_table(peers, releases)};
}

}  // namespace epsim::runtime
