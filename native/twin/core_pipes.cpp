// The part of a core that is about its queues and flags.
#include <algorithm>
#include <cstring>
#include <twin/core.hpp>
#include <twin/machine.hpp>

namespace epsim::twin {

namespace {

std::string flag_text(pipe_t source, pipe_t target, std::int64_t id) {
  return std::string("flag ") + pipe_name(source) + " -> " + pipe_name(target) + " " + std::to_string(id);
}

std::uint16_t op_tid(std::uint32_t op) { return static_cast<std::uint16_t>(op % 65521); }

}  // namespace

void Core::check_flag(pipe_t source, pipe_t target, std::int64_t id, Where where) const {
  if (source > PIPE_MTE3 || target > PIPE_MTE3 || source == target || id < 0 || id >= kNumFlagIds) {
    raise(Rule::bad_argument, scalar_.site(where),
          flag_text(source, target, id) + ": two different pipes of a core and an id in 0..7 are needed");
  }
}

void Core::set_flag(pipe_t source, pipe_t target, std::int64_t id, const Knowledge& knowledge,
                    const Site& site) {
  Flag& set = flag(source, target, id);
  if (set.is_set && machine_.has_checks()) {
    raise(Rule::double_notify, site, flag_text(source, target, id) + " is set already",
          {{set.set_at, "set here"}});
  }
  set = {true, knowledge, site};
}

Knowledge Core::take_flag(pipe_t source, pipe_t target, std::int64_t id) {
  Flag& taken = flag(source, target, id);
  taken.is_set = false;
  return taken.knowledge;
}

void Core::notify(pipe_t source, pipe_t target, std::int64_t id, Where where) {
  check_flag(source, target, id, where);
  const Site site{where, rank_, idx_, source, -1};
  machine_.trace("notify", site, 0, 0, static_cast<std::uint64_t>(id));
  if (source == PIPE_S) {
    in_flight_.land_all_of(scalar_.clock.stamp());
    set_flag(source, target, id, scalar_.clock.snapshot(), site);
    refresh();
    scalar_.yield();
    return;
  }
  PipeOp op;
  op.kind = PipeOp::Kind::notify;
  op.site = site;
  op.other = target;
  op.id = id;
  issue(source, std::move(op));
}

void Core::wait(pipe_t source, pipe_t target, std::int64_t id, Where where) {
  check_flag(source, target, id, where);
  const Site site{where, rank_, idx_, target, -1};
  machine_.trace("wait", site, 0, 0, static_cast<std::uint64_t>(id));
  if (target == PIPE_S) {
    awaited_ = {source, target, id};
    block([this, source, target, id] { return flag(source, target, id).is_set; },
          flag_text(source, target, id), where);
    awaited_.reset();
    scalar_.clock.learn(take_flag(source, target, id));
    refresh();
    scalar_.yield();
    return;
  }
  PipeOp op;
  op.kind = PipeOp::Kind::wait;
  op.site = site;
  op.other = source;
  op.id = id;
  issue(target, std::move(op));
}

void Core::inter_arrive(pipe_t kind, std::int64_t id, Where where) {
  const Site site{where, rank_, idx_, kind, -1};
  if (kind > PIPE_MTE3 || id < 0 || id >= kNumCrossIds) {
    raise(Rule::bad_argument, scalar_.site(where), "a pipe of a core and an id in 0..15 are needed");
  }
  if (kind == PIPE_S) {
    in_flight_.land_all_of(scalar_.clock.stamp());
    launch_->flags->arrive(static_cast<std::uint32_t>(idx_), id, scalar_.clock.snapshot(), site);
    machine_.refresh_rank(rank_);
    scalar_.yield();
    return;
  }
  PipeOp op;
  op.kind = PipeOp::Kind::arrive;
  op.site = site;
  op.id = id;
  issue(kind, std::move(op));
}

void Core::inter_wait(pipe_t kind, std::int64_t id, Where where) {
  if (kind > PIPE_MTE3 || id < 0 || id >= kNumCrossIds) {
    raise(Rule::bad_argument, scalar_.site(where), "a pipe of a core and an id in 0..15 are needed");
  }
  if (kind == PIPE_S) {
    const auto own = static_cast<std::uint32_t>(idx_);
    block([this, own, id] { return launch_->flags->can_pass(own, id); },
          "all AIVs to arrive at cross-core flag " + std::to_string(id), where);
    scalar_.clock.learn(launch_->flags->pass(own, id));
    scalar_.yield();
    return;
  }
  PipeOp op;
  op.kind = PipeOp::Kind::inter_wait;
  op.site = {where, rank_, idx_, kind, -1};
  op.id = id;
  issue(kind, std::move(op));
}

bool Core::can_step(const Pipe& queue) const {
  if (queue.queue.empty()) {
    return false;
  }
  const PipeOp& head = queue.queue.front();
  switch (head.kind) {
    case PipeOp::Kind::vf:
      return !vf_ || vf_->can_step();
    case PipeOp::Kind::wait:
      return flag(head.other, queue.kind, head.id).is_set;
    case PipeOp::Kind::inter_wait:
      return launch_->flags->can_pass(static_cast<std::uint32_t>(idx_), head.id);
    default:
      return true;
  }
}

void Core::step_pipe(pipe_t kind) {
  Pipe& queue = pipe(kind);
  if (queue.queue.front().kind == PipeOp::Kind::vf) {
    step_vf(queue);
  } else {
    const PipeOp op = std::move(queue.queue.front());
    queue.queue.pop_front();
    run(queue, op);
  }
  refresh();
  finish();
}

void Core::run(Pipe& queue, const PipeOp& op) {
  const bool tells_others = op.kind == PipeOp::Kind::notify || op.kind == PipeOp::Kind::arrive;
  if (queue.kind == PIPE_V && tells_others && !in_flight_.empty()) {
    // Flags of V mean that the VFs before have finished their writes.
    in_flight_.land_all_but_of(scalar_.clock.agent);
  }
  switch (op.kind) {
    case PipeOp::Kind::copy_in:
    case PipeOp::Kind::copy_out:
      run_copy(queue, op);
      break;
    case PipeOp::Kind::notify:
      set_flag(queue.kind, op.other, op.id, queue.done, op.site);
      break;
    case PipeOp::Kind::wait: {
      const Knowledge taken = take_flag(op.other, queue.kind, op.id);
      queue.ordered = join(queue.ordered, taken);
      queue.done = join(queue.done, taken);
      break;
    }
    case PipeOp::Kind::arrive:
      launch_->flags->arrive(static_cast<std::uint32_t>(idx_), op.id, join(queue.done, op.issued), op.site);
      machine_.refresh_rank(rank_);
      break;
    case PipeOp::Kind::inter_wait: {
      const Knowledge passed = launch_->flags->pass(static_cast<std::uint32_t>(idx_), op.id);
      queue.ordered = join(queue.ordered, passed);
      queue.done = join(queue.done, passed);
      break;
    }
    case PipeOp::Kind::barrier:
      queue.ordered = join(queue.ordered, queue.done);
      break;
    case PipeOp::Kind::vf:
      break;
  }
}

void Core::run_copy(Pipe& queue, const PipeOp& op) {
  Space& space = machine_.space();
  const std::uint32_t number = ++queue.num_ops;
  const Knowledge known = join(op.issued, queue.ordered);
  const Access access{{queue.agent, op_tid(number), number}, known.known.get(), op.site};
  const bool is_in = op.kind == PipeOp::Kind::copy_in;
  const CopyShape& shape = op.shape;
  machine_.trace(is_in ? "copy_in" : "copy_out", op.site, op.gm_address,
                 std::uint64_t{shape.num_bursts} * shape.burst_bytes, op.ub_offset);
  for (std::uint32_t i = 0; i < shape.num_bursts; ++i) {
    const auto dst_step = static_cast<std::uint64_t>(shape.dst_stride_bytes * i);
    const auto src_step = static_cast<std::uint64_t>(shape.src_stride_bytes * i);
    const Span gm = space.gm(op.gm_address + (is_in ? src_step : dst_step), shape.burst_bytes, op.site);
    const Span ub = ub_span(op.ub_offset + (is_in ? dst_step : src_step), shape.burst_bytes, 1, op.site);
    if (!is_in) {
      op.is_add ? space.add_int32(gm, ub, access) : space.copy(gm, ub, access);
      continue;
    }
    space.copy(ub, gm, access);
    // A burst fills whole 32 B blocks: what lies behind its last byte is garbage.
    const std::uint64_t end = ub.offset + ub.num_bytes;
    const std::uint64_t tail = std::min((kUbAlign - end % kUbAlign) % kUbAlign, ub_->num_bytes - end);
    const bool is_compact = shape.dst_stride_bytes == shape.burst_bytes && i + 1 < shape.num_bursts;
    if (tail > 1 && !is_compact && machine_.has_checks()) {
      const std::uint64_t start = end + end % kCellBytes;
      space.shadow.write(*ub_, start, tail - end % kCellBytes, access, AccessKind::plain);
      set_by_copy_garbage(start, tail - end % kCellBytes);
    }
  }
  Knowledge after = join(queue.done, known);
  queue.done = completed(after, queue.agent, number);
}

void Core::set_by_copy_garbage(std::uint64_t offset, std::uint64_t num_bytes) {
  std::memset(ub_->at(offset), 0xff, num_bytes);
  for (std::uint64_t i = offset / kCellBytes; i < (offset + num_bytes + 1) / kCellBytes; ++i) {
    Cell& cell = ub_->cell(i);
    cell.flags = static_cast<std::uint8_t>(cell.flags & ~kInitialised);
  }
}

void Core::begin_vf(Pipe& queue, const PipeOp& op) {
  while (warp_agents_.size() * kWarpLanes < op.num_threads) {
    const auto first = static_cast<std::uint16_t>(warp_agents_.size() * kWarpLanes);
    warp_agents_.push_back(machine_.space().shadow.add_agent({"warp", rank_, idx_, PIPE_V, first}));
    warp_clocks_.push_back(1);
  }
  machine_.trace("vf_begin", op.site, 0, 0, op.num_threads);
  vf_ = std::make_unique<Vf>(*this, warp_agents_, warp_clocks_, op.num_threads, op.body,
                             join(op.issued, queue.ordered), op.site.where);
}

void Core::step_vf(Pipe& queue) {
  if (!vf_) {
    begin_vf(queue, queue.queue.front());
  }
  vf_->step();
  if (vf_->is_done()) {
    queue.done = join(queue.done, vf_->finish());
    queue.ordered = queue.done;
    machine_.trace("vf_end", queue.queue.front().site, 0, 0, 0);
    vf_.reset();
    queue.queue.pop_front();
  }
}

}  // namespace epsim::twin
