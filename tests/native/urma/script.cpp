// A kernel that plays scripts, one per AIV: rows of four words {operation, a, b, c}, written by
// tests/native/urmakit.py.
#include <twin/asc.hpp>

namespace {

enum Operation : uint64_t { kEnd, kStore, kFence, kPoll, kRead, kSync, kLanes, kCopy };

// Lanes write words a, a + 8, ... as lane index + c, without a fence.
__simt_vf__ void write_words(uint64_t address, uint64_t first) {
  asc_stcg(gm<uint64_t>(address) + threadIdx.x, first + threadIdx.x);
}

void poll(gm<const uint32_t> word, uint64_t mask, uint64_t value) {
  while ((asc_load_dev(word) & mask) != value) {
    asc_nop(300);
  }
}

// Bring bytes to UB and wait for them.
void read(uint64_t address, uint32_t num_bytes) {
  asc_copy_gm2ub_align(ub<uint8_t>(0), gm<const uint8_t>(address), num_bytes);
  asc_sync_notify(PIPE_MTE2, PIPE_S, 0);
  asc_sync_wait(PIPE_MTE2, PIPE_S, 0);
}

// Move bytes through UB; with `wait` until they are in GM.
void copy(uint64_t target, uint64_t source, uint64_t num_bytes_and_wait) {
  const auto num_bytes = static_cast<uint32_t>(num_bytes_and_wait);
  asc_copy_gm2ub_align(ub<uint8_t>(0), gm<const uint8_t>(source), num_bytes);
  asc_sync_notify(PIPE_MTE2, PIPE_MTE3, 1);
  asc_sync_wait(PIPE_MTE2, PIPE_MTE3, 1);
  asc_copy_ub2gm_align(gm<uint8_t>(target), ub<uint8_t>(0), num_bytes);
  if (num_bytes_and_wait >> 32 != 0) {
    asc_sync_notify(PIPE_MTE3, PIPE_S, 0);
    asc_sync_wait(PIPE_MTE3, PIPE_S, 0);
  }
}

void sync_aivs() {
  asc_sync_inter_arrive(PIPE_S, 0);
  asc_sync_inter_wait(PIPE_S, 0);
}

void play(gm<const uint64_t> row) {
  for (;; row += 4) {
    const uint64_t a = asc_load_dev(row + 1);
    const uint64_t b = asc_load_dev(row + 2);
    const uint64_t c = asc_load_dev(row + 3);
    switch (asc_load_dev(row)) {
      case kStore:
        if (c == 4) {
          asc_store_dev(gm<uint32_t>(a), static_cast<uint32_t>(b));
        } else {
          asc_store_dev(gm<uint64_t>(a), b);
        }
        break;
      case kFence:
        asc_sync_data_barrier(DSB_DDR);
        break;
      case kPoll:
        poll(gm<const uint32_t>(a), b, c);
        break;
      case kRead:
        read(a, static_cast<uint32_t>(b));
        break;
      case kSync:
        sync_aivs();
        break;
      case kLanes:
        asc_vf_call<write_words>(b, a, c);
        break;
      case kCopy:
        copy(a, b, c);
        break;
      default:
        return;
    }
  }
}

void script(gm<const uint64_t> scripts) {
  asc_init_soc_state();
  play(gm<const uint64_t>(asc_load_dev(scripts + asc_get_block_idx())));
}

}  // namespace

EPSIM_KERNEL(script, script);
