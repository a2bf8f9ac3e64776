// What a kernel is specialised on. One list of fields makes both forms of it.
//
// On the twin a kernel is compiled once and takes a RuntimeConfig; on the device it is compiled per shape and
// takes a StaticConfig, whose members have the same names and are constants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace epsim {

// X(type, name). Counts and switches of every kernel; a kernel reads those that concern it.
//   num_ranks             R
//   num_experts           E of the group, R divides it; expert e is on rank e / (E / R)
//   num_topk              K, 1..32
//   num_max_tokens        M, token capacity of a rank
//   expert_alignment      A, rows to which an expert's block is padded
//   num_aivs              C, blocks of the launch
//   num_threads           lanes of a VF, a multiple of 32: 512 on the device
//   hidden                H elements
//   payload_bytes         of a dispatched token: H for fp8, 2 H for bf16
//   num_scale_packs       P 2-byte packs of a dispatched token, 0 for bf16
//   ub_bytes              of unified buffer that the kernel may use
//   sq_depth              blocks of a jetty's ring, a power of two: 32,768 on the device
//   cached                a dispatch over an earlier routing: no ids, no counts
//   cpu_sync              the host reads the counts of a fresh dispatch
//   barrier_in_prologue   the exit barrier stands at the end of the sending kernel, not in the epilogue
//   zero_padding          gaps of expert blocks are zeroed
//   single_reduction      combine sends every expanded row; nothing is summed before it is at home
//   rotate_by_aiv         AIV a starts at destination rank + 1 + a, not rank + 1 (dispatch)
//   early_doorbells       dispatch sends while requests are written, before counts are exchanged
#define EPSIM_CONFIG_FIELDS(X)     \
  X(uint64_t, timeout_cycles)      \
  X(uint32_t, num_ranks)           \
  X(uint32_t, num_experts)         \
  X(uint32_t, num_topk)            \
  X(uint32_t, num_max_tokens)      \
  X(uint32_t, expert_alignment)    \
  X(uint32_t, num_aivs)            \
  X(uint32_t, num_threads)         \
  X(uint32_t, hidden)              \
  X(uint32_t, payload_bytes)       \
  X(uint32_t, num_scale_packs)     \
  X(uint32_t, ub_bytes)            \
  X(uint32_t, sq_depth)            \
  X(uint32_t, cached)              \
  X(uint32_t, cpu_sync)            \
  X(uint32_t, barrier_in_prologue) \
  X(uint32_t, zero_padding)        \
  X(uint32_t, single_reduction)    \
  X(uint32_t, rotate_by_aiv)       \
  X(uint32_t, early_doorbells)

struct RuntimeConfig {
#define EPSIM_MEMBER(type, name) type name;
  EPSIM_CONFIG_FIELDS(EPSIM_MEMBER)
#undef EPSIM_MEMBER
};
static_assert(sizeof(RuntimeConfig) % sizeof(uint64_t) == 0);

// Takes the fields in their order, as integers: what a generated source can spell.
template <uint64_t... kValues>
struct StaticConfig {
 private:
  static constexpr RuntimeConfig from(const uint64_t (&values)[sizeof...(kValues)]) {
    uint32_t next = 0;
    return {
#define EPSIM_MEMBER(type, name) static_cast<type>(values[next++]),
        EPSIM_CONFIG_FIELDS(EPSIM_MEMBER)
#undef EPSIM_MEMBER
    };
  }
  static constexpr RuntimeConfig kConfig = from({kValues...});

 public:
#define EPSIM_MEMBER(type, name) static constexpr type name = kConfig.name;
  EPSIM_CONFIG_FIELDS(EPSIM_MEMBER)
#undef EPSIM_MEMBER
};

// What both forms imply.
template <class Cfg>
constexpr uint32_t num_local_experts(const Cfg& cfg) {
  return cfg.num_experts / cfg.num_ranks;
}

}  // namespace epsim
