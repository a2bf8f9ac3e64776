// The seam between the API headers (templates, compiled into kernels) and the machine (compiled once).
// Every function acts for the fiber that runs now.
#pragma once

#include <cstdint>
#include <functional>
#include <twin/where.hpp>

// Pipes of an AIV, with the vendor's names. UBMEM and URMA are ours, for reports only.
enum pipe_t : std::uint8_t {
  PIPE_S,
  PIPE_V,
  PIPE_MTE2,
  PIPE_MTE3,
  PIPE_ALL,
  PIPE_UBMEM,
  PIPE_URMA,
  PIPE_HOST
};

// What asc_sync_data_barrier waits for.
enum dsb_t : std::uint8_t { DSB_ALL, DSB_DDR, DSB_UB };

namespace epsim::twin {

enum class Via : std::uint8_t { cached, bypass };
enum class Atomic : std::uint8_t { add, exch, cas, bit_or, max };
enum class Number : std::uint8_t { i32, u32, i64, u64, f32 };

// The old value of an atomic. To a peer it is known when the operation has landed: `ticket` names it.
struct AtomicResult {
  std::uint64_t bits;
  std::uint64_t ticket;
};

struct CopyShape {
  std::uint32_t num_bursts;
  std::uint32_t burst_bytes;
  std::int64_t dst_stride_bytes;
  std::int64_t src_stride_bytes;
};

struct AtomicCall {
  Atomic operation;
  Number number;
  std::uint64_t value;
  std::uint64_t compare;
};

namespace rt {

// Memory. Sizes in bytes; a violation does not return.
void gm_load(std::uint64_t address, void* out, std::uint32_t num_bytes, std::uint32_t align, Via via,
             Where where);
void gm_store(std::uint64_t address, const void* in, std::uint32_t num_bytes, std::uint32_t align, Via via,
              Where where);
AtomicResult gm_atomic(std::uint64_t address, const AtomicCall& call, Where where);
std::uint64_t await_atomic(std::uint64_t ticket);
void ub_load(std::uint64_t offset, void* out, std::uint32_t num_bytes, std::uint32_t align, Via via,
             Where where);
void ub_store(std::uint64_t offset, const void* in, std::uint32_t num_bytes, std::uint32_t align, Via via,
              Where where);
std::uint64_t ub_atomic(std::uint64_t offset, const AtomicCall& call, Where where);
void dcci(std::uint64_t address, Where where);
void dcci_all(Where where);
void dcci_simt_all(Where where);
void data_barrier(dsb_t scope, Where where);

// Core.
std::uint32_t block_idx(Where where);
std::uint32_t block_num(Where where);
std::uint32_t ub_bytes();
std::int64_t system_cycle();
void nop(std::int64_t num_cycles, Where where);
[[noreturn]] void trap(std::int64_t code, Where where);
void init_soc_state(Where where);

// Pipes.
void copy_gm2ub(std::uint64_t ub_offset, std::uint64_t gm_address, const CopyShape& shape, Where where);
void copy_ub2gm(std::uint64_t gm_address, std::uint64_t ub_offset, const CopyShape& shape, Where where);
void set_atomic_add(bool is_on, Where where);
void notify(pipe_t source, pipe_t target, std::int64_t id, Where where);
void wait(pipe_t source, pipe_t target, std::int64_t id, Where where);
void sync_pipe(pipe_t pipe, Where where);
void inter_arrive(pipe_t pipe, std::int64_t id, Where where);
void inter_wait(pipe_t pipe, std::int64_t id, Where where);

// SIMT.
void vf_call(std::int64_t num_threads, std::function<void()> body, Where where);
void syncthreads(Where where);
void threadfence(bool is_block_only, Where where);
void syncwarp(Where where);
std::uint32_t ballot(bool predicate, Where where);
enum class Shuffle : std::uint8_t { index, up, bit_xor };
std::uint64_t shuffle(std::uint64_t bits, Shuffle kind, std::uint32_t operand, Where where);

}  // namespace rt
}  // namespace epsim::twin
