// Communicators, channels and jetties of one rank, whose peers are numbers.
//
// Like the real library it owns the arrays that it returns and overwrites them at the next query, lists memories of
// others beside ours in an order of its own, and cannot forget a memory.
#include <cstring>
#include <memory>

#include <runtime/entity.hpp>

#include "fake.hpp"

using fake::option;
using fake::state;

namespace {

constexpr int32_t kUbCtp = 4, kUbMem = 6;
constexpr uint64_t kRemoteWindow = uint64_t{0x70} << 40, kRemoteJettyWindow = uint64_t{0x60} << 40;

template <class T>
HcommResult init(T* desc) {
  std::memset(static_cast<void*>(desc), 0xFF, sizeof(T));
  return 0;
}

EndpointDesc endpoint_of(uint32_t rank, int32_t protocol, uint32_t plane) {
  EndpointDesc desc;
  init(&desc);
  desc.protocol = static_cast<CommProtocol>(protocol);
  desc.commAddr.type = 3;
  std::memset(desc.commAddr.raws, static_cast<int>(16 * plane + rank), 16);
  desc.commAddr.raws[20] = static_cast<uint8_t>(state().num_calls["HcclRankGraphGetLinks"]);  // behind the EID: noise
  return desc;
}

CommLink link_to(uint32_t me, uint32_t peer, int32_t protocol, uint32_t plane) {
  CommLink link;
  init(&link);
  link.srcEndpointDesc = endpoint_of(me, protocol, plane);
  link.dstEndpointDesc = endpoint_of(peer, protocol, plane);
  link.linkAttr.linkProtocol = static_cast<CommProtocol>(protocol);
  return link;
}

uint32_t layers[3];
std::vector<CommLink> links;

// What one jetty channel looks like in device memory.
struct Record {
  epsim::runtime::ChannelEntity channel{};
  epsim::runtime::SendQueueEntity sq{};
  epsim::runtime::CompletionQueueEntity cq{};
  epsim::runtime::MemoryEntity memories[2]{};
};
std::vector<std::unique_ptr<Record>> records;

Record& make_record(uint64_t number, uint64_t window_bytes) {
  records.push_back(std::make_unique<Record>());
  Record& r = *records.back();
  r.channel.engine = static_cast<int32_t>(option("engine", 4));
  r.channel.protocol = kUbCtp;
  r.channel.num_remote_memories = 2;
  r.channel.num_send_queues = r.channel.num_completion_queues = 1;
  r.channel.remote_memories = reinterpret_cast<uint64_t>(r.memories);
  r.channel.send_queues = reinterpret_cast<uint64_t>(&r.sq);
  r.channel.completion_queues = reinterpret_cast<uint64_t>(&r.cq);
  r.sq = {0, 1000 + number, 2000 + number, 3000 + number, 4000 + number, static_cast<uint32_t>(50 + number), 64,
          static_cast<uint32_t>(option("num_wqebbs", 32768)), static_cast<uint32_t>(0x700 + number),
          {number, number + 1}, {}};
  r.cq = {0, 5000 + number, 0, 6000 + number, 7000 + number, static_cast<uint32_t>(80 + number), 64, 32768, {}};
  r.memories[1] = {1, kRemoteJettyWindow + number, window_bytes, 1, static_cast<uint32_t>(0x900 + number),
                   static_cast<uint32_t>(0xA00 + number), {}};
  return r;
}

struct Memory {
  std::string tag;
  uint64_t num_bytes;
};
std::vector<std::unique_ptr<Memory>> memories;

std::string shown(const EndpointDesc& desc) { return std::to_string(desc.commAddr.raws[0]); }

}  // namespace

extern "C" {

HcommResult EndpointDescInit(EndpointDesc* desc, uint32_t) { return init(desc); }

HcclResult HcclCommGetHandleWithName(const char* name, HcclComm* comm) {
  FAKE_CALL(HcclResult, name);
  static int comms[8];
  *comm = &comms[option("comm", 0)];
  return HCCL_SUCCESS;
}

HcclResult HcclCommMemReg(HcclComm, const char* tag, const CommMem* memory, HcclMemHandle* handle) {
  FAKE_CALL(HcclResult, tag);
  for (const auto& [other, other_tag] : state().tags_by_memory) {
    if (other == memory->addr || other_tag == tag) {
      fake::break_rule("a memory or a tag is registered twice");  // no handle comes back (B-HC6)
    }
  }
  state().tags_by_memory[memory->addr] = tag;
  memories.push_back(std::make_unique<Memory>(Memory{tag, memory->size}));
  *handle = memories.back().get();
  return HCCL_SUCCESS;
}

HcclResult HcclRankGraphGetLayers(HcclComm, uint32_t** out, uint32_t* num_layers) {
  FAKE_CALL(HcclResult);
  layers[0] = 40;
  layers[1] = 41;
  layers[2] = 42;
  *out = layers;
  *num_layers = static_cast<uint32_t>(option("num_layers", 2));
  return HCCL_SUCCESS;
}

HcclResult HcclRankGraphGetLinks(HcclComm, uint32_t layer, uint32_t me, uint32_t peer, CommLink** out,
                                 uint32_t* num_links) {
  FAKE_CALL(HcclResult, "layer " + std::to_string(layer) + " " + std::to_string(me) + "-" + std::to_string(peer));
  if (layer != 41) {
    fake::break_rule("a layer is asked for that is not the second");
  }
  std::memset(layers, 0xEE, sizeof(layers));
  for (CommLink& old : links) {
    init(&old);
  }
  links = {link_to(me, peer, 0, 0)};
  if (option("no_ub_mem_to", -1) != peer) {
    links.push_back(link_to(me, peer, kUbMem, 1));
  }
  if (option("no_ub_ctp_to", -1) != peer) {
    // The order of planes differs by peer: the first link of each would start at another endpoint.
    links.push_back(link_to(me, peer, kUbCtp, 2 + peer % 2));
    if (option("one_plane", 0) == 0) {
      links.push_back(link_to(me, peer, kUbCtp, 3 - peer % 2));
    }
  }
  *out = links.data();
  *num_links = static_cast<uint32_t>(links.size());
  return HCCL_SUCCESS;
}

HcclResult HcclChannelDescInit(HcclChannelDesc* desc, uint32_t) {
  init(desc);
  desc->header.magicWord = 0x0f0f0f0f;
  return HCCL_SUCCESS;
}

HcclResult HcclChannelAcquire(HcclComm, CommEngine engine, const HcclChannelDesc* descs, uint32_t num,
                              ChannelHandle* channels) {
  std::string details = "engine " + std::to_string(engine);
  for (uint32_t i = 0; i < num; ++i) {
    const HcclChannelDesc& desc = descs[i];
    if (desc.header.magicWord != 0x0f0f0f0f || desc.raws[0] != 0xFF || desc.memHandleNum != 1 ||
        desc.channelProtocol != kUbMem || desc.localEndpoint.protocol != kUbMem ||
        desc.remoteEndpoint.protocol != kUbMem) {
      fake::break_rule("a channel descriptor is not whole");
    }
    details += " " + std::to_string(desc.remoteRank) + ":" + shown(desc.localEndpoint) + "-" +
               shown(desc.remoteEndpoint);
    records.push_back(std::make_unique<Record>());
    records.back()->channel.header[0] = desc.remoteRank;
    records.back()->channel.local_memories = reinterpret_cast<uint64_t>(*desc.memHandles);
    channels[i] = reinterpret_cast<ChannelHandle>(&records.back()->channel);
  }
  FAKE_CALL(HcclResult, details);
  return HCCL_SUCCESS;
}

HcclResult HcclChannelGetRemoteMems(HcclComm, ChannelHandle channel, uint32_t* num, CommMem** out, char*** tags) {
  FAKE_CALL(HcclResult);
  static CommMem listed[3];
  static std::string texts[3];
  static char* pointers[4];
  const auto& entity = *reinterpret_cast<const epsim::runtime::ChannelEntity*>(channel);
  const uint64_t peer = entity.header[0];
  const auto& own = *reinterpret_cast<const Memory*>(entity.local_memories);
  const size_t place = peer % 3;  // of ours among the three
  for (size_t i = 0; i < 3; ++i) {
    texts[i] = i == place ? own.tag : i == (place + 1) % 3 ? "HcclBuffer" : own.tag + "1";
    listed[i] = {COMM_MEM_TYPE_DEVICE, reinterpret_cast<void*>(kRemoteWindow + (peer << 32) + (i == place ? 0 : 64)),
                 own.num_bytes};
    pointers[i] = texts[i].data();
  }
  if (option("other_size_at", -1) == static_cast<int64_t>(peer)) {
    listed[place].size /= 2;
  }
  if (option("no_tag_at", -1) == static_cast<int64_t>(peer)) {
    pointers[place] = nullptr;
  }
  *num = 3;
  *out = listed;
  *tags = pointers;
  return HCCL_SUCCESS;
}

HcommResult HcommEndpointCreate(const EndpointDesc* desc, EndpointHandle* endpoint) {
  FAKE_CALL(HcommResult, shown(*desc));
  if (desc->protocol != kUbCtp) {
    fake::break_rule("a jetty's endpoint is not of UB_CTP");
  }
  *endpoint = new char;
  state().planes[*endpoint] = desc->commAddr.raws[0] / 16;
  state().memories_by_endpoint[*endpoint];
  return 0;
}

HcommResult HcommEndpointDestroy(EndpointHandle endpoint) {
  FAKE_CALL(HcommResult);
  if (!state().memories_by_endpoint[endpoint].empty()) {
    fake::break_rule("an endpoint goes before its memory");
  }
  state().memories_by_endpoint.erase(endpoint);
  delete static_cast<char*>(endpoint);
  return 0;
}

HcommResult HcommEndpointGetListenPort(EndpointHandle, uint32_t* port) {
  FAKE_CALL(HcommResult);
  *port = static_cast<uint32_t>(option("port", 40000));
  return 0;
}

HcommResult HcommMemReg(EndpointHandle endpoint, const char* tag, const CommMem* memory, HcommMemHandle* handle) {
  FAKE_CALL(HcommResult, tag);
  *handle = new uint64_t{memory->size};
  state().memories_by_endpoint[endpoint].insert(*handle);
  return 0;
}

HcommResult HcommMemUnreg(EndpointHandle endpoint, HcommMemHandle handle) {
  FAKE_CALL(HcommResult);
  for (const auto& [channel, its_endpoint] : state().endpoint_by_channel) {
    if (its_endpoint == endpoint) {
      fake::break_rule("memory goes before the channels of its endpoint");
    }
  }
  state().memories_by_endpoint[endpoint].erase(handle);
  delete static_cast<uint64_t*>(handle);
  return 0;
}

HcommResult HcommChannelDescInit(HcommChannelDesc* desc, uint32_t) {
  init(desc);
  desc->header.magicWord = 0x0fcf0f0f;
  desc->notifyNum = 0;
  desc->exchangeAllMems = false;
  desc->socket = nullptr;
  return 0;
}

HcommResult HcommChannelConfigCreate(HcommChannelConfig* config) {
  FAKE_CALL(HcommResult);
  *config = new uint32_t{0};
  state().configs.insert(*config);
  return 0;
}

HcommResult HcommChannelConfigDestroy(HcommChannelConfig config) {
  FAKE_CALL(HcommResult);
  state().configs.erase(config);
  delete static_cast<uint32_t*>(config);
  return 0;
}

HcommResult HcommChannelConfigSetInt(HcommChannelConfig config, HcommChannelConfigType, uint32_t value) {
  FAKE_CALL(HcommResult, std::to_string(value));
  *static_cast<uint32_t*>(config) = value;
  return 0;
}

HcommResult HcommChannelCreateWithConfig(EndpointHandle endpoint, CommEngine engine, HcommChannelDesc* desc,
                                         uint32_t, HcommChannelConfig config, ChannelHandle* channel) {
  if (desc->header.magicWord != 0x0fcf0f0f || desc->memHandleNum != 1 || *static_cast<uint32_t*>(config) != 1 ||
      engine != COMM_ENGINE_AIV || !state().memories_by_endpoint[endpoint].contains(*desc->memHandles)) {
    fake::break_rule("a jetty's channel is not described as a shared queue with the memory of its endpoint");
  }
  FAKE_CALL(HcommResult, std::string(desc->channelName) +
                             (desc->role == HCOMM_SOCKET_ROLE_SERVER ? " listens " : " connects ") +
                             std::to_string(desc->port) + " to " + shown(desc->remoteEndpoint));
  // Plane of the far end, which must be that of the endpoint: an address is 16 * plane + rank.
  if (desc->remoteEndpoint.commAddr.raws[0] / 16 != state().planes[endpoint]) {
    fake::break_rule("a channel crosses planes");
  }
  Record& record = make_record(state().endpoint_by_channel.size(), *static_cast<uint64_t*>(*desc->memHandles));
  *channel = reinterpret_cast<ChannelHandle>(&record.channel);
  state().endpoint_by_channel[*channel] = endpoint;
  return 0;
}

HcommResult HcommChannelGetStatus(const ChannelHandle*, uint32_t num, int32_t* statuses) {
  const uint32_t poll = state().num_polls++;
  if (option("logs_polls", 0) != 0 || poll == 0 || state().failing_call == "HcommChannelGetStatus") {
    FAKE_CALL(HcommResult, std::to_string(num));
  }
  if (poll == 0) {
    return HCCL_E_AGAIN;  // statuses are not written
  }
  for (uint32_t i = 0; i < num; ++i) {
    statuses[i] = poll >= option("ready_after", 3) || i + 1 != num ? 0 : 1;
  }
  return 0;
}

HcommResult HcommChannelDestroy(const ChannelHandle* channels, uint32_t) {
  FAKE_CALL(HcommResult);
  if (state().is_running) {
    fake::break_rule("a channel goes while a kernel runs");
  }
  state().endpoint_by_channel.erase(channels[0]);
  return 0;
}
}
