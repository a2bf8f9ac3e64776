// Small helpers of the scalar pipe (S) and the numbers that all kernels share.
#pragma once

#include <epsim_native/args.hpp>
#include <epsim_native/asc.hpp>
#include <epsim_native/config.hpp>
#include <epsim_native/descriptor.hpp>
#include <epsim_native/layout.hpp>

namespace epsim {

// Why a kernel stopped; the code of asc_trap.
enum Trap : int32_t {
  kTrapUbTooSmall = 1,
  kTrapTokensOutOfRange = 2,
  kTrapQueueStart = 3,
  kTrapQueueTooSmall = 4,
  kTrapCompletionStatus = 5,
  kTrapTimeout = 6,
};

// Gap between two polls of one word: more requests than that on one address make the device fail.
inline constexpr int64_t kPollCycles = 300;
// Lanes that a VF may have; registers per lane follow from it.
inline constexpr uint32_t kMaxThreads = 512;
inline constexpr uint32_t kWarpLanes = 32;

// Flag ids of short waits that are set and taken at once; each pair of pipes has its own eight. Ids below
// belong to stages of buffers.
inline constexpr int64_t kMomentId = 7;
// Ids of synchronisation between the AIVs of a rank.
inline constexpr int64_t kAllAivsId = 0;
inline constexpr int64_t kRowsZeroId = 1;
inline constexpr int64_t kRowsAddedId = 2;

// Everything that `src` was given so far is done before `dst` goes on. `id` must be free.
__aicore__ void order(pipe_t src, pipe_t dst, int64_t id = kMomentId) {
  asc_sync_notify(src, dst, id);
  asc_sync_wait(src, dst, id);
}

// Copy a struct of 8-byte words out of GM. What it holds was written by the host before the launch.
template <class T>
__aicore__ T read_struct(gm<const T> source) {
  static_assert(sizeof(T) % sizeof(uint64_t) == 0);
  constexpr uint32_t kWords = sizeof(T) / sizeof(uint64_t);
  uint64_t words[kWords];
  const gm<const uint64_t> from(gm_address(source));
  for (uint32_t i = 0; i < kWords; ++i) {
    words[i] = from[i];
  }
  T value;
  __builtin_memcpy(&value, words, sizeof(T));
  return value;
}

// Poll a word that others write until it has a value.
template <class T>
__aicore__ void wait_for_value(gm<const T> word, T wanted, uint64_t timeout_cycles) {
  const int64_t start = asc_get_system_cycle();
  while (asc_load_dev(word) != wanted) {
    if (static_cast<uint64_t>(asc_get_system_cycle() - start) > timeout_cycles) {
      asc_trap(kTrapTimeout);
    }
    asc_nop(kPollCycles);
  }
}

// All AIVs of the rank have come here, and what each one's scalar pipe knows to be done is known to all.
__aicore__ void sync_aivs() {
  asc_sync_data_barrier(DSB_ALL);
  asc_sync_inter_arrive(PIPE_S, kAllAivsId);
  asc_sync_inter_wait(PIPE_S, kAllAivsId);
}

// Places areas of the unified buffer one after the other, each 32 B aligned.
struct UbPlanner {
  uint32_t end = 0;

  constexpr uint32_t take(uint32_t num_bytes) {
    const uint32_t start = end;
    end = layout::align_up(end + num_bytes, layout::kRecordAlignBytes);
    return start;
  }
};

// The tokens [first, first + count) of one AIV: shares are of equal length, the last ones may be short or
// empty.
struct Share {
  uint32_t first;
  uint32_t count;
};

constexpr Share share_of(uint32_t total, uint32_t length, uint32_t aiv) {
  const uint64_t first = uint64_t{aiv} * length;
  if (first >= total) {
    return {total, 0};
  }
  const auto start = static_cast<uint32_t>(first);
  return {start, total - start < length ? total - start : length};
}

constexpr uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
constexpr uint32_t most(uint32_t a, uint32_t b) { return a > b ? a : b; }

}  // namespace epsim
