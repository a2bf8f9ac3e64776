// One request of a send queue: read from its blocks, checked, and turned into pieces that can land one by
// one.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include <epsim_native/descriptor.hpp>
#include <twin/violation.hpp>

namespace epsim::twin {

// Beside the opcodes of descriptor.hpp. Between header and gather elements lie four words: token id (20 bits)
// and token value << 32, address, value to store there, nothing (ascend.md 7.1: token, address, 64-bit data;
// 48 + 32 + 16 bytes).
inline constexpr std::uint32_t kOpcodeWriteWithNotify = 0x5;
inline constexpr std::uint32_t kNotifyWords = 4;
inline constexpr std::uint32_t kMaxSqeBlocks = 4;
inline constexpr std::uint32_t kMaxSges = 2 * urma::kDispatchRecords;

struct UrmaPeer {
  int rank;
  urma::PeerInfo info;
};

// A local range and where it lands.
struct UrmaPiece {
  std::uint64_t source;
  std::uint64_t target;
  std::uint64_t num_bytes;
};

struct UrmaRequest {
  std::uint32_t head = 0;  // running number of its first block
  std::uint32_t num_blocks = 1;
  std::uint32_t opcode = urma::kOpcodeNop;
  std::uint32_t order = urma::kOrderNone;
  bool has_fence = false;
  bool wants_completion = false;
  std::uint64_t remote_address = 0;
  std::uint64_t num_bytes = 0;
  std::uint32_t num_sges = 0;
  std::vector<UrmaPiece> pieces;
  std::vector<std::uint8_t> inline_bytes;  // a payload that the request itself carries
  std::uint64_t notify_address = 0;        // 0 = none
  std::uint64_t notify_value = 0;

  // A word that lands whole, so that the receiver may poll it: a flag.
  bool is_word() const {
    return pieces.size() == 1 && (num_bytes == 4 || num_bytes == 8) && remote_address % num_bytes == 0;
  }
  // Waits for the earlier ones of its queue: with the fence for all, else for those that have an order.
  bool is_strong() const { return order == urma::kOrderStrong || order == urma::kOrderAfterAll; }
  // No later request waits for it unless that one has the fence. A NOP has nothing that could be late.
  bool is_loose() const { return order == urma::kOrderNone && opcode != urma::kOpcodeNop; }
};

// What a request is checked against.
struct UrmaRules {
  int rank;
  std::uint32_t sq_depth;
  std::uint64_t own_eid[2];
  std::vector<UrmaPeer> peers;
};

using UrmaBlock = std::array<std::uint64_t, urma::kWqebbWords>;
using ReadBlock = std::function<UrmaBlock(std::uint32_t head)>;

// Read the request whose first block is `head`; it must end at or before block `end`. Violations are raised
// at `site`.
UrmaRequest parse_request(const UrmaRules& rules, std::uint32_t head, std::uint32_t end,
                          const ReadBlock& read_block, const Site& site);

}  // namespace epsim::twin
