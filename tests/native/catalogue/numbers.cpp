// Sizes, offsets, masks and values.
#include <cmath>

#include <kernels/catalogue.hpp>

// A table in UB that grows with the configuration; repaired, it is worked off in tiles.
template <bool kGood, int kRows, int kCols>
void fill_table() {
  const int num_fitting = static_cast<int>(asc_get_ub_bytes()) / (4 * kCols);
  for (int row = 0; row < kRows; ++row) {
    ub<int32_t>(0)[(kGood ? row % num_fitting : row) * kCols + kCols - 1] = row;
  }
}
template <bool kGood>
void sg3(gm<const Args>) {
  fill_table<kGood, 128, 512>();
}
EPSIM_ENTRY(sg3);
template <bool kGood>
void sg5(gm<const Args>) {
  fill_table<kGood, 160, 384>();
}
EPSIM_ENTRY(sg5);
template <bool kGood>
void ot16(gm<const Args>) {
  fill_table<kGood, 64, 1024>();
}
EPSIM_ENTRY(ot16);

// Counts of six local experts per rank, one rank behind the other in UB.
template <bool kGood>
void sg6(gm<const Args> args) {
  const Args a = args[0];
  constexpr int kLocal = 6;
  constexpr int kStride = kGood ? 8 : kLocal;
  for (int rank = 0; rank < 4; ++rank) {
    asc_copy_gm2ub_align(ub<int32_t>(0) + rank * kStride, gm<int32_t>(a.in[0]) + rank * kLocal, 4 * kLocal);
  }
  wait_for(PIPE_MTE2, PIPE_S);
  for (int rank = 0; rank < 4; ++rank) {
    const int32_t last = ub<int32_t>(0)[rank * kStride + kLocal - 1];
    require(last == rank * kLocal + kLocal - 1);
  }
}
EPSIM_ENTRY(sg6);

template <bool kGood>
__simt_vf__ void count_ids(gm<int32_t> in, ub<int32_t> counts) {
  const int32_t id = in[threadIdx.x] % 9 - 1;
  if (kGood && id < 0) return;
  asc_atomic_add(counts + id, 1);
}

// Ids of -1 are counted.
template <bool kGood>
void sg13(gm<const Args> args) {
  const Args a = args[0];
  fill(ub<int32_t>(0), 8, 0);
  asc_vf_call<count_ids<kGood>>(32, gm<int32_t>(a.in[a.rank]), ub<int32_t>(0));
  wait_for(PIPE_V, PIPE_S);
  for (int i = 0; i < 8; ++i) asc_store_dev(gm<int32_t>(a.result) + i, ub<int32_t>(0)[i]);
}
EPSIM_ENTRY(sg13);

// Window of source 4: 4 x 8192 tokens x 128 KiB is 2^34 B.
template <bool kGood>
void sg1(gm<const Args> args) {
  const Args a = args[0];
  constexpr uint64_t kOffset = uint64_t{4} * 8192 * 131072;
  const uint64_t offset = kGood ? kOffset : static_cast<uint32_t>(kOffset);
  publish(gm<int32_t>(a.big + offset), 7);
  asc_sync_data_barrier(DSB_DDR);
  require(asc_load_dev(gm<int32_t>(a.big + kOffset)) == 7);
}
EPSIM_ENTRY(sg1);

// tokenIndex * topK * slotBytes in int32.
template <bool kGood>
void ot3(gm<const Args> args) {
  const Args a = args[0];
  constexpr int64_t kOffset = int64_t{8191} * 8 * 40960;
  const int64_t offset = kGood ? kOffset : static_cast<int32_t>(kOffset);
  publish(gm<int32_t>(a.big + static_cast<uint64_t>(offset)), 7);
}
EPSIM_ENTRY(ot3);

// A header and 32 B for each of 16384 x 8 lanes: 512 B more than 4 MiB.
template <bool kGood>
void yu12(gm<const Args> args) {
  const Args a = args[0];
  constexpr uint64_t kLast = 512 + (uint64_t{16384} * 8 - 1) * 32;
  asc_store_dev(gm<int32_t>(a.big + kLast), 1);
}
EPSIM_ENTRY(yu12);

// Contributions count as bfloat16, the sum as fp32.
template <bool kGood>
void yu13(gm<const Args> args) {
  const Args a = args[0];
  float sum = 0.0F;
  for (int k = 1; k <= 3; ++k) {
    const float contribution = 1.0F + static_cast<float>(k) / 512.0F;
    sum += kGood ? static_cast<float>(bfloat16_t(contribution)) : contribution;
  }
  asc_store_dev(gm<float>(a.result), sum);
}
EPSIM_ENTRY(yu13);

// Row 3 of 64 B, found through a pointer to elements of 2 B.
template <bool kGood>
void yu15(gm<const Args> args) {
  const Args a = args[0];
  using Element = std::conditional_t<kGood, uint8_t, uint16_t>;
  const gm<Element> rows(a.in[a.rank]);
  asc_store_dev(gm<int32_t>(a.result), asc_load_dev(gm_cast<int32_t>(rows + 3 * 64)));
}
EPSIM_ENTRY(yu15);

// 64 lanes check slots of which one comes twice, in a bitmap of two words.
template <bool kGood>
__simt_vf__ void check_slots(ub<uint32_t> bitmap, ub<uint32_t> num_repeated) {
  const uint32_t slot = threadIdx.x % 63;
  const uint32_t bit = 1U << slot % 32;
  uint32_t before = 0;
  if (kGood) {
    before = asc_atomic_or(bitmap + slot / 32, bit);
  } else {
    before = bitmap[slot / 32];
    bitmap[slot / 32] = before | bit;
  }
  if ((before & bit) != 0) asc_atomic_add(num_repeated, 1U);
}
template <bool kGood>
void yu16(gm<const Args> args) {
  const Args a = args[0];
  fill(ub<int32_t>(0), 16, 0);
  asc_vf_call<check_slots<kGood>>(64, ub<uint32_t>(0), ub<uint32_t>(32));
  wait_for(PIPE_V, PIPE_S);
  asc_store_dev(gm<int32_t>(a.result), ub<int32_t>(32)[0]);
}
EPSIM_ENTRY(yu16);

// Lanes of one destination are counted by the first of them.
template <bool kGood>
__simt_vf__ void count_groups(gm<int32_t> counts) {
  const uint32_t own = threadIdx.x % 4;
  const auto first_of_all = static_cast<uint32_t>(std::countr_zero(asc_ballot(true)));
  for (uint32_t destination = 0; destination < 4; ++destination) {
    const uint32_t group = asc_ballot(own == destination);
    const uint32_t owner = kGood ? static_cast<uint32_t>(std::countr_zero(group)) : first_of_all;
    if (own == destination && threadIdx.x == owner) counts[destination] = std::popcount(group);
  }
}
template <bool kGood>
void yu17(gm<const Args> args) {
  const Args a = args[0];
  asc_vf_call<count_groups<kGood>>(32, gm<int32_t>(a.result));
}
EPSIM_ENTRY(yu17);

// Counts of four experts and where their rows end.
template <bool kGood>
void sg10(gm<const Args> args) {
  const Args a = args[0];
  int32_t end = 0;
  for (int expert = 0; expert < 4; ++expert) {
    const int32_t count = gm<int32_t>(a.in[a.rank])[expert];
    end += count;
    asc_store_dev(gm<int32_t>(a.result) + expert, kGood ? count : end);
  }
}
EPSIM_ENTRY(sg10);

// The magnitude of an integer, taken from its bits as if they were a float.
template <bool kGood>
void ot10(gm<const Args> args) {
  const Args a = args[0];
  for (int i = 0; i < 4; ++i) {
    const int32_t number = -1 - i;
    const auto magnitude = std::bit_cast<int32_t>(std::fabs(std::bit_cast<float>(number)));
    asc_store_dev(gm<int32_t>(a.result) + i, kGood ? -number : magnitude);
  }
}
EPSIM_ENTRY(ot10);

__simt_vf__ inline void clear_words(ub<int32_t> p) { p[threadIdx.x] = 0; }

// 63 words are cleared by 64 lanes.
template <bool kGood>
void ot14(gm<const Args> args) {
  const Args a = args[0];
  const ub<int32_t> p(0);
  fill(p, 64, 5);
  asc_vf_call<clear_words>(kGood ? 63 : 64, p);
  wait_for(PIPE_V, PIPE_S);
  for (int i = 0; i < 2; ++i) asc_store_dev(gm<int32_t>(a.result) + i, p[62 + i]);
}
EPSIM_ENTRY(ot14);
