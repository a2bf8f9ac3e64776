// SIMT calls: starting a VF, and what its lanes may do.
#pragma once

#include <tuple>
#include <twin/asc_scalar.hpp>

struct asc_dim {
  std::uint32_t x;
};
// Set by the machine whenever it switches to a lane; of no meaning outside a VF.
extern thread_local asc_dim threadIdx;
extern thread_local asc_dim blockDim;

// Queue Fn(args...) on pipe V with num_threads lanes. Arguments are copied; a kernel local has no address
// here.
template <auto Fn, class... Args>
void asc_vf_call(epsim::twin::Idx num_threads, Args... args) {
  static_assert((!std::is_pointer_v<Args> && ...), "a VF takes gm<T>, ub<T> and values");
  epsim::twin::rt::vf_call(
      num_threads.value, [packed = std::tuple<Args...>(args...)] { std::apply(Fn, packed); },
      num_threads.where);
}

inline void asc_syncthreads(epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::syncthreads(here);
}
inline void asc_threadfence(epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::threadfence(false, here);
}
inline void asc_threadfence_block(epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::threadfence(true, here);
}
inline void asc_syncwarp(epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::syncwarp(here);
}
inline std::uint32_t asc_ballot(bool predicate, epsim::twin::Where here = epsim::twin::Where::current()) {
  return epsim::twin::rt::ballot(predicate, here);
}
template <class T>
T asc_shfl(T value, std::uint32_t lane, epsim::twin::Where here = epsim::twin::Where::current()) {
  using epsim::twin::rt::Shuffle;
  return epsim::twin::from_bits<T>(
      epsim::twin::rt::shuffle(epsim::twin::to_bits(value), Shuffle::index, lane, here));
}
template <class T>
T asc_shfl_up(T value, std::uint32_t delta, epsim::twin::Where here = epsim::twin::Where::current()) {
  using epsim::twin::rt::Shuffle;
  return epsim::twin::from_bits<T>(
      epsim::twin::rt::shuffle(epsim::twin::to_bits(value), Shuffle::up, delta, here));
}
template <class T>
T asc_shfl_xor(T value, std::uint32_t mask, epsim::twin::Where here = epsim::twin::Where::current()) {
  using epsim::twin::rt::Shuffle;
  return epsim::twin::from_bits<T>(
      epsim::twin::rt::shuffle(epsim::twin::to_bits(value), Shuffle::bit_xor, mask, here));
}

// Past the SIMT DCache on gm; volatile on ub.
template <class Space, class T>
std::remove_const_t<T> asc_ldcg(epsim::twin::Pointer<Space, T> p,
                                epsim::twin::Where here = epsim::twin::Where::current()) {
  static_assert(sizeof(T) <= 8);
  return epsim::twin::load_value<Space, T>(p.address(), epsim::twin::Via::bypass, here);
}
template <class Space, class T>
void asc_stcg(epsim::twin::Pointer<Space, T> p, std::type_identity_t<T> value,
              epsim::twin::Where here = epsim::twin::Where::current()) {
  static_assert(sizeof(T) <= 8);
  epsim::twin::store_value<Space, T>(p.address(), value, epsim::twin::Via::bypass, here);
}
inline void asc_dcci_simt_all(epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::dcci_simt_all(here);
}
