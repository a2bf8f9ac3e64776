// Pairs of kernels: `case<true>` is right, `case<false>` breaks one rule on a line that ends with `// <-
// case`.
#pragma once

#include <epsim_native/asc.hpp>

struct Args {
  uint64_t in;          // 4096 B, int32 i at word i
  uint64_t out;         // 4096 B, uninitialised
  uint64_t words;       // 4096 B of zeros
  uint64_t peer_words;  // of the other rank
  uint64_t peer_out;
  uint64_t rank;
};

#define EPSIM_CASE(name)                 \
  EPSIM_KERNEL(name##_good, name<true>); \
  EPSIM_KERNEL(name##_bad, name<false>)
