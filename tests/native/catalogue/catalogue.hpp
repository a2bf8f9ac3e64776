// What the kernels of the bug catalogue share. `entry<true>` is the repaired form, `entry<false>` the one that
// failed somewhere; tests/native/catalogue_entries.py says what each is about.
#pragma once

#include <epsim_native/asc.hpp>

struct Args {
  uint64_t rank;
  uint64_t num_ranks;
  uint64_t life;      // 1, 2... of the launches of one rank
  uint64_t num_bytes; // what an entry is about, see there
  uint64_t big;       // zeros, as many as the entry asks for
  uint64_t result;    // 4096 B of zeros that the host compares
  uint64_t in[4];     // of each rank: 8192 B, int32 i at word i
  uint64_t out[4];    // of each rank: 8192 B, uninitialised
  uint64_t words[4];  // of each rank: 8192 B of zeros
};

#define EPSIM_ENTRY(name)                \
  EPSIM_KERNEL(name##_good, name<true>); \
  EPSIM_KERNEL(name##_bad, name<false>)

inline gm<int32_t> word_of(const Args& a, uint64_t rank, int idx) { return gm<int32_t>(a.words[rank]) + idx; }

// Poll until a word is at least so large.
template <class T>
void await(gm<T> word, std::type_identity_t<T> least) {
  while (asc_load_dev(word) < least) asc_nop(300);
}
// Everything before, then a word.
template <class T>
void publish(gm<T> word, std::type_identity_t<T> value) {
  asc_sync_data_barrier(DSB_DDR);
  asc_store_dev(word, value);
}
inline void wait_for(pipe_t source, pipe_t target) {
  asc_sync_notify(source, target, 0);
  asc_sync_wait(source, target, 0);
}
inline void sync_aivs(pipe_t last) {
  asc_sync_inter_arrive(last, 0);
  asc_sync_inter_wait(PIPE_S, 0);
}
inline void fill(ub<int32_t> p, int num_words, int32_t value) {
  for (int i = 0; i < num_words; ++i) p[i] = value;
}
// 32 B of one value to GM, without waiting for it.
inline void start_send(gm<int32_t> target, ub<int32_t> p, int32_t value) {
  fill(p, 8, value);
  wait_for(PIPE_S, PIPE_MTE3);
  asc_copy_ub2gm_align(target, p, 32);
}
inline void send(gm<int32_t> target, ub<int32_t> p, int32_t value) {
  start_send(target, p, value);
  wait_for(PIPE_MTE3, PIPE_S);
}
inline void receive(ub<int32_t> p, gm<int32_t> source) {
  asc_copy_gm2ub_align(p, source, 32);
  wait_for(PIPE_MTE2, PIPE_S);
}
// The comparison with the expected value, inside a kernel.
inline void require(bool is_right, epsim::twin::Where here = epsim::twin::Where::current()) {
  if (!is_right) asc_trap(1, here);
}
