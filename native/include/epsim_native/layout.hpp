// Records, regions and the workspace of the symmetric window, byte for byte. Shared by kernels, twin and
// host.
//
// R ranks, M token capacity of a rank, K top-k, P scale packs of 2 bytes, C vector cores (AIVs).
// Facts: deepep-ascend.md sections 3.1 to 3.4. Python's twin of this file:
// reference/memory/{layout,workspace}.py; tests/native/test_layout_header.py keeps the two equal.
#pragma once

#include <cstddef>
#include <cstdint>

namespace epsim::layout {

inline constexpr uint32_t kMaxRanks = 256;
inline constexpr uint32_t kMaxExperts = 2048;
inline constexpr uint32_t kMaxAivs = 64;
inline constexpr uint32_t kMaxTopk = 32;
inline constexpr uint32_t kSectorInts = 128;
inline constexpr uint32_t kRecordAlignBytes = 32;
inline constexpr uint64_t kWorkspaceBytes = uint64_t{2} << 20;
inline constexpr uint32_t kSignalsBytes = 3072;

template <class T>
constexpr T align_up(T value, T step) {
  return (value + step - 1) / step * step;
}

template <class T>
constexpr T ceil_div(T value, T step) {
  return (value + step - 1) / step;
}

// --- the workspace
// ---------------------------------------------------------------------------------------------------

// Offsets from the window base.
inline constexpr uint64_t kPeerPtrs = 0;           // i64[256], peer window base + offset of this structure
inline constexpr uint64_t kGridSyncCount = 2048;   // u32
inline constexpr uint64_t kBarrierCounter = 2560;  // i64, barriers passed
inline constexpr uint64_t kBarrierSignals = 2568;  // i32[2], arrival sums of the two phases
// i32[2048][128]: one 512 B sector per expert, of which the first word is used
inline constexpr uint64_t kLocalExpertHistogram = kSignalsBytes;
// i32[2048], index = LOCAL expert
inline constexpr uint64_t kRemoteExpertHistogram =
    kLocalExpertHistogram + uint64_t{4} * kMaxExperts * kSectorInts;
// i32[64][256]
inline constexpr uint64_t kLocalRankHistogram = kRemoteExpertHistogram + uint64_t{4} * kMaxExperts;
// i32[256], index = SOURCE rank
inline constexpr uint64_t kRemoteRankHistogram = kLocalRankHistogram + uint64_t{4} * kMaxAivs * kMaxRanks;
// i32[256 + 2048], used in the host's copy alone: rank words, then expert words
inline constexpr uint64_t kHostRankExpertCount = kRemoteRankHistogram + uint64_t{4} * kMaxRanks;
// i32[64 * 2048], rows packed with stride L
inline constexpr uint64_t kEpilogueExpertCounter =
    kHostRankExpertCount + uint64_t{4} * (kMaxRanks + kMaxExperts);
inline constexpr uint64_t kWorkspaceUsedBytes = kEpilogueExpertCounter + uint64_t{4} * kMaxAivs * kMaxExperts;
static_assert(kWorkspaceUsedBytes == 1659904 && kWorkspaceUsedBytes <= kWorkspaceBytes);

constexpr uint64_t local_expert_word(uint32_t expert) {
  return kLocalExpertHistogram + uint64_t{4} * expert * kSectorInts;
}
constexpr uint64_t remote_expert_word(uint32_t local_expert) {
  return kRemoteExpertHistogram + uint64_t{4} * local_expert;
}
constexpr uint64_t local_rank_word(uint32_t aiv, uint32_t dst_rank) {
  return kLocalRankHistogram + uint64_t{4} * (aiv * kMaxRanks + dst_rank);
}
constexpr uint64_t remote_rank_word(uint32_t src_rank) {
  return kRemoteRankHistogram + uint64_t{4} * src_rank;
}
constexpr uint64_t host_rank_word(uint32_t src_rank) { return kHostRankExpertCount + uint64_t{4} * src_rank; }
constexpr uint64_t host_expert_word(uint32_t local_expert) {
  return kHostRankExpertCount + uint64_t{4} * (kMaxRanks + local_expert);
}
constexpr uint64_t epilogue_counter_word(uint32_t aiv, uint32_t local_expert, uint32_t num_local_experts) {
  return kEpilogueExpertCounter + uint64_t{4} * (aiv * num_local_experts + local_expert);
}

// A reduction word: arrivals in the high 8 bits, value in the low 24, so that one addition counts and sums at
// once.
inline constexpr uint32_t kArrivalShift = 24;
inline constexpr uint32_t kMaxArrivals = 255;
inline constexpr uint32_t kMaxValue = (uint32_t{1} << kArrivalShift) - 1;

constexpr uint32_t pack_word(uint32_t arrivals, uint32_t value) { return arrivals << kArrivalShift | value; }
constexpr uint32_t word_arrivals(uint32_t word) { return word >> kArrivalShift; }
constexpr uint32_t word_value(uint32_t word) { return word & kMaxValue; }

// --- records
// ---------------------------------------------------------------------------------------------------------

// Where the fields of a dispatch record begin; all offsets from the record, whose payload comes first.
struct DispatchRecord {
  uint32_t payload_bytes;
  uint32_t scales;   // P packs
  uint32_t ids;      // K i64, GLOBAL and unmasked; absent in a cached record
  uint32_t weights;  // K f32
  uint32_t gid;      // i32; absent in a cached record
  uint32_t bytes;

  // The metadata image is the record without its payload.
  constexpr uint32_t image_bytes() const { return bytes - payload_bytes; }
  constexpr uint32_t metadata() const { return ids; }
};

constexpr DispatchRecord dispatch_record(uint32_t payload_bytes, uint32_t num_scale_packs, uint32_t num_topk,
                                         bool fresh) {
  DispatchRecord record{};
  record.payload_bytes = payload_bytes;
  record.scales = payload_bytes;
  record.ids = record.scales + align_up(2 * num_scale_packs, kRecordAlignBytes);
  record.weights = record.ids + (fresh ? align_up(8 * num_topk, kRecordAlignBytes) : 0);
  record.gid = record.weights + 4 * num_topk;
  record.bytes = record.ids + align_up(record.gid + (fresh ? 4 : 0) - record.ids, kRecordAlignBytes);
  return record;
}

constexpr uint64_t receive_offset(uint32_t src_rank, uint32_t slot, uint32_t num_max_tokens,
                                  uint32_t record_bytes) {
  return (uint64_t{src_rank} * num_max_tokens + slot) * record_bytes;
}

// A combine record: H bf16, then K f32 weights (0 at positions that the contributor does not own).
constexpr uint32_t combine_record_bytes(uint32_t hidden, uint32_t num_topk) {
  return 2 * hidden + align_up(4 * num_topk, kRecordAlignBytes);
}

// Groups of the combine region: the contributing rank when R < K, else the master position. A single
// reduction, where every expanded row travels, has one group per position.
constexpr bool groups_by_rank(uint32_t num_ranks, uint32_t num_topk, bool single_reduction) {
  return num_ranks < num_topk && !single_reduction;
}

constexpr uint64_t combine_offset(uint32_t group, uint32_t token, uint32_t num_max_tokens,
                                  uint32_t record_bytes) {
  return (uint64_t{group} * num_max_tokens + token) * record_bytes;
}

// The window: workspace, EP region (dispatch and combine both start there), region for redundant experts.
inline constexpr uint64_t kEpOffset = kWorkspaceBytes;

}  // namespace epsim::layout
