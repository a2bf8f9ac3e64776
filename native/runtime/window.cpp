#include <runtime/window.hpp>

#include <memory>
#include <mutex>
#include <utility>

#include <epsim_native/layout.hpp>
#include <runtime/failure.hpp>

namespace epsim::runtime {
namespace {

// Kernels use no notifies; 3 is what the public code asks for that runs on a 950 (spec/ascend.md 6.1, reason unsure).
constexpr uint32_t kNumNotifies = 3;

std::mutex mutex;
std::vector<std::unique_ptr<Window>> windows;
uint64_t num_tags = 0;

Window* find_free(HcclComm comm, uint32_t rank, uint64_t num_bytes) {
  for (const auto& window : windows) {
    if (!window->is_leased && window->comm == comm && window->rank == rank && window->num_bytes == num_bytes) {
      return window.get();
    }
  }
  return nullptr;
}

Window& make_window(HcclComm comm, const std::string& comm_name, uint32_t rank, uint64_t num_bytes) {
  auto window = std::make_unique<Window>();
  window->comm = comm;
  window->rank = rank;
  window->num_bytes = num_bytes;
  window->tag = "epsim/" + comm_name + "/" + std::to_string(num_tags++);
  EPSIM_CALL(aclrtMalloc, &window->memory, num_bytes, ACL_MEM_MALLOC_HUGE_FIRST);
  CommMem memory{};
  memory.type = COMM_MEM_TYPE_DEVICE;
  memory.addr = window->memory;
  memory.size = num_bytes;
  const int64_t status = HcclCommMemReg(comm, window->tag.c_str(), &memory, &window->handle);
  if (status != 0) {
    aclrtFree(window->memory);  // nobody knows it yet
    throw Failure("HcclCommMemReg", status);
  }
  windows.push_back(std::move(window));
  return *windows.back();
}

HcclChannelDesc describe(const Peer& peer, HcclMemHandle* handle) {
  HcclChannelDesc desc;
  EPSIM_CALL(HcclChannelDescInit, &desc, 1);  // fills it with 0xFF: absent fields must stay so
  desc.remoteRank = peer.rank;
  desc.channelProtocol = kUbMem;
  for (auto [end, from] : {std::pair{&desc.localEndpoint, &peer.ub_mem.srcEndpointDesc},
                           std::pair{&desc.remoteEndpoint, &peer.ub_mem.dstEndpointDesc}}) {
    end->protocol = from->protocol;
    end->commAddr = from->commAddr;
    end->loc = from->loc;
  }
  desc.notifyNum = kNumNotifies;
  desc.memHandles = handle;
  desc.memHandleNum = 1;
  return desc;
}

// Every memory that was exchanged is listed, HCCL's own among them, in any order: only the tag tells (6.1).
uint64_t find_remote(HcclComm comm, ChannelHandle channel, const Window& window, uint32_t peer) {
  uint32_t num_memories = 0;
  CommMem* memories = nullptr;
  char** tags = nullptr;
  EPSIM_CALL(HcclChannelGetRemoteMems, comm, channel, &num_memories, &memories, &tags);
  for (uint32_t i = 0; memories != nullptr && tags != nullptr && i < num_memories; ++i) {
    if (tags[i] == nullptr || window.tag != tags[i]) {
      continue;
    }
    if (memories[i].size != window.num_bytes) {
      throw Failure("the window " + window.tag + " of rank " + std::to_string(peer) + " has " +
                    std::to_string(memories[i].size) + " bytes: it must have " + std::to_string(window.num_bytes));
    }
    return reinterpret_cast<uint64_t>(memories[i].addr);
  }
  throw Failure("rank " + std::to_string(peer) + " has no memory of tag " + window.tag +
                ": all ranks must make their buffers in the same order");
}

}  // namespace

Window& lease_window(HcclComm comm, const std::string& comm_name, uint32_t rank, uint64_t num_bytes,
                     Releases& releases) {
  const std::lock_guard lock(mutex);
  Window* found = find_free(comm, rank, num_bytes);
  Window& window = found != nullptr ? *found : make_window(comm, comm_name, rank, num_bytes);
  window.is_leased = true;
  releases.add("lease", [&window] {
    const std::lock_guard again(mutex);
    window.is_leased = false;
    return 0;
  });
  EPSIM_CALL(aclrtMemset, window.memory, num_bytes, 0, num_bytes);
  return window;
}

void connect_window(HcclComm comm, Window& window, const std::vector<Peer>& peers) {
  if (window.bases.empty()) {
    std::vector<HcclChannelDesc> descs;
    for (const Peer& peer : peers) {
      descs.push_back(describe(peer, &window.handle));
    }
    std::vector<uint64_t> bases(peers.size() + 1);
    bases[window.rank] = reinterpret_cast<uint64_t>(window.memory);
    std::vector<ChannelHandle> channels(peers.size());
    if (!peers.empty()) {
      // These channels go with the communicator: HcclChannelDestroy takes none of the AIV engine.
      EPSIM_CALL(HcclChannelAcquire, comm, COMM_ENGINE_AIV, descs.data(), static_cast<uint32_t>(descs.size()),
                 channels.data());
    }
    for (size_t i = 0; i < peers.size(); ++i) {
      bases[peers[i].rank] = find_remote(comm, channels[i], window, peers[i].rank);
    }
    window.bases = bases;
  }
  const uint64_t num_bytes = window.bases.size() * sizeof(uint64_t);
  EPSIM_CALL(aclrtMemcpy, static_cast<uint8_t*>(window.memory) + layout::kPeerPtrs, num_bytes, window.bases.data(),
             num_bytes, ACL_MEMCPY_HOST_TO_DEVICE);
}

}  // namespace epsim::runtime
