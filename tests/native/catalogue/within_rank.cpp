// Pipes, caches and AIVs of one rank.
#include <kernels/catalogue.hpp>

// Both AIVs count the calls.
template <bool kGood>
void sg7_owner(gm<const Args> args) {
  const Args a = args[0];
  const gm<int64_t> magic(a.words[a.rank]);
  if (!kGood || asc_get_block_idx() == 0) {
    magic[0] = magic[0] + 1;
    asc_dcci(magic);
    asc_sync_data_barrier(DSB_DDR);
  }
  sync_aivs(PIPE_S);
  require(asc_load_dev(magic) == 1);
}
EPSIM_ENTRY(sg7_owner);

// The number of the buffer stays in the cache of the AIV that chose it.
template <bool kGood>
void sg8(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> buffer_id = word_of(a, a.rank, 0);
  if (asc_get_block_idx() == 0) {
    buffer_id[0] = 1;
    if (kGood) asc_dcci(buffer_id);
    asc_sync_data_barrier(DSB_DDR);
  }
  sync_aivs(PIPE_S);
  if (asc_get_block_idx() == 1) require(asc_load_dev(buffer_id) == 1);
  asc_sync_inter_arrive(PIPE_S, 1);
  asc_sync_inter_wait(PIPE_S, 1);
}
EPSIM_ENTRY(sg8);

// Five numbers are added by a copy of whole blocks of eight.
template <bool kGood>
void sg9(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  asc_copy_gm2ub_align(p, gm<int32_t>(a.in[a.rank]), 20);
  wait_for(PIPE_MTE2, PIPE_S);
  if (kGood) {
    for (int i = 5; i < 8; ++i) p[i] = 0;
  }
  wait_for(PIPE_S, PIPE_MTE3);
  asc_set_atomic_add_int();
  asc_copy_ub2gm_align(gm<int32_t>(a.result), p, 32);
  asc_set_atomic_none();
}
EPSIM_ENTRY(sg9);

// A line of metadata was read before it changed.
template <bool kGood>
void ot13(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> metadata = word_of(a, a.rank, 0);
  if (asc_get_block_idx() == 0) {
    int32_t value = metadata[1];
    sync_aivs(PIPE_S);
    sync_aivs(PIPE_S);
    if (kGood) asc_dcci(metadata);
    value += metadata[0];
    require(value == 9);
  } else {
    sync_aivs(PIPE_S);
    publish(metadata, 9);
    asc_sync_data_barrier(DSB_DDR);
    sync_aivs(PIPE_S);
  }
}
EPSIM_ENTRY(ot13);

// MTE3 -> MTE2: rows pass through one buffer.
template <bool kGood>
void ot12_copies(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  for (int i = 0; i < 3; ++i) {
    asc_copy_gm2ub_align(p, gm<int32_t>(a.in[a.rank]) + 8 * i, 32);
    wait_for(PIPE_MTE2, PIPE_MTE3);
    asc_copy_ub2gm_align(gm<int32_t>(a.result) + 8 * i, p, 32);
    if (kGood) wait_for(PIPE_MTE3, PIPE_MTE2);
  }
}
EPSIM_ENTRY(ot12_copies);

__simt_vf__ inline void times_ten(ub<int32_t> target, ub<int32_t> source) {
  target[threadIdx.x] = 10 * source[threadIdx.x];
}

// In, ten times, out: V -> MTE3 is missing, or MTE2 -> V.
template <bool kHasIn, bool kHasOut>
void cast_row(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  fill(p, 16, 0);
  asc_copy_gm2ub_align(p, gm<int32_t>(a.in[a.rank]), 32);
  if (kHasIn) wait_for(PIPE_MTE2, PIPE_V);
  asc_vf_call<times_ten>(8, p + 8, p);
  if (kHasOut) wait_for(PIPE_V, PIPE_MTE3);
  asc_copy_ub2gm_align(gm<int32_t>(a.result), p + 8, 32);
}
template <bool kGood>
void ot12_lanes(gm<const Args> args) {
  cast_row<true, kGood>(args);
}
EPSIM_ENTRY(ot12_lanes);
template <bool kGood>
void ot17(gm<const Args> args) {
  cast_row<kGood, true>(args);
}
EPSIM_ENTRY(ot17);

// Cleaning the whole window takes the number at its end along.
template <bool kGood>
void ot18(gm<const Args> args) {
  const Args a = args[0];
  constexpr uint32_t kWindowBytes = 1024;
  const gm<int32_t> window = word_of(a, a.rank, 0);
  const gm<int32_t> buffer_id = window + kWindowBytes / 4 - 1;
  if (asc_get_block_idx() == 0) {
    const ub<int32_t> zeros(0);
    publish(buffer_id, 7);
    asc_sync_data_barrier(DSB_DDR);
    fill(zeros, 8, 0);
    wait_for(PIPE_S, PIPE_MTE3);
    asc_copy_ub2gm_align(window, zeros, (kWindowBytes - (kGood ? 32 : 0)) / 32, 32, 32, 0);
    sync_aivs(PIPE_MTE3);
  } else {
    sync_aivs(PIPE_S);
    require(asc_load_dev(buffer_id) == 7);
  }
}
EPSIM_ENTRY(ot18);

// An AIV tells the others before its copies are done.
template <bool kGood>
void hc4(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  const auto own = static_cast<int>(asc_get_block_idx());
  start_send(gm<int32_t>(a.out[a.rank]) + 8 * own, p, own);
  if (kGood) asc_sync_pipe(PIPE_ALL);
  sync_aivs(PIPE_S);
  receive(p + 64, gm<int32_t>(a.out[a.rank]) + 8 * (1 - own));
  require(p[64] == 1 - own);
}
EPSIM_ENTRY(hc4);

// Counters of a barrier that nobody cleared.
template <bool kGood>
void hc5(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> counter(a.out[a.rank]);
  if (kGood) {
    if (asc_get_block_idx() == 0) publish(counter, 0);
    asc_sync_data_barrier(DSB_DDR);
    sync_aivs(PIPE_S);
  }
  asc_atomic_add(counter, 1);
  await(counter, 2);
}
EPSIM_ENTRY(hc5);

// Each AIV gathers its part, then forwards what the other gathered.
template <bool kGood>
void sh1_gather(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  const auto own = static_cast<int>(asc_get_block_idx());
  send(gm<int32_t>(a.out[a.rank]) + 8 * own, p, own);
  if (kGood) sync_aivs(PIPE_S);
  receive(p + 64, gm<int32_t>(a.out[a.rank]) + 8 * (1 - own));
  require(p[64] == 1 - own);
}
EPSIM_ENTRY(sh1_gather);

// Signals of two AIVs, each written through a cache of its own.
template <bool kGood>
void sh1_slots(gm<const Args> args) {
  const Args a = args[0];
  const auto own = static_cast<int>(asc_get_block_idx());
  const gm<int32_t> signal = word_of(a, a.rank, own * (kGood ? 128 : 2));
  sync_aivs(PIPE_S);
  signal[0] = own + 1;
  sync_aivs(PIPE_S);
  asc_dcci(signal);
  asc_sync_data_barrier(DSB_DDR);
  sync_aivs(PIPE_S);
  require(asc_load_dev(signal) == own + 1);
}
EPSIM_ENTRY(sh1_slots);
