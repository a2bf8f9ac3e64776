// Sums of bf16 rows: rows are loaded into slots of UB, summed there by SIMT lanes in fp32, and stored.
//
// Slots form two halves that take turns, so that one is loaded while the other is summed or stored; one half
// when UB is short. A job is one output row with its inputs in consecutive slots; the sum replaces the first
// slot.
#pragma once

#include <bit>

#include <kernels/common/simt.hpp>

namespace epsim {

inline constexpr uint32_t kMaxJobs = 8;  // of a half: their input counts travel in one 64-bit register

namespace simt {

// fp32 to bf16, nearest, ties to even; a NaN stays one.
__simt_callee__ uint32_t round_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return bits >> 16 | 0x40u;
  }
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

__simt_callee__ float low_half(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
__simt_callee__ float high_half(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

}  // namespace simt

// What the jobs of one half have in common, in 32-bit words.
struct RowShape {
  uint32_t slot_words;    // distance of slots
  uint32_t row_words;     // H / 2, pairs of bf16 in front of a slot
  uint32_t weight_words;  // behind the row: fp32 bits, or-ed over the inputs; 0 = none
  uint32_t num_plain;     // first inputs of each job that have no weights (biases)
};

constexpr uint32_t job_count(uint64_t counts, uint32_t job) {
  return static_cast<uint32_t>(counts >> 8 * job) & 0xff;
}

// A job without inputs still has the slot of its output.
constexpr uint32_t job_slots(uint32_t count) { return count == 0 ? 1 : count; }

__simt_callee__ void sum_pair(ub<uint32_t> first, const RowShape& shape, uint32_t count, uint32_t word) {
  if (count == 0) {
    first[word] = 0;
    return;
  }
  if (count == 1) {
    return;  // a copy, bit for bit
  }
  const uint32_t start = first[word];
  float low = simt::low_half(start);
  float high = simt::high_half(start);
  for (uint32_t input = 1; input < count; ++input) {
    const uint32_t pair = first[input * shape.slot_words + word];
    low += simt::low_half(pair);
    high += simt::high_half(pair);
  }
  first[word] = simt::round_to_bf16(low) | simt::round_to_bf16(high) << 16;
}

// Each weight belongs to one input and is zero in the others, so that this restores its bits.
__simt_callee__ void or_weight(ub<uint32_t> first, const RowShape& shape, uint32_t count, uint32_t word) {
  uint32_t bits = 0;
  for (uint32_t input = shape.num_plain; input < count; ++input) {
    const uint32_t part = first[input * shape.slot_words + word];
    bits |= part;
  }
  first[word] = bits;
}

__simt_vf__ __launch_bounds__(kMaxThreads) inline void sum_jobs(ub<uint32_t> slots, RowShape shape,
                                                                uint64_t counts, uint32_t num_jobs) {
  const uint32_t num_words = shape.row_words + shape.weight_words;
  for (uint32_t i = threadIdx.x; i < num_jobs * num_words; i += blockDim.x) {
    const uint32_t job = i / num_words;
    const uint32_t word = i % num_words;
    uint32_t slot = 0;
    for (uint32_t before = 0; before < job; ++before) {
      slot += job_slots(job_count(counts, before));
    }
    const ub<uint32_t> first = slots + slot * shape.slot_words;
    if (word < shape.row_words) {
      sum_pair(first, shape, job_count(counts, job), word);
    } else {
      or_weight(first, shape, job_count(counts, job), word);
    }
  }
}

// Where a job's output goes; 0 = not wanted.
struct RowTarget {
  uint64_t row;
  uint64_t weights;
};

// Takes jobs one by one; S drives it. Uses flag ids 0 and 1 of MTE2->V, MTE2->MTE3, V->MTE3 and MTE3->MTE2.
class RowBatch {
 public:
  // `ub_start` .. `ub_end` is UB for slots; `max_inputs` is the largest job.
  __aicore__ RowBatch(const RowShape& shape, uint32_t num_threads, uint32_t ub_start, uint32_t ub_end,
                      uint32_t max_inputs)
      : shape_(shape), num_threads_(num_threads), ub_start_(ub_start) {
    const uint32_t num_slots = ub_end <= ub_start ? 0 : (ub_end - ub_start) / slot_bytes();
    num_halves_ = num_slots >= 2 * job_slots(max_inputs) ? 2 : 1;
    half_slots_ = num_slots / num_halves_;
    if (half_slots_ < job_slots(max_inputs)) {
      asc_trap(kTrapUbTooSmall);
    }
  }

  // Begin a job; what follows are its inputs in the order in which they are summed.
  __aicore__ void add_job(uint32_t num_inputs, RowTarget target) {
    if (num_jobs_ == kMaxJobs || num_used_ + job_slots(num_inputs) > half_slots_) {
      flush();
    }
    if (num_jobs_ == 0 && is_in_flight_[half_]) {
      asc_sync_wait(PIPE_MTE3, PIPE_MTE2, half_);
      is_in_flight_[half_] = false;
    }
    counts_ |= uint64_t{num_inputs} << 8 * num_jobs_;
    is_plain_copy_ = is_plain_copy_ && num_inputs == 1 && shape_.weight_words == 0;
    targets_[num_jobs_] = target;
    first_slots_[num_jobs_] = num_used_;
    next_input_ = num_used_;
    num_used_ += job_slots(num_inputs);
    ++num_jobs_;
  }

  __aicore__ void load_input(uint64_t address, uint32_t num_bytes) {
    asc_copy_gm2ub_align(slot(next_input_), gm<const uint8_t>(address), 1, num_bytes, num_bytes, num_bytes);
    ++next_input_;
  }

  // Sum and store all jobs so far.
  __aicore__ void flush() {
    if (num_jobs_ == 0) {
      return;
    }
    if (is_plain_copy_) {
      order(PIPE_MTE2, PIPE_MTE3, half_);
    } else {
      order(PIPE_MTE2, PIPE_V, half_);
      asc_vf_call<sum_jobs>(num_threads_, ub_cast<uint32_t>(slot(0)), shape_, counts_, num_jobs_);
      order(PIPE_V, PIPE_MTE3, half_);
    }
    for (uint32_t job = 0; job < num_jobs_; ++job) {
      store(targets_[job], slot(first_slots_[job]));
    }
    asc_sync_notify(PIPE_MTE3, PIPE_MTE2, half_);
    is_in_flight_[half_] = true;
    half_ = (half_ + 1) % num_halves_;
    num_jobs_ = num_used_ = 0;
    counts_ = 0;
    is_plain_copy_ = true;
  }

  // Flush, and take back every flag.
  __aicore__ void finish() {
    flush();
    for (uint32_t half = 0; half < num_halves_; ++half) {
      if (is_in_flight_[half]) {
        asc_sync_wait(PIPE_MTE3, PIPE_MTE2, half);
        is_in_flight_[half] = false;
      }
    }
  }

 private:
  __aicore__ uint32_t slot_bytes() const { return 4 * shape_.slot_words; }
  __aicore__ ub<uint8_t> slot(uint32_t index) const {
    return ub<uint8_t>(ub_start_ + (half_ * half_slots_ + index) * slot_bytes());
  }
  __aicore__ void store(const RowTarget& target, ub<uint8_t> source) const {
    const uint32_t row_bytes = 4 * shape_.row_words;
    asc_copy_ub2gm_align(gm<uint8_t>(target.row), source, 1, row_bytes, row_bytes, row_bytes);
    if (target.weights != 0) {
      const uint32_t num_bytes = 4 * shape_.weight_words;
      asc_copy_ub2gm_align(gm<uint8_t>(target.weights), source + row_bytes, 1, num_bytes, num_bytes,
                           num_bytes);
    }
  }

  RowShape shape_;
  uint32_t num_threads_;
  uint32_t ub_start_;
  uint32_t num_halves_ = 1;
  uint32_t half_slots_ = 0;
  uint32_t half_ = 0;
  uint32_t num_jobs_ = 0;
  uint32_t num_used_ = 0;
  uint32_t next_input_ = 0;
  uint64_t counts_ = 0;
  bool is_plain_copy_ = true;
  bool is_in_flight_[2] = {false, false};
  RowTarget targets_[kMaxJobs] = {};
  uint32_t first_slots_[kMaxJobs] = {};
};

}  // namespace epsim
