#include <runtime/jetties.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <thread>

#include <runtime/failure.hpp>

namespace epsim::runtime {
namespace {

constexpr std::chrono::milliseconds kPollGap{1};

struct Jetty {
  EndpointHandle endpoint = nullptr;
  HcommMemHandle memory = nullptr;
};

Jetty open_jetty(const EndpointDesc& local, const Window& window, Releases& releases) {
  Jetty jetty;
  EPSIM_CALL(HcommEndpointCreate, &local, &jetty.endpoint);
  releases.add("HcommEndpointDestroy", [endpoint = jetty.endpoint] { return HcommEndpointDestroy(endpoint); });
  CommMem memory{};
  memory.type = COMM_MEM_TYPE_DEVICE;
  memory.addr = window.memory;
  memory.size = window.num_bytes;
  EPSIM_CALL(HcommMemReg, jetty.endpoint, window.tag.c_str(), &memory, &jetty.memory);
  releases.add("HcommMemUnreg", [jetty] { return HcommMemUnreg(jetty.endpoint, jetty.memory); });
  return jetty;
}

EndpointDesc describe_local(const Peer& peer) {
  EndpointDesc local;
  EPSIM_CALL(EndpointDescInit, &local, 1);
  local.protocol = peer.ub_ctp.srcEndpointDesc.protocol;
  local.commAddr = peer.ub_ctp.srcEndpointDesc.commAddr;
  local.loc = peer.ub_ctp.srcEndpointDesc.loc;
  return local;
}

// One port per rank, that of its first jetty: all jetties have one local address, and port 0 would mean a fixed one
// that buffers would share. That one listener serves all jetties is what public code relies on (unsure).
std::vector<uint16_t> exchange_ports(EndpointHandle endpoint, uint32_t num_ranks, const AllGather& all_gather) {
  uint32_t port = 0;
  EPSIM_CALL(HcommEndpointGetListenPort, endpoint, &port);
  if (port == 0 || port > std::numeric_limits<uint16_t>::max()) {
    throw Failure("the listen port is " + std::to_string(port) + ": it must be 1 to 65535");
  }
  const auto own = static_cast<uint16_t>(port);
  std::vector<uint16_t> ports(num_ranks);
  all_gather(&own, ports.data(), sizeof(own));
  return ports;
}

// Both ends of a channel give it one name.
std::string name_of(const Window& window, uint32_t peer, uint32_t pair_idx) {
  const std::string name = window.tag + "/" + std::to_string(std::min(window.rank, peer)) + "-" +
                           std::to_string(std::max(window.rank, peer)) + "/" + std::to_string(pair_idx);
  if (name.size() > HCOMM_CHANNEL_NAME_MAX_LEN) {
    throw Failure("the channel name " + name + " is too long: the group's name must be shorter");
  }
  return name;
}

ChannelHandle open_channel(Jetty& jetty, const Peer& peer, const Window& window, const std::string& name,
                           const std::vector<uint16_t>& ports, HcommChannelConfig config, Releases& releases) {
  const bool listens = window.rank < peer.rank;
  HcommChannelDesc desc;
  EPSIM_CALL(HcommChannelDescInit, &desc, 1);
  desc.remoteEndpoint.protocol = peer.ub_ctp.dstEndpointDesc.protocol;
  desc.remoteEndpoint.commAddr = peer.ub_ctp.dstEndpointDesc.commAddr;
  desc.remoteEndpoint.loc = peer.ub_ctp.dstEndpointDesc.loc;
  desc.memHandles = &jetty.memory;
  desc.memHandleNum = 1;
  desc.role = listens ? HCOMM_SOCKET_ROLE_SERVER : HCOMM_SOCKET_ROLE_CLIENT;
  desc.port = ports[listens ? window.rank : peer.rank];
  desc.channelName = name.c_str();
  ChannelHandle channel = 0;
  EPSIM_CALL(HcommChannelCreateWithConfig, jetty.endpoint, COMM_ENGINE_AIV, &desc, 1, config, &channel);
  releases.add("HcommChannelDestroy", [channel] { return HcommChannelDestroy(&channel, 1); });
  return channel;
}

// A channel is ready when its status is 0. Some releases return HCCL_E_AGAIN meanwhile, others success and a status;
// what a status other than 0 means is nowhere said, so all of them wait (unsure).
void wait_until_ready(const std::vector<ChannelHandle>& channels, Clock::time_point deadline) {
  std::vector<int32_t> statuses(channels.size());
  while (true) {
    const int64_t result =
        HcommChannelGetStatus(channels.data(), static_cast<uint32_t>(channels.size()), statuses.data());
    if (result != HCCL_E_AGAIN) {
      check("HcommChannelGetStatus", result);
      if (std::all_of(statuses.begin(), statuses.end(), [](int32_t status) { return status == 0; })) {
        return;
      }
    }
    if (Clock::now() >= deadline) {
      const auto late = std::count_if(statuses.begin(), statuses.end(), [](int32_t status) { return status != 0; });
      throw Failure("channels are not ready within the CPU time limit: " + std::to_string(late) + " of " +
                    std::to_string(channels.size()) + " wait for their peer");
    }
    std::this_thread::sleep_for(kPollGap);
  }
}

}  // namespace

std::vector<ChannelHandle> open_jetties(const Window& window, const std::vector<Peer>& peers, uint32_t num_jetties,
                                        const AllGather& all_gather, Clock::time_point deadline, Releases& releases) {
  const auto num_peers = static_cast<uint32_t>(peers.size());
  const EndpointDesc local = describe_local(peers.front());
  std::vector<Jetty> jetties;
  for (uint32_t i = 0; i < num_jetties; ++i) {
    jetties.push_back(open_jetty(local, window, releases));
  }
  const std::vector<uint16_t> ports = exchange_ports(jetties.front().endpoint, num_peers + 1, all_gather);
  Releases after;  // the configuration is read while channels are made
  HcommChannelConfig config = nullptr;
  EPSIM_CALL(HcommChannelConfigCreate, &config);
  after.add("HcommChannelConfigDestroy", [config] { return HcommChannelConfigDestroy(config); });
  EPSIM_CALL(HcommChannelConfigSetInt, config, HCOMM_CHANNEL_CONFIG_TYPE_IS_SHARED_QUEUE, 1);
  std::vector<ChannelHandle> channels;
  const uint32_t partner = window.rank ^ 1;
  for (uint32_t i = 0; i < std::max(num_jetties, num_peers); ++i) {
    const bool is_pair = i >= num_peers;
    const Peer& peer = peers[is_pair ? (partner < window.rank ? partner : partner - 1) : i];
    const std::string name = name_of(window, peer.rank, is_pair ? i - num_peers + 1 : 0);
    channels.push_back(open_channel(jetties[i % num_jetties], peer, window, name, ports, config, releases));
  }
  wait_until_ready(channels, deadline);
  return channels;
}

}  // namespace epsim::runtime
