// One source, two targets: with EPSIM_TWIN the CPU twin, otherwise the vendor's C API.
// Both define gm<T>, ub<T>, gm_cast, ub_cast, gm_address, ub_address, gm_field and EPSIM_KERNEL.
#pragma once

#ifdef EPSIM_TWIN
#include <twin/asc.hpp>
#else
#include <c_api/asc_simd.h>
#include <kernel_operator.h>
#include <simt_api/asc_simt.h>

#include <type_traits>

template <class T>
using gm = __gm__ T*;
template <class T>
using ub = __ubuf__ T*;

template <class U, class T>
__aicore__ inline gm<U> gm_cast(__gm__ T* pointer) {
  return reinterpret_cast<gm<U>>(pointer);
}
template <class U, class T>
__aicore__ inline ub<U> ub_cast(__ubuf__ T* pointer) {
  return reinterpret_cast<ub<U>>(pointer);
}
template <class T>
__aicore__ inline uint64_t gm_address(__gm__ T* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}
template <class T>
__aicore__ inline uint32_t ub_address(__ubuf__ T* pointer) {
  return static_cast<uint32_t>(reinterpret_cast<uint64_t>(pointer));
}
template <class T, class S, class M>
__aicore__ inline auto gm_field(__gm__ T* pointer, M S::* member) {
  return &(pointer->*member);
}
#define EPSIM_KERNEL(name, entry) static_assert(true)
#endif
