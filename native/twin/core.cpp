#include <twin/core.hpp>
#include <twin/machine.hpp>

namespace epsim::twin {

Core::Core(Machine& machine, int rank, int idx, std::uint64_t ub_bytes)
    : machine_(machine),
      rank_(static_cast<std::int16_t>(rank)),
      idx_(static_cast<std::int16_t>(idx)),
      ub_(std::make_unique<Region>("UB of AIV " + std::to_string(idx), 0, ub_bytes)),
      flags_(4 * 4 * kNumFlagIds),
      in_flight_(machine.space()) {
  ub_->rank = rank_;
  ub_->is_ub = true;
  const auto agent = [&](pipe_t pipe) {
    return machine.space().shadow.add_agent({pipe_name(pipe), rank_, idx_, pipe, 0});
  };
  scalar_.core = this;
  scalar_.clock.agent = agent(PIPE_S);
  scalar_.clock.now = &scalar_now_;
  scalar_.clock.begin(nothing_known());
  scalar_actor_ = machine.add_actor(Role::scalar, [this] { step_scalar(); });
  for (const pipe_t kind : {PIPE_V, PIPE_MTE2, PIPE_MTE3}) {
    Pipe& queue = pipe(kind);
    queue.kind = kind;
    queue.done = queue.ordered = nothing_known();
    queue.actor = machine.add_actor(kind == PIPE_V ? Role::vector : Role::completion,
                                    [this, kind] { step_pipe(kind); });
    if (kind != PIPE_V) {
      queue.agent = agent(kind);
    }
  }
  in_flight_actor_ = machine.add_actor(Role::completion, [this] { step_in_flight(); });
}

void ScalarThread::yield() { core->machine().others_first(core->scalar_actor_); }

void ScalarThread::sleep() {
  core->is_asleep_ = true;
  waiting = "a write to a word that it polls";
  core->machine().space().put_to_sleep(*this);
  core->refresh();
  Fiber::suspend();
  waiting.clear();
}

void ScalarThread::wake() {
  core->is_asleep_ = false;
  core->refresh();
}

void Core::start(Launch& launch, const std::function<void()>& body, const Knowledge& before) {
  launch_ = &launch;
  ++ub_->generation;  // nothing in the UB is initialised
  scalar_.clock.begin(before);
  for (Pipe& queue : pipes_) {
    queue.done = join(queue.done, before);
    queue.ordered = join(queue.ordered, before);
  }
  scalar_.fiber.start([this, &body] { machine_.run_guarded(body, scalar_); });
  refresh();
}

void Core::block(std::function<bool()> until, std::string what, Where where) {
  scalar_.where = where;
  if (!until()) {
    until_ = std::move(until);
    scalar_.waiting = std::move(what);
    refresh();
    Fiber::suspend();
    until_ = nullptr;
    scalar_.waiting.clear();
  }
}

void Core::issue(pipe_t kind, PipeOp op) {
  in_flight_.land_all_of(scalar_.clock.stamp());
  op.issued = scalar_.clock.snapshot();
  scalar_.where = op.site.where;
  pipe(kind).queue.push_back(std::move(op));
  refresh();
  scalar_.yield();
}

void Core::sync_pipe(pipe_t kind, Where where) {
  if (kind == PIPE_ALL) {
    block([this] { return is_drained(); }, "all pipes to run dry", where);
    for (const Pipe& queue : pipes_) {
      scalar_.clock.learn(queue.done);
    }
  } else if (kind == PIPE_MTE2 || kind == PIPE_MTE3) {
    PipeOp op;
    op.site = {where, rank_, idx_, kind, -1};
    issue(kind, std::move(op));
  } else if (kind > PIPE_ALL) {
    raise(Rule::bad_argument, scalar_.site(where), "a core has no such pipe");
  }
}

Span Core::ub_span(std::uint64_t offset, std::uint64_t num_bytes, std::uint64_t align, const Site& site) {
  constexpr std::uint64_t physical_bytes = 256 * 1024;
  const std::string text = std::to_string(num_bytes) + " B at UB offset " + std::to_string(offset);
  if (offset + num_bytes > ub_->num_bytes) {
    const bool is_in_cache = offset + num_bytes <= physical_bytes;
    raise(is_in_cache ? Rule::simt_dcache_overrun : Rule::ub_out_of_range, site,
          text + ", the kernel has " + std::to_string(ub_->num_bytes) + " B");
  }
  if (offset % align != 0) {
    raise(Rule::unaligned_access, site, text + " must be " + std::to_string(align) + " B aligned");
  }
  return {ub_.get(), offset, num_bytes};
}

bool Core::is_drained() const {
  for (const Pipe& queue : pipes_) {
    if (!queue.queue.empty()) {
      return false;
    }
  }
  return true;
}

void Core::refresh() {
  Scheduler& scheduler = machine_.scheduler();
  for (const Pipe& queue : pipes_) {
    scheduler.set_enabled(queue.actor, can_step(queue));
  }
  scheduler.set_enabled(in_flight_actor_, !in_flight_.empty());
  const bool is_running = launch_ != nullptr && !scalar_.fiber.is_done();
  scheduler.set_enabled(scalar_actor_, is_running && !is_asleep_ && (!until_ || until_()));
}

void Core::step_scalar() {
  machine_.set_current(&scalar_);
  scalar_.fiber.resume();
  machine_.set_current(nullptr);
  machine_.rethrow();
  refresh();
  finish();
}

void Core::step_in_flight() {
  in_flight_.land(machine_.dice().below(in_flight_.size()));
  refresh();
  finish();
}

// The kernel has ended on this core when its scalar unit has and nothing is left in queues or on its way.
void Core::finish() {
  if (launch_ == nullptr || !scalar_.fiber.is_done() || !is_drained() || !in_flight_.empty()) {
    return;
  }
  const Site end = scalar_.site(scalar_.where);
  for (std::size_t i = 0; i < flags_.size(); ++i) {
    if (flags_[i].is_set && machine_.has_checks()) {
      const auto pair = i / kNumFlagIds;
      raise(Rule::flag_left_set, flags_[i].set_at,
            std::string("flag ") + pipe_name(static_cast<pipe_t>(pair / 4)) + " -> " +
                pipe_name(static_cast<pipe_t>(pair % 4)) + " " + std::to_string(i % kNumFlagIds) +
                " is still set when the kernel ends");
    }
    flags_[i].is_set = false;
  }
  scalar_cache_.clean_all(machine_.space().shadow, end);
  simt_cache_.drop_all();
  Knowledge all = scalar_.clock.snapshot();
  for (const Pipe& queue : pipes_) {
    all = join(all, queue.done);
  }
  all.visible[kScopeGm] = all.visible[kScopeCore] = all.known;
  Launch& launch = *launch_;
  launch_ = nullptr;
  scalar_.poll.reset();
  launch.ends[static_cast<std::size_t>(idx_)] = end;
  machine_.block_ended(launch, rank_, all);
}

void Core::describe(std::vector<Involved>& places) const {
  if (launch_ == nullptr) {
    return;
  }
  if (!scalar_.fiber.is_done()) {
    places.push_back({scalar_.site(scalar_.where), "waits for " + scalar_.waiting});
  }
  for (const Pipe& queue : pipes_) {
    if (queue.queue.empty()) {
      continue;
    }
    const PipeOp& head = queue.queue.front();
    if (head.kind == PipeOp::Kind::vf && vf_) {
      const auto lanes = vf_->describe();
      places.insert(places.end(), lanes.begin(), lanes.end());
    } else {
      const std::string id = std::to_string(head.id);
      places.push_back({head.site, head.kind == PipeOp::Kind::wait
                                       ? std::string("queue waits for flag ") + pipe_name(head.other) +
                                             " -> " + pipe_name(queue.kind) + " " + id
                                       : "queue waits for cross-core flag " + id});
    }
  }
}

std::optional<Involved> Core::unmatched_wait() const {
  const auto has_notify = [&](pipe_t source, pipe_t target, std::int64_t id) {
    if (source == PIPE_S) {
      return !scalar_.fiber.is_done() && target != PIPE_S;
    }
    for (const PipeOp& op : pipe(source).queue) {
      if (op.kind == PipeOp::Kind::notify && op.other == target && op.id == id) {
        return true;
      }
    }
    // The scalar unit may still be on its way to the notify, unless it is the one that waits.
    return target != PIPE_S && !scalar_.fiber.is_done();
  };
  if (launch_ == nullptr) {
    return std::nullopt;
  }
  if (awaited_ && !has_notify(awaited_->source, awaited_->target, awaited_->id)) {
    return Involved{scalar_.site(scalar_.where), scalar_.waiting};
  }
  for (const Pipe& queue : pipes_) {
    if (queue.queue.empty() || queue.queue.front().kind != PipeOp::Kind::wait) {
      continue;
    }
    const PipeOp& head = queue.queue.front();
    if (!has_notify(head.other, queue.kind, head.id)) {
      return Involved{head.site, std::string("flag ") + pipe_name(head.other) + " -> " +
                                     pipe_name(queue.kind) + " " + std::to_string(head.id)};
    }
  }
  return std::nullopt;
}

void Core::cancel() {
  scalar_.fiber.cancel();
  if (vf_) {
    vf_->cancel();
  }
}

}  // namespace epsim::twin
