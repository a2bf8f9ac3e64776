// Scalar calls: bypass loads and stores, atomics, cache control, the core itself.
#pragma once

#include <bit>
#include <cstring>
#include <twin/bfloat16.hpp>
#include <twin/pointer.hpp>

namespace epsim::twin {

template <class T>
std::uint64_t to_bits(const T& value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class T>
constexpr Number number_of() {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics take 32 or 64 bits");
  if constexpr (std::is_same_v<T, float>) {
    return Number::f32;
  } else {
    static_assert(std::is_integral_v<T>);
    if constexpr (sizeof(T) == 4) return std::is_signed_v<T> ? Number::i32 : Number::u32;
    return std::is_signed_v<T> ? Number::i64 : Number::u64;
  }
}

// The old value of an atomic on GM. To a peer, asking for it waits until the atomic has landed there.
template <class T>
class Old {
 public:
  explicit Old(AtomicResult result) : result_(result) {}
  operator T() const {
    return from_bits<T>(result_.ticket == 0 ? result_.bits : rt::await_atomic(result_.ticket));
  }

 private:
  AtomicResult result_;
};

template <class T>
Old<T> atomic_on(gm<T> p, Atomic operation, T value, T compare, Where where) {
  return Old<T>(
      rt::gm_atomic(p.address(), {operation, number_of<T>(), to_bits(value), to_bits(compare)}, where));
}
template <class T>
T atomic_on(ub<T> p, Atomic operation, T value, T compare, Where where) {
  static_assert(sizeof(T) == 4, "atomics on UB take 32 bits");
  return from_bits<T>(
      rt::ub_atomic(p.address(), {operation, number_of<T>(), to_bits(value), to_bits(compare)}, where));
}

}  // namespace epsim::twin

template <class T>
std::remove_const_t<T> asc_load_dev(gm<T> p, epsim::twin::Where here = epsim::twin::Where::current()) {
  static_assert(sizeof(T) <= 8);
  return epsim::twin::load_value<epsim::twin::GmSpace, T>(p.address(), epsim::twin::Via::bypass, here);
}
template <class T>
void asc_store_dev(gm<T> p, std::type_identity_t<T> value,
                   epsim::twin::Where here = epsim::twin::Where::current()) {
  static_assert(sizeof(T) <= 8 && !std::is_const_v<T>);
  epsim::twin::store_value<epsim::twin::GmSpace, T>(p.address(), value, epsim::twin::Via::bypass, here);
}

// Atomics on gm (bypass) and, inside a VF, on ub; each returns the old value.
template <class Space, class T>
auto asc_atomic_add(epsim::twin::Pointer<Space, T> p, std::type_identity_t<T> value,
                    epsim::twin::Where here = epsim::twin::Where::current()) {
  return epsim::twin::atomic_on(p, epsim::twin::Atomic::add, value, T{}, here);
}
template <class Space, class T>
auto asc_atomic_exch(epsim::twin::Pointer<Space, T> p, std::type_identity_t<T> value,
                     epsim::twin::Where here = epsim::twin::Where::current()) {
  return epsim::twin::atomic_on(p, epsim::twin::Atomic::exch, value, T{}, here);
}
template <class Space, class T>
auto asc_atomic_or(epsim::twin::Pointer<Space, T> p, std::type_identity_t<T> value,
                   epsim::twin::Where here = epsim::twin::Where::current()) {
  return epsim::twin::atomic_on(p, epsim::twin::Atomic::bit_or, value, T{}, here);
}
template <class Space, class T>
auto asc_atomic_max(epsim::twin::Pointer<Space, T> p, std::type_identity_t<T> value,
                    epsim::twin::Where here = epsim::twin::Where::current()) {
  return epsim::twin::atomic_on(p, epsim::twin::Atomic::max, value, T{}, here);
}
template <class Space, class T>
auto asc_atomic_cas(epsim::twin::Pointer<Space, T> p, std::type_identity_t<T> compare,
                    std::type_identity_t<T> value, epsim::twin::Where here = epsim::twin::Where::current()) {
  return epsim::twin::atomic_on(p, epsim::twin::Atomic::cas, value, compare, here);
}

// Write the 64 B line of p back and drop it from this core's scalar DCache.
template <class T>
void asc_dcci(gm<T> p, epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::dcci(p.address(), here);
}
inline void asc_dcci_all(epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::dcci_all(here);
}
inline void asc_sync_data_barrier(dsb_t scope, epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::data_barrier(scope, here);
}

inline std::uint32_t asc_get_block_idx(epsim::twin::Where here = epsim::twin::Where::current()) {
  return epsim::twin::rt::block_idx(here);
}
inline std::uint32_t asc_get_block_num(epsim::twin::Where here = epsim::twin::Where::current()) {
  return epsim::twin::rt::block_num(here);
}
inline std::uint32_t asc_get_ub_bytes() { return epsim::twin::rt::ub_bytes(); }
inline std::int64_t asc_get_system_cycle() { return epsim::twin::rt::system_cycle(); }
inline void asc_nop(std::int64_t num_cycles, epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::nop(num_cycles, here);
}
[[noreturn]] inline void asc_trap(std::int64_t code,
                                  epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::trap(code, here);
}
inline void asc_init_soc_state(epsim::twin::Where here = epsim::twin::Where::current()) {
  epsim::twin::rt::init_soc_state(here);
}
