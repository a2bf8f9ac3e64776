// The calls of kernels that are about pipes, flags, caches, fences and lanes.
#include <cstring>
#include <twin/machine.hpp>
#include <twin/runtime.hpp>

namespace epsim::twin::rt {

namespace {

// The scalar unit that runs now; the call means nothing inside a VF.
struct ScalarCall {
  Machine& machine;
  Thread& thread;
  Core& core;

  explicit ScalarCall(Where where, bool is_neutral = false)
      : machine(Machine::current()), thread(machine.thread(where)), core(*thread.core) {
    machine.count_op();
    if (thread.is_lane) {
      raise(Rule::bad_argument, thread.site(where), "this call is of the scalar unit, not of a VF");
    }
    if (!is_neutral) {
      thread.poll.reset();
      machine.space().has_progress = true;
    }
  }
};

Lane& lane_call(Where where, bool is_neutral = false) {
  Machine& machine = Machine::current();
  Thread& thread = machine.thread(where);
  machine.count_op();
  if (!thread.is_lane) {
    raise(Rule::bad_argument, thread.site(where),
          "this call is of the lanes of a VF, not of the scalar unit");
  }
  if (!is_neutral) {
    thread.poll.reset();
    machine.space().has_progress = true;
  }
  return static_cast<Lane&>(thread);
}

void check_shape(const CopyShape& shape, std::int64_t ub_stride, std::uint64_t ub_offset, const Site& site) {
  if (shape.num_bursts > kMaxBursts || shape.burst_bytes > kMaxBurstBytes) {
    raise(Rule::bad_argument, site,
          "a copy takes at most 4095 bursts of 2097151 B, not " + std::to_string(shape.num_bursts) + " of " +
              std::to_string(shape.burst_bytes));
  }
  const bool is_compact = ub_stride == static_cast<std::int64_t>(shape.burst_bytes);
  if (ub_offset % kUbAlign != 0 || (shape.num_bursts > 1 && !is_compact && ub_stride % 32 != 0)) {
    raise(Rule::unaligned_access, site,
          "the UB side of a copy, offset " + std::to_string(ub_offset) + " and stride " +
              std::to_string(ub_stride) + ", must be 32 B aligned");
  }
}

void copy(pipe_t pipe, std::uint64_t gm_address, std::uint64_t ub_offset, const CopyShape& shape,
          Where where) {
  const ScalarCall call(where);
  const bool is_in = pipe == PIPE_MTE2;
  const Site site{where, call.core.rank(), call.core.idx(), pipe, -1};
  check_shape(shape, is_in ? shape.dst_stride_bytes : shape.src_stride_bytes, ub_offset, site);
  if (shape.num_bursts == 0 || shape.burst_bytes == 0) {
    return;
  }
  PipeOp op;
  op.kind = is_in ? PipeOp::Kind::copy_in : PipeOp::Kind::copy_out;
  op.site = site;
  op.gm_address = gm_address;
  op.ub_offset = ub_offset;
  op.shape = shape;
  op.is_add = !is_in && call.core.is_atomic_add;
  call.core.issue(pipe, std::move(op));
}

std::uint64_t warp_op(Lane& lane, WarpOp op, std::uint64_t bits, Where where) {
  lane.bits = bits;
  lane.vf->warp_op(lane, op, where);
  return lane.bits;
}

}  // namespace

void dcci(std::uint64_t address, Where where) {
  const ScalarCall call(where, true);
  const Site site = call.thread.site(where);
  const Span span = call.machine.space().gm(address, 1, site);
  call.core.scalar_cache().clean_line(call.machine.space().shadow, *span.region, span.offset, site);
}

void dcci_all(Where where) {
  const ScalarCall call(where, true);
  call.core.scalar_cache().clean_all(call.machine.space().shadow, call.thread.site(where));
}

void dcci_simt_all(Where where) { lane_call(where, true).core->simt_cache().drop_all(); }

void data_barrier(dsb_t scope, Where where) {
  const ScalarCall call(where, true);
  if (scope != DSB_UB) {
    call.core.in_flight().land_all_of(call.thread.clock.stamp());
    call.core.refresh();
  }
  call.thread.clock.fence(scope == DSB_UB ? kScopeCore : kScopeGm);
  call.thread.yield();
}

std::uint32_t block_idx(Where where) {
  return static_cast<std::uint32_t>(ScalarCall(where, true).core.idx());
}
std::uint32_t block_num(Where where) { return ScalarCall(where, true).core.launch()->num_blocks; }

std::uint32_t ub_bytes() {
  return static_cast<std::uint32_t>(Machine::current().running_thread().core->ub().num_bytes);
}

// 1 GHz; the cards of different ranks count from different zeros.
std::int64_t system_cycle() {
  const Machine& machine = Machine::current();
  return machine.cycle() + 1'000'003 * (machine.running_thread().core->rank() + 1);
}

void nop(std::int64_t num_cycles, Where where) {
  Machine& machine = Machine::current();
  machine.count_op();
  if (num_cycles > 0) {
    machine.thread(where).yield();
  }
}

void trap(std::int64_t code, Where where) {
  Thread& thread = Machine::current().thread(where);
  raise(Rule::kernel_trap, thread.site(where), "the kernel trapped with code " + std::to_string(code));
}

void init_soc_state(Where where) { ScalarCall(where).core.is_atomic_add = false; }

void copy_gm2ub(std::uint64_t ub_offset, std::uint64_t gm_address, const CopyShape& shape, Where where) {
  copy(PIPE_MTE2, gm_address, ub_offset, shape, where);
}
void copy_ub2gm(std::uint64_t gm_address, std::uint64_t ub_offset, const CopyShape& shape, Where where) {
  copy(PIPE_MTE3, gm_address, ub_offset, shape, where);
}
void set_atomic_add(bool is_on, Where where) { ScalarCall(where).core.is_atomic_add = is_on; }

void notify(pipe_t source, pipe_t target, std::int64_t id, Where where) {
  ScalarCall(where).core.notify(source, target, id, where);
}
void wait(pipe_t source, pipe_t target, std::int64_t id, Where where) {
  ScalarCall(where).core.wait(source, target, id, where);
}
void sync_pipe(pipe_t pipe, Where where) { ScalarCall(where).core.sync_pipe(pipe, where); }
void inter_arrive(pipe_t pipe, std::int64_t id, Where where) {
  ScalarCall(where).core.inter_arrive(pipe, id, where);
}
void inter_wait(pipe_t pipe, std::int64_t id, Where where) {
  ScalarCall(where).core.inter_wait(pipe, id, where);
}

void vf_call(std::int64_t num_threads, std::function<void()> body, Where where) {
  const ScalarCall call(where);
  PipeOp op;
  op.kind = PipeOp::Kind::vf;
  op.site = {where, call.core.rank(), call.core.idx(), PIPE_V, -1};
  if (num_threads < 1 || num_threads > kMaxThreads) {
    raise(Rule::bad_argument, op.site, "a VF has 1..2048 threads, not " + std::to_string(num_threads));
  }
  op.body = std::move(body);
  op.num_threads = static_cast<std::uint32_t>(num_threads);
  call.core.issue(PIPE_V, std::move(op));
}

void syncthreads(Where where) {
  Lane& lane = lane_call(where);
  lane.vf->syncthreads(lane, where);
}

void threadfence(bool is_block_only, Where where) {
  Lane& lane = lane_call(where, true);
  if (!is_block_only && !lane.core->in_flight().empty()) {
    lane.core->in_flight().land_all_of(lane.clock.stamp());
    lane.core->refresh();
  }
  lane.clock.fence(is_block_only ? kScopeCore : kScopeGm);
}

void syncwarp(Where where) { warp_op(lane_call(where), WarpOp::sync, 0, where); }

std::uint32_t ballot(bool predicate, Where where) {
  return static_cast<std::uint32_t>(warp_op(lane_call(where), WarpOp::ballot, predicate ? 1 : 0, where));
}

std::uint64_t shuffle(std::uint64_t bits, Shuffle kind, std::uint32_t operand, Where where) {
  Lane& lane = lane_call(where);
  lane.shuffle = kind;
  lane.operand = operand;
  return warp_op(lane, WarpOp::shuffle, bits, where);
}

}  // namespace epsim::twin::rt
