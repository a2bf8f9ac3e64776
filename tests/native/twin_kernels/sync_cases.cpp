// Flags, barriers, races between pipes, lanes, AIVs and ranks.
#include <kernels/cases.hpp>

template <bool kGood>
void flag_id(gm<const Args>) {
  const int id = kGood ? 7 : 8;
  asc_sync_notify(PIPE_S, PIPE_MTE2, id);  // <- flag_id
  asc_sync_wait(PIPE_S, PIPE_MTE2, id);
}
EPSIM_CASE(flag_id);

template <bool kGood>
void set_twice(gm<const Args>) {
  asc_sync_notify(PIPE_MTE2, PIPE_S, 0);
  if (kGood) asc_sync_wait(PIPE_MTE2, PIPE_S, 0);
  asc_sync_notify(PIPE_MTE2, PIPE_S, 0);  // <- set_twice
  asc_sync_pipe(PIPE_ALL);
  asc_sync_wait(PIPE_MTE2, PIPE_S, 0);
}
EPSIM_CASE(set_twice);

template <bool kGood>
void wrong_event(gm<const Args> args) {
  const Args a = args[0];
  asc_copy_gm2ub_align(ub<int32_t>(0), gm<int32_t>(a.in), 64);
  asc_sync_notify(PIPE_MTE2, PIPE_S, 1);
  asc_sync_wait(PIPE_MTE2, PIPE_S, kGood ? 1 : 2);  // <- wrong_event
}
EPSIM_CASE(wrong_event);

template <bool kGood>
void queue_waits_for_ever(gm<const Args>) {
  if (kGood) asc_sync_notify(PIPE_S, PIPE_V, 3);
  asc_sync_wait(PIPE_S, PIPE_V, 3);  // <- queue_waits_for_ever
}
EPSIM_CASE(queue_waits_for_ever);

template <bool kGood>
void flag_left(gm<const Args>) {
  asc_sync_notify(PIPE_S, PIPE_MTE3, 4);  // <- flag_left
  if (kGood) asc_sync_wait(PIPE_S, PIPE_MTE3, 4);
}
EPSIM_CASE(flag_left);

template <bool kGood>
void too_many_pending(gm<const Args>) {
  for (int i = 0; i < (kGood ? 15 : 16); ++i) {
    asc_sync_inter_arrive(PIPE_S, 2);  // <- too_many_pending
  }
  for (int i = 0; i < (kGood ? 15 : 16); ++i) {
    asc_sync_inter_wait(PIPE_S, 2);
  }
}
EPSIM_CASE(too_many_pending);

template <bool kGood>
void arrival_left(gm<const Args>) {
  asc_sync_inter_arrive(PIPE_S, 5);
  if (kGood) asc_sync_inter_wait(PIPE_S, 5);
}  // the end of the kernel has no line of its own: the last call is named
EPSIM_CASE(arrival_left);

template <bool kGood>
void missing_arrival(gm<const Args>) {
  if (kGood || asc_get_block_idx() == 0) {
    asc_sync_inter_arrive(PIPE_S, 6);
    asc_sync_inter_wait(PIPE_S, 6);  // <- missing_arrival
  }
}
EPSIM_CASE(missing_arrival);

__simt_vf__ inline void fill_words(ub<int32_t> p) { p[threadIdx.x] = 1; }     // <- lanes_then_copy
__simt_vf__ inline void double_words(ub<int32_t> p) { p[threadIdx.x] *= 2; }  // <- copy_then_lanes

// MTE2 -> V: double_words against the copy.
template <bool kGood>
void copy_then_lanes(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  asc_vf_call<fill_words>(64, p);
  asc_sync_notify(PIPE_V, PIPE_MTE2, 1);
  asc_sync_wait(PIPE_V, PIPE_MTE2, 1);
  asc_copy_gm2ub_align(p, gm<int32_t>(a.in), 256);  // <- copy_then_lanes
  if (kGood) {
    asc_sync_notify(PIPE_MTE2, PIPE_V, 0);
    asc_sync_wait(PIPE_MTE2, PIPE_V, 0);
  }
  asc_vf_call<double_words>(64, p);
}
EPSIM_CASE(copy_then_lanes);

// V -> MTE3: fill_words above against the copy.
template <bool kGood>
void lanes_then_copy(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  asc_vf_call<fill_words>(64, p);
  if (kGood) {
    asc_sync_notify(PIPE_V, PIPE_MTE3, 0);
    asc_sync_wait(PIPE_V, PIPE_MTE3, 0);
  }
  asc_copy_ub2gm_align(gm<int32_t>(a.out + 1024 * asc_get_block_idx()), p, 256);  // <- lanes_then_copy
}
EPSIM_CASE(lanes_then_copy);

// MTE3 -> MTE2: the buffer is filled again before it has been stored.
template <bool kGood>
void buffer_reused(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> out(a.out + 1024 * asc_get_block_idx());
  const ub<int32_t> p(0);
  for (int i = 0; i < 2; ++i) {
    asc_copy_gm2ub_align(p, gm<int32_t>(a.in), 64);  // <- buffer_reused
    asc_sync_notify(PIPE_MTE2, PIPE_MTE3, 0);
    asc_sync_wait(PIPE_MTE2, PIPE_MTE3, 0);
    asc_copy_ub2gm_align(out + 16 * i, p, 64);  // <- buffer_reused
    if (kGood) {
      asc_sync_notify(PIPE_MTE3, PIPE_MTE2, 0);
      asc_sync_wait(PIPE_MTE3, PIPE_MTE2, 0);
    }
  }
}
EPSIM_CASE(buffer_reused);

// Two copies of one pipe to one place.
template <bool kGood>
void overlap_in_pipe(gm<const Args> args) {
  const Args a = args[0];
  asc_copy_gm2ub_align(ub<int32_t>(0), gm<int32_t>(a.in), 64);
  if (kGood) asc_sync_pipe(PIPE_MTE2);
  asc_copy_gm2ub_align(ub<int32_t>(0), gm<int32_t>(a.in + 64), 64);  // <- overlap_in_pipe
}
EPSIM_CASE(overlap_in_pipe);

// Data, fence, flag to the other AIV.
template <bool kGood>
void flag_without_fence(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> flag(a.words);
  const gm<int32_t> data(a.words + 512);
  if (asc_get_block_idx() == 0) {
    data[0] = 4;
    asc_dcci(data);
    if (kGood) asc_sync_data_barrier(DSB_DDR);
    asc_store_dev(flag, 1);
  } else {
    while (asc_load_dev(flag) == 0) asc_nop(300);
    const int32_t value = data[0];  // <- flag_without_fence
    (void)value;
  }
}
EPSIM_CASE(flag_without_fence);

// Stores past the cache overtake each other unless a barrier stands between: the reader sees the flag, not
// the data.
template <bool kGood>
void bypass_order(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> flag(a.words);
  const gm<int32_t> data(a.words + 512);
  if (asc_get_block_idx() == 0) {
    asc_store_dev(data, 4);
    if (kGood) asc_sync_data_barrier(DSB_DDR);
    asc_store_dev(flag, 1);
  } else {
    while (asc_load_dev(flag) == 0) asc_nop(300);
    if (asc_load_dev(data) != 4) asc_trap(1);  // <- bypass_order
  }
}
EPSIM_CASE(bypass_order);

// The same to a peer.
template <bool kGood>
void remote_order(gm<const Args> args) {
  const Args a = args[0];
  if (asc_get_block_idx() != 0) return;
  if (a.rank == 0) {
    asc_store_dev(gm<int32_t>(a.peer_words + 512), 4);
    if (kGood) asc_sync_data_barrier(DSB_DDR);
    asc_atomic_add(gm<int32_t>(a.peer_words), 1);
  } else {
    while (asc_load_dev(gm<int32_t>(a.words)) == 0) asc_nop(300);
    if (asc_load_dev(gm<int32_t>(a.words + 512)) != 4) asc_trap(1);  // <- remote_order
  }
}
EPSIM_CASE(remote_order);

// AIVs exchange through GM.
template <bool kGood>
void no_core_barrier(gm<const Args> args) {
  const Args a = args[0];
  const int own = asc_get_block_idx();
  const gm<int32_t> out(a.out);
  const ub<int32_t> p(0);
  p[0] = own;
  asc_copy_ub2gm_align(out + 64 * own, p, 4);  // <- no_core_barrier
  if (kGood) {
    asc_sync_inter_arrive(PIPE_MTE3, 0);
    asc_sync_inter_wait(PIPE_S, 0);
  }
  asc_copy_gm2ub_align(p + 16, out + 64 * (1 - own), 4);  // <- no_core_barrier
}
EPSIM_CASE(no_core_barrier);

// The arrive must stand behind the copies that it announces.
template <bool kGood>
void arrive_on_wrong_pipe(gm<const Args> args) {
  const Args a = args[0];
  const int own = asc_get_block_idx();
  const gm<int32_t> out(a.out);
  const ub<int32_t> p(0);
  p[0] = own;
  asc_copy_ub2gm_align(out + 64 * own, p, 4);  // <- arrive_on_wrong_pipe
  asc_sync_inter_arrive(kGood ? PIPE_MTE3 : PIPE_S, 0);
  asc_sync_inter_wait(PIPE_S, 0);
  asc_copy_gm2ub_align(p + 16, out + 64 * (1 - own), 4);  // <- arrive_on_wrong_pipe
}
EPSIM_CASE(arrive_on_wrong_pipe);

template <bool kGood>
__simt_vf__ void neighbours(ub<int32_t> p) {
  p[threadIdx.x] = threadIdx.x;  // <- no_syncthreads
  if (kGood) asc_syncthreads();
  p[128 + threadIdx.x] = p[(threadIdx.x + 40) % blockDim.x];  // <- no_syncthreads
}

template <bool kGood>
void no_syncthreads(gm<const Args>) {
  asc_vf_call<fill_words>(64, ub<int32_t>(0));
  asc_vf_call<neighbours<kGood>>(64, ub<int32_t>(0));
}
EPSIM_CASE(no_syncthreads);

template <bool kGood>
__simt_vf__ void warp_neighbours(ub<int32_t> p) {
  p[threadIdx.x] = threadIdx.x;  // <- no_syncwarp
  if (kGood) asc_syncwarp();
  p[128 + threadIdx.x] = p[(threadIdx.x + 1) % 32];  // <- no_syncwarp
}

template <bool kGood>
void no_syncwarp(gm<const Args>) {
  asc_vf_call<fill_words>(32, ub<int32_t>(0));
  asc_vf_call<warp_neighbours<kGood>>(32, ub<int32_t>(0));
}
EPSIM_CASE(no_syncwarp);

template <bool kGood>
__simt_vf__ void some_leave(ub<int32_t> p) {
  if (!kGood && threadIdx.x >= 40) return;
  asc_syncthreads();  // <- lanes_leave
  p[threadIdx.x] = 1;
}

template <bool kGood>
void lanes_leave(gm<const Args>) {
  asc_vf_call<some_leave<kGood>>(64, ub<int32_t>(0));
}
EPSIM_CASE(lanes_leave);

// A lane publishes for the whole block: its fence covers what the barrier brought, but it must be there.
template <bool kGood>
__simt_vf__ void publish(gm<int32_t> data, gm<int32_t> flag) {
  data[threadIdx.x] = 1;
  asc_syncthreads();
  if (threadIdx.x == 0) {
    if (kGood) asc_threadfence();
    asc_atomic_add(flag, 1);
  }
}
__simt_vf__ inline void consume(gm<int32_t> data, gm<int32_t> flag) {
  if (threadIdx.x == 0) {
    while (asc_ldcg(flag) == 0) asc_nop(300);
  }
  asc_syncthreads();
  const int32_t value = data[threadIdx.x];  // <- no_threadfence
  (void)value;
}

template <bool kGood>
void no_threadfence(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> data(a.words + 512);
  const gm<int32_t> flag(a.words);
  if (asc_get_block_idx() == 0) {
    asc_vf_call<publish<kGood>>(64, data, flag);
  } else {
    asc_vf_call<consume>(64, data, flag);
  }
}
EPSIM_CASE(no_threadfence);

template <bool kGood>
void trapped(gm<const Args> args) {
  const Args a = args[0];
  if (asc_load_dev(gm<int32_t>(a.in)) != (kGood ? 0 : 1)) asc_trap(42);  // <- trapped
}
EPSIM_CASE(trapped);

template <bool kGood>
void polls_for_ever(gm<const Args> args) {
  const Args a = args[0];
  const gm<int32_t> word(a.words);
  if (kGood) asc_atomic_add(word, 1);
  while (asc_load_dev(word) == 0) asc_nop(300);  // <- polls_for_ever
}
EPSIM_CASE(polls_for_ever);
