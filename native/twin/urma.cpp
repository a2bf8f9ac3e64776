// Set-up of URMA: queues and tables of every rank in GM, one engine per jetty.
//
// Per rank: "jetty_table" and "peer_table" (u64 addresses, as descriptor.hpp says), "jetty_info" and
// "peer_info" (what they point to), "sq<j>" and "cq<j>" (rings). A group of one rank has none of them.
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <utility>

#include <twin/urma_jetty.hpp>

namespace epsim::twin {

namespace {

constexpr std::uint32_t kCqeBytes = 64;
constexpr std::int64_t kCqDepth = 64;
constexpr std::int64_t kMaxCqDepth = std::int64_t{1} << 23;  // the CQ doorbell counts with 24 bits

// Per jetty in "jetty_info": the entry of the table, then the words around the queues, each in a line of its
// own.
constexpr std::uint64_t kJettyBlockBytes = 512;
constexpr std::uint64_t kCompletionTailOffset = 128;
constexpr std::uint64_t kCqTailOffset = 192;
constexpr std::uint64_t kDoorbellOffset = 256;
constexpr std::uint64_t kCqDoorbellOffset = 320;

// Made-up identities: different for every rank and every pair, so that a mixed-up entry is seen.
constexpr std::uint64_t kEidPrefix = 0x4550'5349'4d00'0000;
constexpr std::uint64_t kTokenIdBase = 0x5'0000;
constexpr std::uint64_t kTokenValueBase = 0xa5c3'0000;

std::uint64_t u(int value) { return static_cast<std::uint64_t>(value); }

std::uint32_t ring_depth(const Bus& bus, const char* name, std::int64_t fallback, std::int64_t most) {
  const std::int64_t depth = bus.parameter(name, fallback);
  if (depth < 1 || depth > most || (depth & (depth - 1)) != 0) {
    throw std::invalid_argument(std::string(name) + " must be a power of two from 1 to " +
                                std::to_string(most));
  }
  return static_cast<std::uint32_t>(depth);
}

urma::PeerInfo peer_info(int rank, int peer, const AllocationInfo& window) {
  urma::PeerInfo info{};
  info.tp_and_token_id = urma::put(urma::kTpId, (u(rank) << 12 | u(peer)) + 1) |
                         urma::put(urma::kTokenId, kTokenIdBase + u(peer));
  info.eid[0] = kEidPrefix | u(peer);
  info.eid[1] = ~info.eid[0];
  info.token_value = kTokenValueBase + u(peer);
  info.window_base = window.base;
  info.window_bytes = window.num_bytes;
  return info;
}

// Everything about the peers of a rank; its own identity in own_eid.
UrmaRules make_rules(const Bus& bus, int rank, std::uint32_t sq_depth) {
  UrmaRules rules{rank, sq_depth, {}, {}};
  for (int peer = 0; peer < bus.num_ranks(); ++peer) {
    const auto window = bus.find(peer, "window");
    if (!window) {
      throw std::invalid_argument("rank " + std::to_string(peer) + " has no allocation named window");
    }
    const urma::PeerInfo info = peer_info(rank, peer, *window);
    if (peer == rank) {
      rules.own_eid[0] = info.eid[0];
      rules.own_eid[1] = info.eid[1];
    } else {
      rules.peers.push_back({peer, info});
    }
  }
  return rules;
}

// Fill a table of addresses of entries that lie `stride` bytes apart.
void fill_table(Bus& bus, int rank, const std::string& name, std::uint64_t first, std::uint64_t stride,
                int num) {
  const std::uint64_t table = bus.allocate(rank, u(num) * sizeof(std::uint64_t), name, true);
  for (int i = 0; i < num; ++i) {
    const std::uint64_t entry = first + u(i) * stride;
    bus.poke(table + u(i) * sizeof(entry), &entry, sizeof(entry));
  }
}

void fill_peers(Bus& bus, const UrmaRules& rules) {
  const auto num = static_cast<int>(rules.peers.size());
  const std::uint64_t base = bus.allocate(rules.rank, u(num) * sizeof(urma::PeerInfo), "peer_info", true);
  for (int i = 0; i < num; ++i) {
    bus.poke(base + u(i) * sizeof(urma::PeerInfo), &rules.peers[u(i)].info, sizeof(urma::PeerInfo));
  }
  fill_table(bus, rules.rank, "peer_table", base, sizeof(urma::PeerInfo), num);
}

JettyPlan make_jetty(Bus& bus, const UrmaRules& rules, int idx, std::uint64_t block, std::uint32_t cq_depth) {
  const std::string suffix = std::to_string(idx);
  urma::JettyInfo info{};
  info.sq_base =
      bus.allocate(rules.rank, std::uint64_t{rules.sq_depth} * urma::kWqebbBytes, "sq" + suffix, true);
  info.sq_head_address = block + offsetof(urma::JettyInfo, wqebb_head);
  info.completion_tail_address = block + kCompletionTailOffset;
  info.sq_doorbell_address = block + kDoorbellOffset;
  info.cq_base = bus.allocate(rules.rank, std::uint64_t{cq_depth} * kCqeBytes, "cq" + suffix, true);
  info.cq_tail_address = block + kCqTailOffset;
  info.cq_doorbell_address = block + kCqDoorbellOffset;
  info.jfs_id = info.jfc_id = static_cast<std::uint32_t>(idx + 1);
  info.wqebb_bytes = urma::kWqebbBytes;
  info.cqe_bytes = kCqeBytes;
  info.cq_depth = cq_depth;
  bus.poke(block, &info, sizeof(info));
  return {rules.rank, idx, info, rules};
}

void attach_jetty(Bus& bus, JettyPlan plan) {
  const urma::JettyInfo info = plan.info;
  auto engine = std::make_unique<Jetty>(bus, std::move(plan));
  Jetty* jetty = engine.get();  // lives as long as the bus, like its listeners
  bus.watch(info.sq_doorbell_address, 8, [jetty](const Store& store) { jetty->hear_doorbell(store); });
  bus.watch(info.cq_doorbell_address, 8, [jetty](const Store& store) { jetty->hear_cq_doorbell(store); });
  bus.attach(std::move(engine));
}

}  // namespace

void init_jetties(Bus& bus) {
  const std::uint32_t sq_depth = ring_depth(bus, "sq_depth", urma::kSqDepth, urma::kSqDepth);
  const std::uint32_t cq_depth = ring_depth(bus, "cq_depth", kCqDepth, kMaxCqDepth);
  for (int rank = 0; bus.num_ranks() > 1 && rank < bus.num_ranks(); ++rank) {
    const UrmaRules rules = make_rules(bus, rank, sq_depth);
    fill_peers(bus, rules);
    const std::uint64_t blocks = bus.allocate(rank, u(bus.num_aivs()) * kJettyBlockBytes, "jetty_info", true);
    fill_table(bus, rank, "jetty_table", blocks, kJettyBlockBytes, bus.num_aivs());
    for (int idx = 0; idx < bus.num_aivs(); ++idx) {
      attach_jetty(bus, make_jetty(bus, rules, idx, blocks + u(idx) * kJettyBlockBytes, cq_depth));
    }
  }
}

}  // namespace epsim::twin
