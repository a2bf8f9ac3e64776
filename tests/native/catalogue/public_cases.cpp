// Cases G14 and G62-G67 of the public reports.
#include <kernels/catalogue.hpp>

// 10 and 3 tokens, 4 in a round: both ranks run three rounds, on two buffers in turn.
template <bool kGood>
void g14(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  const uint64_t peer = 1 - a.rank;
  const int32_t num_tokens = a.rank == 0 ? 10 : 3;
  int32_t sum = 0;
  for (int32_t round = 0; round < (kGood ? 3 : (num_tokens + 3) / 4); ++round) {
    const int32_t left = num_tokens - 4 * round;
    send(gm<int32_t>(a.out[peer]) + 8 * (round % 2), p, left < 0 ? 0 : left > 4 ? 4 : left);
    publish(word_of(a, peer, 0), round + 1);
    await(word_of(a, a.rank, 0), round + 1);
    receive(p + 64, gm<int32_t>(a.out[a.rank]) + 8 * (round % 2));
    sum += p[64];
  }
  asc_store_dev(gm<int32_t>(a.result), sum);
}
EPSIM_ENTRY(g14);

// All send to all, on two buffers in turn. The signal of a step is its number, or what the step counts, which
// is the same in every step (kConstant) or, as a control, grows.
template <bool kNumbered, bool kConstant>
void signal_steps(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  const auto own = static_cast<int>(a.rank);
  const auto num_ranks = static_cast<int>(a.num_ranks);
  for (int32_t step = 0; step < 12; ++step) {
    const int first = 4 * (step % 2);
    const int32_t signal = kNumbered || !kConstant ? step + 1 : 1;
    for (int peer = 0; peer < num_ranks; ++peer) {
      if (peer == own) continue;
      send(gm<int32_t>(a.out[peer]) + 8 * (first + own), p, step);
      publish(word_of(a, static_cast<uint64_t>(peer), first + own), signal);
    }
    for (int peer = 0; peer < num_ranks; ++peer) {
      if (peer == own) continue;
      const gm<int32_t> arrived = word_of(a, a.rank, first + peer);
      const bool takes_any = kConstant && !kNumbered;
      while (takes_any ? asc_load_dev(arrived) == 0 : asc_load_dev(arrived) != signal) asc_nop(300);
      receive(p + 64, gm<int32_t>(a.out[own]) + 8 * (first + peer));
      require(p[64] == step);
    }
  }
}
template <bool kGood>
void g62(gm<const Args> args) {
  signal_steps<kGood, true>(args);
}
EPSIM_ENTRY(g62);
template <bool>
void g62_counts_vary(gm<const Args> args) {
  signal_steps<false, false>(args);
}
EPSIM_ENTRY(g62_counts_vary);

// Four words that carry the number of their step, then a flag.
template <bool kGood>
void g63(gm<const Args> args) {
  const Args a = args[0];
  for (int32_t step = 1; step <= 3; ++step) {
    if (a.rank == 1) {
      await(word_of(a, 1, 0), step - 1);
      for (int i = 0; i < 4; ++i) asc_store_dev(word_of(a, 0, 32 + i), step);
      if (kGood) asc_sync_data_barrier(DSB_DDR);
      asc_store_dev(word_of(a, 0, 0), step);
    } else {
      await(word_of(a, 0, 0), step);
      for (int i = 0; i < 4; ++i) require(asc_load_dev(word_of(a, 0, 32 + i)) == step);
      publish(word_of(a, 1, 0), step);
    }
  }
}
EPSIM_ENTRY(g63);

__simt_vf__ inline void make_counts(ub<int32_t> p, int32_t shift) {
  p[threadIdx.x] = static_cast<int32_t>(threadIdx.x) % 3 + shift;
}

// A list of counts, of which the first is 0. Either the first word of each 512 B says that the block is there
// (then counts are sent plus one), or a flag beside the list does.
template <bool kGood>
void g64(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  const auto num_bytes = static_cast<uint32_t>(a.num_bytes);
  const gm<int32_t> list = word_of(a, 0, 128);
  if (a.rank == 1) {
    asc_vf_call<make_counts>(num_bytes / 4, p, kGood ? 0 : 1);
    wait_for(PIPE_V, PIPE_MTE3);
    asc_copy_ub2gm_align(list, p, num_bytes);
    wait_for(PIPE_MTE3, PIPE_S);
    if (kGood) publish(word_of(a, 0, 0), 1);
    return;
  }
  if (kGood) await(word_of(a, 0, 0), 1);
  for (uint32_t at = 0; !kGood && at < num_bytes; at += 512) await(list + at / 4, 1);
  asc_copy_gm2ub_align(p, list, num_bytes);
  wait_for(PIPE_MTE2, PIPE_S);
  int32_t sum = 0;
  for (uint32_t i = 0; i < num_bytes / 4; ++i) sum += p[i];
  asc_store_dev(gm<int32_t>(a.result), sum);
}
EPSIM_ENTRY(g64);

__simt_vf__ inline void set_contribution(gm<int32_t> rows) {
  int32_t value = 1;
  for (uint32_t k = 0; k < threadIdx.x; ++k) value *= 10;
  rows[8 * threadIdx.x] = value;
}
__simt_vf__ inline void add_stage(ub<int32_t> sum, ub<int32_t> stage) { sum[0] += stage[0]; }

// 1, 10, 100, 1000 are loaded into two stages in turn and added up.
template <bool kGood>
void g65(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> rows(a.words[a.rank]);
  const ub<int32_t> sum(0);
  fill(sum, 8, 0);
  asc_vf_call<set_contribution>(4, rows);
  wait_for(PIPE_V, PIPE_MTE2);
  for (int k = 0; k < 4; ++k) {
    const ub<int32_t> stage = sum + 8 + 8 * (k % 2);
    if (kGood && k >= 2) asc_sync_wait(PIPE_V, PIPE_MTE2, 1 + k % 2);
    asc_copy_gm2ub_align(stage, rows + 8 * k, 32);
    asc_sync_notify(PIPE_MTE2, PIPE_V, k % 2);
    asc_sync_wait(PIPE_MTE2, PIPE_V, k % 2);
    asc_vf_call<add_stage>(1, sum, stage);
    if (kGood && k < 2) asc_sync_notify(PIPE_V, PIPE_MTE2, 1 + k % 2);
  }
  wait_for(PIPE_V, PIPE_S);
  asc_store_dev(gm<int32_t>(a.result), sum[0]);
}
EPSIM_ENTRY(g65);

// May the forwarder send row `sent` to `peer`? There are two slots.
inline bool has_slot(const Args& a, int peer, int32_t sent) {
  return sent - asc_load_dev(word_of(a, 0, peer)) < 2;
}
inline void forward(const Args& a, int peer, int32_t sent) {
  send(gm<int32_t>(a.out[peer]) + 8 * (sent % 2), ub<int32_t>(0), sent);
  publish(word_of(a, static_cast<uint64_t>(peer), 0), sent + 1);
}

// Rank 0 forwards four rows each to ranks 1 and 2; rank 1 begins to take its rows when rank 2 has all of its
// own.
template <bool kGood>
void g66(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  if (a.rank != 0) {
    if (a.rank == 1) await(word_of(a, 1, 16), 1);
    for (int32_t row = 0; row < 4; ++row) {
      await(word_of(a, a.rank, 0), row + 1);
      receive(p, gm<int32_t>(a.out[a.rank]) + 8 * (row % 2));
      require(p[0] == row);
      publish(word_of(a, 0, static_cast<int>(a.rank)), row + 1);
    }
    if (a.rank == 2) publish(word_of(a, 1, 16), 1);
    return;
  }
  int32_t sent[3] = {4, 0, 0};
  while (sent[1] + sent[2] < 8) {
    for (int peer = 1; peer <= 2; ++peer) {
      if (!kGood) {
        while (!has_slot(a, peer, sent[peer])) asc_nop(300);
      }
      if (sent[peer] < 4 && has_slot(a, peer, sent[peer])) forward(a, peer, sent[peer]++);
    }
    asc_nop(300);
  }
}
EPSIM_ENTRY(g66);

// AIV 0 stands for the stream of computation, AIV 1 for that of communication: a buffer is given to the next
// tensor.
template <bool kGood>
void g67(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  const gm<int32_t> buffer(a.out[a.rank]);
  if (asc_get_block_idx() == 0) {
    send(buffer, p, 1);
    publish(word_of(a, a.rank, 0), 1);
    if (kGood) await(word_of(a, a.rank, 16), 1);
    send(buffer, p, 2);
  } else {
    await(word_of(a, a.rank, 0), 1);
    receive(p, buffer);
    require(p[0] == 1);
    publish(word_of(a, a.rank, 16), 1);
  }
}
EPSIM_ENTRY(g67);
