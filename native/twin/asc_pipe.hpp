// Calls of the pipes: copies, flags, barriers, cross-core flags. Strides are head to head, in bytes.
#pragma once

#include <twin/asc_scalar.hpp>

template <class T, class U>
void asc_copy_gm2ub_align(ub<T> dst, gm<U> src, std::uint32_t num_bursts, std::uint32_t burst_bytes,
                          std::int64_t dst_stride_bytes, std::int64_t src_stride_bytes,
                          epsim::twin::Where here = epsim::twin::Where::current()) {
  static_assert(std::is_same_v<T, std::remove_const_t<U>>);
  epsim::twin::rt::copy_gm2ub(dst.address(), src.address(),
                              {num_bursts, burst_bytes, dst_stride_bytes, src_stride_bytes}, here);
}
template <class T, class U>
void asc_copy_gm2ub_align(ub<T> dst, gm<U> src, std::uint32_t num_bytes,
                          epsim::twin::Where here = epsim::twin::Where::current()) {
  asc_copy_gm2ub_align(dst, src, 1, num_bytes, num_bytes, num_bytes, here);
}
template <class T, class U>
void asc_copy_ub2gm_align(gm<T> dst, ub<U> src, std::uint32_t num_bursts, std::uint32_t burst_bytes,
                          std::int64_t dst_stride_bytes, std::int64_t src_stride_bytes,
                          epsim::twin::Where here = epsim::twin::Where::current()) {
  static_assert(std::is_same_v<T, std::remove_const_t<U>>);
  epsim::twin::rt::copy_ub2gm(dst.address(), src.address(),
                              {num_bursts, burst_bytes, dst_stride_bytes, src_stride_bytes}, here);
}
template <class T, class U>
void asc_copy_ub2gm_align(gm<T> dst, ub<U> src, std::uint32_t num_bytes,
                          epsim::twin::Where here = epsim::twin::Where::current()) {
  asc_copy_ub2gm_align(dst, src, 1, num_bytes, num_bytes, num_bytes, here);
}
// Following UB -> GM copies add int32 instead of storing.
inline void asc_set_atomic_add_int(epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::set_atomic_add(true, here);
}
inline void asc_set_atomic_none(epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::set_atomic_add(false, here);
}

inline void asc_sync_notify(pipe_t source, pipe_t target, std::int64_t id,
                            epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::notify(source, target, id, here);
}
inline void asc_sync_wait(pipe_t source, pipe_t target, std::int64_t id,
                          epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::wait(source, target, id, here);
}
inline void asc_sync_pipe(pipe_t pipe, epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::sync_pipe(pipe, here);
}
inline void asc_sync_inter_arrive(pipe_t pipe, std::int64_t id,
                                  epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::inter_arrive(pipe, id, here);
}
inline void asc_sync_inter_wait(pipe_t pipe, std::int64_t id,
                                epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::inter_wait(pipe, id, here);
}
