// Slots, flags and counts between ranks. Rank 1 mostly produces, rank 0 consumes.
#include <kernels/catalogue.hpp>

// A slot is written again before its reader has finished.
template <bool kGood>
void yu1(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  const gm<int32_t> slot(a.out[0]);
  const gm<int32_t> consumed = word_of(a, 1, 0);
  for (int32_t generation = 1; generation <= 3; ++generation) {
    if (a.rank == 1) {
      if (kGood) await(consumed, generation - 1);
      send(slot, p, generation);
      publish(word_of(a, 0, 0), generation);
    } else {
      await(word_of(a, 0, 0), generation);
      receive(p, slot);
      require(p[0] == generation);
      publish(consumed, generation);
    }
  }
}
EPSIM_ENTRY(yu1);

template <bool kGood>
__simt_vf__ void write_chunks(gm<int32_t> slots, gm<int32_t> released) {
  for (int32_t chunk = 0; chunk < 3; ++chunk) {
    if (!kGood && chunk >= 2) {
      while (asc_ldcg(released) < chunk - 1) asc_nop(300);
    }
    slots[kGood ? chunk : chunk % 2] = chunk;
  }
}

// A VF waits for what only its caller could publish, after it.
template <bool kGood>
void yu3(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> released = word_of(a, a.rank, 0);
  asc_vf_call<write_chunks<kGood>>(1, gm<int32_t>(a.out[a.rank]), released);
  wait_for(PIPE_V, PIPE_S);
  publish(released, 3);
}
EPSIM_ENTRY(yu3);

// Progress is a pair: generation and chunk.
template <bool kGood>
void yu4(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> chunk_word = word_of(a, 0, 0);
  const gm<int32_t> generation_word = word_of(a, 0, 1);
  const gm<int64_t> both(a.words[0]);
  if (a.rank == 1) {
    for (int32_t generation = 1; generation <= 2; ++generation) {
      for (int32_t chunk = 1; chunk <= 3; ++chunk) {
        if (kGood) {
          asc_store_dev(both, int64_t{generation} << 32 | chunk);
        } else {
          asc_store_dev(chunk_word, chunk);
          asc_store_dev(generation_word, generation);
        }
        asc_sync_data_barrier(DSB_DDR);
      }
    }
    return;
  }
  for (int32_t last = 0; last != 11;) {
    int64_t pair = 0;
    if (kGood) {
      pair = asc_load_dev(both);
    } else {
      pair = int64_t{asc_load_dev(generation_word)} << 32;
      pair |= asc_load_dev(chunk_word);
    }
    const auto generation = static_cast<int32_t>(pair >> 32);
    const auto chunk = static_cast<int32_t>(pair);
    require((generation == 0) == (chunk == 0) && 4 * generation + chunk >= last);
    last = 4 * generation + chunk;
    asc_nop(300);
  }
}
EPSIM_ENTRY(yu4);

// Counters of an earlier life of the communicator are still there.
template <bool kGood>
void yu10(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  const auto life = static_cast<int32_t>(a.life);
  const int32_t mark = kGood ? life : 1;
  if (a.rank == 1) {
    await(word_of(a, 1, 0), life - 1);
    send(gm<int32_t>(a.out[0]), p, life);
    publish(word_of(a, 0, 0), mark);
  } else {
    await(word_of(a, 0, 0), mark);
    receive(p, gm<int32_t>(a.out[0]));
    require(p[0] == life);
    publish(word_of(a, 1, 0), life);
  }
}
EPSIM_ENTRY(yu10);

// The slot is given back while the copy out of it is under way.
template <bool kGood>
void sg2(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  const gm<int32_t> slot(a.out[0]);
  const gm<int32_t> ready = word_of(a, 0, 0);
  for (int32_t round = 1; round <= 3; ++round) {
    if (a.rank == 1) {
      while (asc_load_dev(ready) != 0) asc_nop(300);
      send(slot, p, round);
      publish(ready, 1);
    } else {
      await(ready, 1);
      asc_copy_gm2ub_align(p, slot, 32);
      if (kGood) wait_for(PIPE_MTE2, PIPE_S);
      publish(ready, 0);
      if (!kGood) wait_for(PIPE_MTE2, PIPE_S);
      require(p[0] == round);
    }
  }
}
EPSIM_ENTRY(sg2);

// Rounds of a combine: both write to each other, then ask whether they might have.
template <bool kGood>
void sg4(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  const uint64_t peer = 1 - a.rank;
  for (int32_t round = 1; round <= 3; ++round) {
    if (kGood) await(word_of(a, a.rank, 16), round - 1);
    send(gm<int32_t>(a.out[peer]), p, round);
    if (!kGood) await(word_of(a, a.rank, 16), round - 1);
    publish(word_of(a, peer, 0), round);
    await(word_of(a, a.rank, 0), round);
    receive(p + 64, gm<int32_t>(a.out[a.rank]));
    require(p[64] == round);
    publish(word_of(a, peer, 16), round);
  }
}
EPSIM_ENTRY(sg4);

// The number of a call grows beyond 31 bits; "at least" in 32 bits then holds at once.
template <bool kGood>
void sg7_wrap(gm<const Args> args) {
  using Word = std::conditional_t<kGood, int64_t, int32_t>;
  const Args a = args[0];
  const ub<int32_t> p(0);
  const gm<Word> magic_word(a.words[0]);
  for (int32_t call = 1; call <= 2; ++call) {
    const auto magic = static_cast<Word>(int64_t{0x7ffffffe} + call);
    if (a.rank == 1) {
      await(word_of(a, 1, 0), call - 1);
      send(gm<int32_t>(a.out[0]), p, call);
      publish(magic_word, magic);
    } else {
      await(magic_word, magic);
      receive(p, gm<int32_t>(a.out[0]));
      require(p[0] == call);
      publish(word_of(a, 1, 0), call);
    }
  }
}
EPSIM_ENTRY(sg7_wrap);

// A rank without tokens takes part all the same; a count carries a mark, since 0 is a count.
template <bool kGood>
void sg12(gm<const Args> args) {
  const Args a = args[0];
  const int32_t num_tokens = a.rank == 0 ? 3 : 0;
  if (!kGood && num_tokens == 0) return;
  publish(word_of(a, 1 - a.rank, 0), 256 + num_tokens);
  await(word_of(a, a.rank, 0), 256);
  asc_store_dev(gm<int32_t>(a.result), asc_load_dev(word_of(a, a.rank, 0)) - 256);
}
EPSIM_ENTRY(sg12);

// Rounds of three tokens, then the end. "The end, and a token is missing": it came between the two looks, of
// which nothing says which comes first.
template <bool kGood>
void ot1(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> end = word_of(a, 0, 64);
  for (int32_t round = 1; round <= 8; ++round) {
    if (a.rank == 1) {
      for (int token = 0; token < 3; ++token) publish(word_of(a, 0, 16 * token), round);
      publish(end, round);
      await(word_of(a, 1, 0), round);
      continue;
    }
    for (bool is_end = false; !is_end;) {
      if (kGood) is_end = asc_load_dev(end) == round;
      int num_tokens = 0;
      for (int token = 0; token < 3; ++token) {
        num_tokens += asc_load_dev(word_of(a, 0, 16 * token)) == round ? 1 : 0;
      }
      if (!kGood) is_end = asc_load_dev(end) == round;
      require(!is_end || num_tokens == 3);
      asc_nop(300);
    }
    publish(word_of(a, 1, 0), round);
  }
}
EPSIM_ENTRY(ot1);

// The flag is sent while the copy of the data is under way.
template <bool kGood>
void ot2(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  if (a.rank == 1) {
    start_send(gm<int32_t>(a.out[0]), p, 5);
    if (kGood) wait_for(PIPE_MTE3, PIPE_S);
    publish(word_of(a, 0, 0), 1);
  } else {
    await(word_of(a, 0, 0), 1);
    receive(p, gm<int32_t>(a.out[0]));
    require(p[0] == 5);
  }
}
EPSIM_ENTRY(ot2);

// A region that is exactly full, read 32 B too far: the flag behind it belongs to somebody else.
template <bool kGood>
void ot5(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> region(a.out[0]);
  if (a.rank == 1) {
    asc_store_dev(region + (kGood ? 1024 + 32 : 1024) / 4, 7);
  } else {
    asc_copy_gm2ub_align(ub<int32_t>(0), region, 1024 + 32);
  }
}
EPSIM_ENTRY(ot5);

// Where combine's rows begin is computed with one byte per element; dispatch's rows have two.
template <bool kGood>
void ot6(gm<const Args> args) {
  const Args a = args[0];
  constexpr int kTokens = 8;
  constexpr int kHidden = 64;
  const gm<int32_t> window(a.out[0]);
  if (a.rank == 1) {
    send(window + kTokens * kHidden * (kGood ? 2 : 1) / 4, ub<int32_t>(0), 3);
  } else {
    asc_copy_gm2ub_align(ub<int32_t>(0), window, kTokens * kHidden * 2);
  }
}
EPSIM_ENTRY(ot6);

// Four status words, 32 B apart, are cleared as if they were neighbours.
template <bool kGood>
void ot7(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  for (int32_t round = 1; round <= 2; ++round) {
    if (a.rank == 1) {
      await(word_of(a, 1, 0), round - 1);
      for (int i = 0; i < 4; ++i) {
        send(gm<int32_t>(a.out[0]) + 8 * i, p, round);
        publish(word_of(a, 0, 8 * i), 1);
      }
      continue;
    }
    for (int i = 0; i < 4; ++i) {
      await(word_of(a, 0, 8 * i), 1);
      receive(p, gm<int32_t>(a.out[0]) + 8 * i);
      require(p[0] == round);
    }
    for (int i = 0; i < 4; ++i) asc_store_dev(word_of(a, 0, kGood ? 8 * i : i), 0);
    publish(word_of(a, 1, 0), round);
  }
}
EPSIM_ENTRY(ot7);

// A flag that two AIVs wait for is cleared by the first that saw it.
template <bool kGood>
void ot11(gm<const Args> args) {
  const Args a = args[0];
  if (a.rank == 1) {
    if (asc_get_block_idx() == 0) publish(word_of(a, 0, 0), 1);
    return;
  }
  await(word_of(a, 0, 0), 1);
  if (kGood) sync_aivs(PIPE_S);
  if (asc_get_block_idx() == 0) asc_store_dev(word_of(a, 0, 0), 0);
}
EPSIM_ENTRY(ot11);

// An exchange in slices through a small buffer, with a barrier before each read and, repaired, after it.
template <bool kGood>
void hc1(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  const uint64_t peer = 1 - a.rank;
  const auto barrier = [&](int32_t number) {
    publish(word_of(a, peer, 0), number);
    await(word_of(a, a.rank, 0), number);
  };
  for (int32_t slice = 1; slice <= 3; ++slice) {
    send(gm<int32_t>(a.out[peer]), p, slice);
    barrier(2 * slice - 1);
    receive(p + 64, gm<int32_t>(a.out[a.rank]));
    require(p[64] == slice);
    if (kGood) barrier(2 * slice);
  }
}
EPSIM_ENTRY(hc1);

template <bool kGood>
void tell_peers(const Args& a) {
  for (uint64_t peer = 0; peer < a.num_ranks; ++peer) {
    if (peer == a.rank) {
      if (kGood) continue;
      return;
    }
    publish(word_of(a, peer, static_cast<int>(a.rank)), 1);
  }
}

// One core serves several peers; at itself it returns.
template <bool kGood>
void hc2(gm<const Args> args) {
  const Args a = args[0];
  tell_peers<kGood>(a);
  for (uint64_t peer = 0; peer < a.num_ranks; ++peer) {
    if (peer != a.rank) await(word_of(a, a.rank, static_cast<int>(peer)), 1);
  }
}
EPSIM_ENTRY(hc2);
