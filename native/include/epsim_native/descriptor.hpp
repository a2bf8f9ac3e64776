// URMA work requests and the tables around them, bit for bit. Shared by kernels, twin and host.
//
// A send queue (SQ) is a ring of 32,768 blocks (WQEBB) of 64 bytes. A request (SQE) has a header of six
// 8-byte words, then one 16-byte gather element (SGE) per local piece. All words are little-endian. Facts:
// deepep-ascend.md sections 3.5, 3.6, 4.1; ascend.md section 7.1. Python's twin of this file:
// reference/memory/descriptor.py; tests/native/test_layout_header.py keeps the two equal.
#pragma once

#include <cstddef>
#include <cstdint>

namespace epsim::urma {

inline constexpr uint32_t kWqebbBytes = 64;
inline constexpr uint32_t kWqebbWords = 8;
inline constexpr uint32_t kSqDepth = 32768;
inline constexpr uint32_t kSqStartStep = 4;  // a kernel's requests start at a multiple of this many blocks
inline constexpr uint32_t kHeaderWords = 6;
inline constexpr uint32_t kSgeWords = 2;
inline constexpr uint32_t kDispatchWqebbs = 4;
inline constexpr uint32_t kDispatchRecords =
    6;  // 12 gather elements, a payload and a metadata piece per record
inline constexpr uint32_t kCombineWqebbs = 2;
inline constexpr uint64_t kMaxWriteBytes = uint64_t{1} << 28;

inline constexpr uint32_t kOpcodeWrite = 0x3;
inline constexpr uint32_t kOpcodeNop = 0x11;

inline constexpr uint32_t kOrderNone = 0;
inline constexpr uint32_t kOrderRelaxed = 1;   // any order among themselves
inline constexpr uint32_t kOrderAfterAll = 2;  // of the NOP that closes a combine
inline constexpr uint32_t kOrderStrong = 5;    // with the fence: after all that came before

struct BitField {
  uint32_t low;
  uint32_t width;
};

// Header word 0. Bits 24-26 and 48-53 are zero.
inline constexpr BitField kWqebbIdx{0, 16};
inline constexpr BitField kOrder{16, 3};
inline constexpr BitField kFence{19, 1};
inline constexpr BitField kSe{20, 1};
inline constexpr BitField kCompletion{21, 1};
inline constexpr BitField kInline{22, 1};
inline constexpr BitField kUdf{23, 1};
inline constexpr BitField kNf{27, 1};
inline constexpr BitField kTokenEnable{28, 1};
inline constexpr BitField kJettyType{29, 2};
inline constexpr BitField kOwner{31, 1};
inline constexpr BitField kHint{32, 8};
inline constexpr BitField kOpcode{40, 8};
inline constexpr BitField kInlineBytes{54, 10};

// Header word 1, and word 0 of a peer's entry, where the number of gather elements is 0.
inline constexpr BitField kTpId{0, 24};
inline constexpr BitField kNumSges{24, 8};
inline constexpr BitField kTokenId{32, 20};

// Completion entry (CQE), first word.
inline constexpr BitField kCqeOwner{2, 1};
inline constexpr BitField kCqeSubstatus{16, 8};
inline constexpr BitField kCqeStatus{24, 8};
inline constexpr uint32_t kCqDoorbellMask = 0xFFFFFF;

constexpr uint64_t put(BitField field, uint64_t value) {
  return (value & ((uint64_t{1} << field.width) - 1)) << field.low;
}

constexpr uint64_t get(BitField field, uint64_t word) {
  return (word >> field.low) & ((uint64_t{1} << field.width) - 1);
}

// 1 on even laps of the ring, 0 on odd ones: a block is new when its bit differs from the lap before.
constexpr uint32_t owner_bit(uint32_t head, uint32_t sq_depth = kSqDepth) {
  return (head & sq_depth) == 0 ? 1 : 0;
}

// A CQE is new when its owner bit differs from the parity of the lap in which the tail is.
constexpr bool is_new_cqe(uint32_t first_word, uint32_t tail, uint32_t cq_depth) {
  return get(kCqeOwner, first_word) != ((tail / cq_depth) & 1);
}

constexpr uint64_t block_flags(uint32_t head, uint32_t opcode, uint32_t sq_depth) {
  return put(kWqebbIdx, head) | put(kOwner, owner_bit(head, sq_depth)) | put(kOpcode, opcode);
}

constexpr uint64_t write_flags(uint32_t head, bool is_last, uint32_t sq_depth = kSqDepth) {
  const uint64_t order =
      is_last ? put(kOrder, kOrderStrong) | put(kFence, 1) | put(kCompletion, 1) : put(kOrder, kOrderRelaxed);
  return block_flags(head, kOpcodeWrite, sq_depth) | order | put(kTokenEnable, 1) | put(kJettyType, 1);
}

constexpr uint64_t nop_flags(uint32_t head, bool is_last, uint32_t sq_depth = kSqDepth) {
  const uint64_t order = is_last ? put(kOrder, kOrderAfterAll) | put(kCompletion, 1) : 0;
  return block_flags(head, kOpcodeNop, sq_depth) | order;
}

// What a request must know of its target.
struct PeerInfo {
  uint64_t tp_and_token_id;  // kTpId, kNumSges (0), kTokenId
  uint64_t eid[2];
  uint64_t token_value;  // low 32 bits; user-defined bits above
  uint64_t window_base;
  uint64_t window_bytes;
};
static_assert(sizeof(PeerInfo) == 48);
inline constexpr uint32_t kPeerInfoWords = sizeof(PeerInfo) / sizeof(uint64_t);

// One send queue with its completion queue; owned by one AIV. Addresses are of GM.
struct JettyInfo {
  uint64_t sq_base;
  uint64_t sq_head_address;          // u64, of the packed head: wqebb_head | num_expected_completions << 32
  uint64_t completion_tail_address;  // u32, completions taken so far
  uint64_t sq_doorbell_address;      // u64 store of wqebb_head
  uint64_t cq_base;
  uint64_t cq_tail_address;      // u32, running count of taken CQEs
  uint64_t cq_doorbell_address;  // u64 store of the tail's low 24 bits
  uint32_t wqebb_head;           // of the packed head, running
  uint32_t num_expected_completions;
  uint32_t jfs_id;
  uint32_t wqebb_bytes;
  uint32_t jfc_id;
  uint32_t cqe_bytes;
  uint32_t cq_depth;
  uint32_t reserved;
};
static_assert(sizeof(JettyInfo) == 88);
inline constexpr uint32_t kJettyInfoWords = sizeof(JettyInfo) / sizeof(uint64_t);

// Device tables of a rank, both arrays of u64 addresses in GM, made by the host (or by the twin's
// init_jetties):
//   jetty table  [J]    address of the JettyInfo that AIV a owns. Its packed head is the word at
//   sq_head_address. peer table    address of the PeerInfo of peer q, at q for q < rank and q - 1 for q
//   > rank.
constexpr uint32_t peer_entry(uint32_t peer, uint32_t rank) { return peer < rank ? peer : peer - 1; }

}  // namespace epsim::urma
