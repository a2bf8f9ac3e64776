// The calls of kernels that touch memory, for the thread that runs now.
#include <cstring>
#include <twin/machine.hpp>
#include <twin/runtime.hpp>

namespace epsim::twin::rt {

namespace {

// How often a set of words must be loaded again, unchanged, before the thread sleeps. Plain loads repeat in
// ordinary code (arguments), bypass loads hardly do.
constexpr std::uint32_t kPollRounds = 3;
constexpr std::uint32_t kPlainRounds = 64;

struct Call {
  Machine& machine;
  Thread& thread;
  Core& core;
  Space& space;

  explicit Call(Where where)
      : machine(Machine::current()),
        thread(machine.thread(where)),
        core(*thread.core),
        space(machine.space()) {
    machine.count_op();
  }
  Span gm(std::uint64_t address, std::uint32_t num_bytes, std::uint32_t align) const {
    const Site site = thread.site(thread.where);
    if (address % align != 0) {
      raise(Rule::unaligned_access, site,
            std::to_string(num_bytes) + " B at GM address " + std::to_string(address) + " must be " +
                std::to_string(align) + " B aligned");
    }
    return space.gm(address, num_bytes, site);
  }
  bool is_remote(const Span& span) const { return span.region->rank != core.rank(); }
  // Own stores on their way are seen by their thread.
  void land_own(const Span& span) const {
    if (!core.in_flight().empty()) {
      core.in_flight().land_overlapping(span);
      core.refresh();  // nothing may be left to land: the next pick must know
    }
  }
  void polled(const Span& span, Via via) const {
    if (!thread.poll.repeats(*span.region, span.offset, static_cast<std::uint32_t>(span.num_bytes))) {
      space.has_progress = true;
    } else if (thread.poll.is_idle(via == Via::bypass ? kPollRounds : kPlainRounds)) {
      thread.sleep();
    }
  }
  void did_something() const {
    thread.poll.reset();
    space.has_progress = true;
  }
  // A lane gives way at some of its sync accesses only: a switch for each would make the run much longer.
  void maybe_yield() const {
    if (!thread.is_lane || (machine.has_checks() && (machine.dice().next() & 7) == 0)) {
      thread.yield();
    }
  }
  // Stores that bypass caches land late: always to a peer, sometimes at home.
  bool lands_late(const Span& span) const {
    return machine.has_checks() && (is_remote(span) || (machine.dice().next() & 1) != 0);
  }
  void fly(RemoteAccess access) const {
    access.stamp = thread.clock.stamp();
    access.known = thread.clock.knowledge.known;
    access.released = thread.clock.released(kScopeGm);
    access.site = thread.site(thread.where);
    access.site.pipe = PIPE_UBMEM;
    core.in_flight().add(std::move(access));
    core.refresh();
  }
};

std::uint64_t bits_of(const void* in, std::uint32_t num_bytes) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, in, num_bytes);
  return bits;
}

}  // namespace

void gm_load(std::uint64_t address, void* out, std::uint32_t num_bytes, std::uint32_t align, Via via,
             Where where) {
  const Call call(where);
  const Span span = call.gm(address, num_bytes, align);
  if (via == Via::bypass) {
    call.maybe_yield();
    call.land_own(span);
    ClockRef learned;
    const std::uint64_t bits = call.space.sync_load(span, call.thread.access(where), true, learned);
    std::memcpy(out, &bits, num_bytes);
    if (learned) {
      call.thread.clock.acquire(learned);
    }
  } else {
    call.land_own(span);
    const AccessKind kind = call.thread.is_lane ? AccessKind::plain : AccessKind::scalar_cached;
    call.space.read(span, out, call.thread.access(where), kind, true);
    if (call.machine.has_checks()) {
      const Site site = call.thread.site(where);
      Shadow& shadow = call.space.shadow;
      call.thread.is_lane ? call.core.simt_cache().load(shadow, *span.region, span.offset, num_bytes, site,
                                                        Rule::stale_simt_cache)
                          : call.core.scalar_cache().load(shadow, *span.region, span.offset, num_bytes, site,
                                                          Rule::stale_scalar_cache);
    }
  }
  call.polled(span, via);
}

void gm_store(std::uint64_t address, const void* in, std::uint32_t num_bytes, std::uint32_t align, Via via,
              Where where) {
  const Call call(where);
  const Span span = call.gm(address, num_bytes, align);
  call.did_something();
  call.thread.clock.wrote();
  if (via == Via::bypass) {
    call.maybe_yield();
    call.machine.trace("store", call.thread.site(where), address, num_bytes, bits_of(in, num_bytes));
    if (call.lands_late(span)) {
      RemoteAccess access{};
      access.kind = RemoteAccess::Kind::sync_store;
      access.span = span;
      access.bits = bits_of(in, num_bytes);
      call.fly(std::move(access));
    } else {
      call.land_own(span);
      call.space.sync_store(span, bits_of(in, num_bytes), call.thread.access(where),
                            call.thread.clock.released(kScopeGm));
    }
    return;
  }
  if (call.thread.is_lane && call.is_remote(span) && call.machine.has_checks()) {
    RemoteAccess access{};
    access.kind = RemoteAccess::Kind::plain_store;
    access.span = span;
    access.bytes.assign(static_cast<const std::uint8_t*>(in),
                        static_cast<const std::uint8_t*>(in) + num_bytes);
    call.fly(std::move(access));
    return;
  }
  call.land_own(span);
  const AccessKind kind = call.thread.is_lane ? AccessKind::plain : AccessKind::scalar_cached;
  if (call.machine.has_checks() && !call.thread.is_lane) {
    // The line is fetched before the store: what others do to it from now on will be lost or missed.
    call.core.scalar_cache().prepare(call.space.shadow, *span.region, span.offset, num_bytes);
  }
  call.space.write(span, in, call.thread.access(where), kind);
  if (call.machine.has_checks()) {
    Shadow& shadow = call.space.shadow;
    call.thread.is_lane ? call.core.simt_cache().store(shadow, *span.region, span.offset, num_bytes, false)
                        : call.core.scalar_cache().store(shadow, *span.region, span.offset, num_bytes, true);
  }
}

AtomicResult gm_atomic(std::uint64_t address, const AtomicCall& operation, Where where) {
  const Call call(where);
  const std::uint32_t num_bytes = number_bytes(operation.number);
  const Span span = call.gm(address, num_bytes, num_bytes);
  call.did_something();
  call.thread.clock.wrote();
  call.maybe_yield();
  call.machine.trace("atomic", call.thread.site(where), address, num_bytes, operation.value);
  if (call.machine.has_checks() && call.is_remote(span)) {
    RemoteAccess access{};
    access.kind = RemoteAccess::Kind::atomic;
    access.span = span;
    access.call = operation;
    call.fly(std::move(access));
    return {0, call.core.in_flight().last_ticket()};
  }
  call.land_own(span);
  ClockRef learned;
  const std::uint64_t old = call.space.atomic(span, operation, call.thread.access(where),
                                              call.thread.clock.released(kScopeGm), learned);
  if (learned) {
    call.thread.clock.acquire(learned);
  }
  return {old, 0};
}

std::uint64_t await_atomic(std::uint64_t ticket) {
  Machine& machine = Machine::current();
  Thread& thread = machine.running_thread();
  ClockRef learned;
  const std::uint64_t old = thread.core->in_flight().result(ticket, learned);
  if (learned) {
    thread.clock.acquire(learned);
  }
  thread.core->refresh();
  return old;
}

void ub_load(std::uint64_t offset, void* out, std::uint32_t num_bytes, std::uint32_t align, Via via,
             Where where) {
  const Call call(where);
  const Span span = call.core.ub_span(offset, num_bytes, align, call.thread.site(where));
  if (via == Via::bypass) {
    call.maybe_yield();
    ClockRef learned;
    const std::uint64_t bits = call.space.sync_load(span, call.thread.access(where), true, learned);
    std::memcpy(out, &bits, num_bytes);
    if (learned) {
      call.thread.clock.acquire(learned);
    }
  } else {
    call.space.read(span, out, call.thread.access(where), AccessKind::plain, true);
  }
  call.polled(span, via);
}

void ub_store(std::uint64_t offset, const void* in, std::uint32_t num_bytes, std::uint32_t align, Via via,
              Where where) {
  const Call call(where);
  const Span span = call.core.ub_span(offset, num_bytes, align, call.thread.site(where));
  call.did_something();
  if (via == Via::bypass) {
    call.maybe_yield();
    call.space.sync_store(span, bits_of(in, num_bytes), call.thread.access(where),
                          call.thread.clock.released(kScopeCore));
  } else {
    call.space.write(span, in, call.thread.access(where), AccessKind::plain);
  }
  call.thread.clock.wrote();
}

std::uint64_t ub_atomic(std::uint64_t offset, const AtomicCall& operation, Where where) {
  const Call call(where);
  const std::uint32_t num_bytes = number_bytes(operation.number);
  const Span span = call.core.ub_span(offset, num_bytes, num_bytes, call.thread.site(where));
  call.did_something();
  call.maybe_yield();
  ClockRef learned;
  const std::uint64_t old = call.space.atomic(span, operation, call.thread.access(where),
                                              call.thread.clock.released(kScopeCore), learned);
  call.thread.clock.wrote();
  if (learned) {
    call.thread.clock.acquire(learned);
  }
  return old;
}

}  // namespace epsim::twin::rt
