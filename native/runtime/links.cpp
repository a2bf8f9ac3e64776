#include <runtime/links.hpp>

#include <cstring>
#include <optional>
#include <string>

#include <runtime/failure.hpp>

namespace epsim::runtime {
namespace {

// Position in the list of layers, not the number of a layer. What the layers of a 950 are is unsure; upstream takes
// the second (deepep-ascend.md 1.2).
constexpr uint32_t kLayerIdx = 1;
// All kinds of addresses fit, an EID fills it; bytes behind it hold whatever the library left there.
constexpr size_t kAddressBytes = 16;

uint32_t find_layer(HcclComm comm) {
  uint32_t* layers = nullptr;
  uint32_t num_layers = 0;
  EPSIM_CALL(HcclRankGraphGetLayers, comm, &layers, &num_layers);
  if (layers == nullptr || num_layers <= kLayerIdx) {
    throw Failure("the rank graph has " + std::to_string(num_layers) + " net layers: it must have at least 2");
  }
  // A value, not a pointer: the next query overwrites the array (B-YU9).
  return layers[kLayerIdx];
}

std::vector<CommLink> links_to(HcclComm comm, uint32_t layer, uint32_t rank, uint32_t peer) {
  CommLink* links = nullptr;
  uint32_t num_links = 0;
  EPSIM_CALL(HcclRankGraphGetLinks, comm, layer, rank, peer, &links, &num_links);
  if (links == nullptr) {
    return {};
  }
  return {links, links + num_links};
}

bool same_endpoint(const EndpointDesc& one, const EndpointDesc& other) {
  return one.protocol == other.protocol && one.commAddr.type == other.commAddr.type &&
         std::memcmp(one.commAddr.raws, other.commAddr.raws, kAddressBytes) == 0;
}

const CommLink& choose(const std::vector<CommLink>& links, CommProtocol protocol, const EndpointDesc* local,
                       uint32_t layer, uint32_t peer) {
  for (const CommLink& link : links) {
    if (link.linkAttr.linkProtocol == protocol && (local == nullptr || same_endpoint(link.srcEndpointDesc, *local))) {
      return link;
    }
  }
  throw Failure("no link of protocol " + std::to_string(protocol) + " to rank " + std::to_string(peer) + " on layer " +
                std::to_string(layer) + (local == nullptr ? "" : " from the local endpoint of the other peers"));
}

}  // namespace

std::vector<Peer> find_peers(HcclComm comm, uint32_t rank, uint32_t num_ranks) {
  const uint32_t layer = find_layer(comm);
  std::vector<Peer> peers;
  std::optional<EndpointDesc> local;
  for (uint32_t peer = 0; peer < num_ranks; ++peer) {
    if (peer == rank) {
      continue;
    }
    const std::vector<CommLink> links = links_to(comm, layer, rank, peer);
    const CommLink& ub_mem = choose(links, kUbMem, nullptr, layer, peer);
    const CommLink& ub_ctp = choose(links, kUbCtp, local ? &*local : nullptr, layer, peer);
    local = ub_ctp.srcEndpointDesc;
    peers.push_back({peer, ub_mem, ub_ctp});
  }
  return peers;
}

}  // namespace epsim::runtime
