// Bounds, alignment, uninitialised data, caches.
#include <kernels/cases.hpp>

template <bool kGood>
void unaligned_copy(gm<const Args> args) {
  const Args a = args[0];
  const int offset = kGood ? 64 : 68;
  asc_copy_gm2ub_align(ub<int32_t>(offset), gm<int32_t>(a.in), 64);  // <- unaligned_copy
}
EPSIM_CASE(unaligned_copy);

template <bool kGood>
void unaligned_word(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> word(a.in + (kGood ? 4 : 2));
  (void)asc_load_dev(word);  // <- unaligned_word
}
EPSIM_CASE(unaligned_word);

template <bool kGood>
void beyond_ub(gm<const Args> args) {
  const Args a = args[0];
  const int offset = kGood ? 221184 - 64 : 256 * 1024;
  asc_copy_gm2ub_align(ub<int32_t>(offset), gm<int32_t>(a.in), 64);  // <- beyond_ub
}
EPSIM_CASE(beyond_ub);

template <bool kGood>
void into_simt_cache(gm<const Args>) {
  ub<int32_t> p(0);
  p[kGood ? 100 : 221184 / 4] = 1;  // <- into_simt_cache
}
EPSIM_CASE(into_simt_cache);

template <bool kGood>
void one_too_far(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> in(a.in);
  (void)asc_load_dev(in + (kGood ? 1023 : 1024));  // <- one_too_far
}
EPSIM_CASE(one_too_far);

template <bool kGood>
void one_byte_too_far(gm<const Args> args) {
  const Args a = args[0];
  const int num_bytes = kGood ? 33 : 34;
  asc_copy_gm2ub_align(ub<uint8_t>(0), gm<uint8_t>(a.in + 4096 - 33), num_bytes);  // <- one_byte_too_far
}
EPSIM_CASE(one_byte_too_far);

template <bool kGood>
void uninitialised_gm(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> out(a.out + 1024 * asc_get_block_idx());
  if (kGood) asc_store_dev(out, 3);
  (void)asc_load_dev(out);  // <- uninitialised_gm
}
EPSIM_CASE(uninitialised_gm);

// A burst of 20 B leaves garbage in the rest of its 32 B block.
template <bool kGood>
void padding_of_burst(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  asc_copy_gm2ub_align(p, gm<int32_t>(a.in), 20);
  asc_sync_notify(PIPE_MTE2, PIPE_S, 0);
  asc_sync_wait(PIPE_MTE2, PIPE_S, 0);
  const int32_t value = p[kGood ? 4 : 5];  // <- padding_of_burst
  (void)value;
}
EPSIM_CASE(padding_of_burst);

// Uninitialised bytes stay so when they are copied.
template <bool kGood>
void uninitialised_copy(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  asc_copy_gm2ub_align(p, gm<int32_t>(kGood ? a.in : a.out), 64);
  asc_sync_notify(PIPE_MTE2, PIPE_S, 0);
  asc_sync_wait(PIPE_MTE2, PIPE_S, 0);
  const int32_t value = p[0];  // <- uninitialised_copy
  (void)value;
}
EPSIM_CASE(uninitialised_copy);

// AIV 0 caches the line, AIV 1 writes it, AIV 0 reads again.
template <bool kGood>
void stale_scalar(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> word(a.words);
  if (asc_get_block_idx() == 0) {
    int32_t value = word[0];
    (void)value;
    asc_sync_inter_arrive(PIPE_S, 0);
    asc_sync_inter_wait(PIPE_S, 0);
    asc_sync_inter_arrive(PIPE_S, 1);
    asc_sync_inter_wait(PIPE_S, 1);
    if (kGood) asc_dcci(word);
    value += word[0];  // <- stale_scalar
    (void)value;
  } else {
    asc_sync_inter_arrive(PIPE_S, 0);
    asc_sync_inter_wait(PIPE_S, 0);
    asc_store_dev(word, 1);
    asc_sync_data_barrier(DSB_DDR);
    asc_sync_inter_arrive(PIPE_S, 1);
    asc_sync_inter_wait(PIPE_S, 1);
  }
}
EPSIM_CASE(stale_scalar);

template <bool kGood>
__simt_vf__ void read_twice(gm<int32_t> word, gm<int32_t> flag) {
  int32_t value = word[0];
  asc_threadfence();
  asc_stcg(flag, 1);
  while (asc_ldcg(flag + 1) == 0) asc_nop(300);
  value += kGood ? asc_ldcg(word) : int32_t(word[0]);  // <- stale_simt
  (void)value;
}

template <bool kGood>
void stale_simt(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> word(a.words + 512);
  const gm<int32_t> flag(a.words);
  if (asc_get_block_idx() == 0) {
    asc_vf_call<read_twice<kGood>>(1, word, flag);
  } else {
    while (asc_load_dev(flag) == 0) asc_nop(300);
    asc_store_dev(word, 1);
    asc_sync_data_barrier(DSB_DDR);
    asc_store_dev(flag + 1, 1);
  }
}
EPSIM_CASE(stale_simt);

template <bool kGood>
void no_clean(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> word(a.words + 64);
  if (asc_get_block_idx() == 0) {
    word[0] = 7;
    if (kGood) asc_dcci(word);
    asc_sync_data_barrier(DSB_DDR);
  }
  asc_sync_inter_arrive(PIPE_S, 0);
  asc_sync_inter_wait(PIPE_S, 0);
  if (asc_get_block_idx() == 1) {
    (void)asc_load_dev(word);  // <- no_clean
  }
  // The end of the kernel would write the line back: AIV 0 must not be there yet.
  asc_sync_inter_arrive(PIPE_S, 1);
  asc_sync_inter_wait(PIPE_S, 1);
}
EPSIM_CASE(no_clean);

// Two AIVs write different words of one 64 B line through their caches.
template <bool kGood>
void shared_line(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> words(a.words + 1024);
  const int stride = kGood ? 16 : 1;
  asc_sync_inter_arrive(PIPE_S, 0);
  asc_sync_inter_wait(PIPE_S, 0);
  words[asc_get_block_idx() * stride] = 5;
  asc_sync_inter_arrive(PIPE_S, 1);
  asc_sync_inter_wait(PIPE_S, 1);
  asc_dcci(words + asc_get_block_idx() * stride);  // <- shared_line
}
EPSIM_CASE(shared_line);

// A dirty line is written back over a copy.
template <bool kGood>
void dirty_over_copy(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> words(a.words + 2048 + 256 * asc_get_block_idx());
  const ub<int32_t> p(0);
  p[0] = 9;
  words[8] = 1;
  if (kGood) {
    asc_dcci(words);
    asc_sync_data_barrier(DSB_ALL);
  }
  asc_sync_notify(PIPE_S, PIPE_MTE3, 0);
  asc_sync_wait(PIPE_S, PIPE_MTE3, 0);
  asc_copy_ub2gm_align(words, p, 4);
  asc_sync_notify(PIPE_MTE3, PIPE_S, 0);
  asc_sync_wait(PIPE_MTE3, PIPE_S, 0);
  asc_dcci(words);  // <- dirty_over_copy
}
EPSIM_CASE(dirty_over_copy);
