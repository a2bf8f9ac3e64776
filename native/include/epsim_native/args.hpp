// Arguments of the EP kernels: one struct in GM per launch, written by the host before it.
//
// The config is at the head; on the device it is compiled in and the head is not read. All addresses are of
// GM, 0 where an optional tensor is absent. Shapes: n own tokens, K top-k, H hidden, P scale packs, N
// received records, X expanded rows, R ranks, L local experts, C AIVs.
#pragma once

#include <cstdint>

#include <epsim_native/config.hpp>

namespace epsim {

// Where a rank finds its window, its peers and its queues.
struct Comm {
  uint64_t window;          // base of the symmetric window
  uint64_t host_workspace;  // device address of the host's copy of the workspace
  uint64_t jetty_table;     // u64 [C], see descriptor.hpp; 0 when R = 1
  uint64_t peer_table;      // u64; 0 when R = 1
  uint32_t rank;
  uint32_t num_tokens;  // n, own real tokens
};

struct DispatchTensors {
  Comm comm;
  uint64_t x;       // [n, payload_bytes]
  uint64_t scales;  // packs of 2 bytes, element (t, p) at t * token stride + p * pack stride
  int64_t scale_token_stride;
  int64_t scale_pack_stride;
  uint64_t topk_idx;             // i64 [n, K]
  uint64_t topk_weights;         // f32 [n, K], optional
  uint64_t metadata_image;       // [n, image bytes], temporary; kept until the exit barrier
  uint64_t dst_buffer_slot_idx;  // i32 [n, K]; read when cached
  uint64_t dst_gsge_idx;         // i32 [n, K]; read when cached
  uint64_t psum_rank;            // i32 [R]
  uint64_t psum_expert;          // i32 [L]
  uint64_t num_unaligned;        // i32 [L]
  uint64_t stats;                // i32 [L], added to, optional
};

struct DispatchArgs {
  RuntimeConfig cfg;
  DispatchTensors tensors;
};

struct DispatchEpilogueTensors {
  Comm comm;
  uint64_t psum_rank;          // i32 [R]
  uint64_t psum_expert;        // i32 [L]
  uint64_t recv_x;             // [X, payload_bytes]
  uint64_t recv_scales;        // [X, P] packs, row-major; unused when P = 0
  uint64_t recv_weights;       // f32 [X], optional
  uint64_t recv_src_metadata;  // i32 [N, K+2]; read when cached
};

struct DispatchEpilogueArgs {
  RuntimeConfig cfg;
  DispatchEpilogueTensors tensors;
};

struct CombineTensors {
  Comm comm;
  uint64_t x;                  // bf16 [X, H]
  uint64_t topk_weights;       // f32 [X], optional
  uint64_t recv_src_metadata;  // i32 [N, K+2]
  uint64_t psum_rank;          // i32 [R]
  uint64_t send_buffer;        // [N, combine record], temporary; kept until the exit barrier
};

struct CombineArgs {
  RuntimeConfig cfg;
  CombineTensors tensors;
};

struct CombineEpilogueTensors {
  Comm comm;
  uint64_t topk_idx;          // i64 [n, K]
  uint64_t bias[2];           // bf16 [n, H], each optional; the first is filled first
  uint64_t combined_x;        // bf16 [n, H]
  uint64_t combined_weights;  // f32 [n, K], optional
};

struct CombineEpilogueArgs {
  RuntimeConfig cfg;
  CombineEpilogueTensors tensors;
};

// The standalone barrier: flushes stores and drains all jetties of the rank.
struct BarrierArgs {
  RuntimeConfig cfg;
  Comm comm;
  uint64_t num_jetties;
};

}  // namespace epsim
