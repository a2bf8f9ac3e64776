// One AIV: scalar unit, three queues, flags, unified buffer, two caches, remote stores on their way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <twin/caches.hpp>
#include <twin/pipes.hpp>
#include <twin/simt.hpp>
#include <twin/thread.hpp>
#include <twin/ubmem.hpp>
#include <vector>

namespace epsim::twin {

class Machine;
struct Launch;

class ScalarThread final : public Thread {
 public:
  void yield() override;
  void sleep() override;
  void wake() override;
};

class Core {
 public:
  Core(Machine& machine, int rank, int idx, std::uint64_t ub_bytes);

  std::int16_t rank() const { return rank_; }
  std::int16_t idx() const { return idx_; }
  Machine& machine() const { return machine_; }
  Launch* launch() const { return launch_; }
  Region& ub() { return *ub_; }
  InFlight& in_flight() { return in_flight_; }
  ScalarCache& scalar_cache() { return scalar_cache_; }
  SimtCache& simt_cache() { return simt_cache_; }
  ThreadClock& scalar_clock() { return scalar_.clock; }
  bool is_busy() const { return launch_ != nullptr; }

  void start(Launch& launch, const std::function<void()>& body, const Knowledge& before);

  // Calls of the scalar unit.
  void issue(pipe_t pipe, PipeOp op);
  void notify(pipe_t source, pipe_t target, std::int64_t id, Where where);
  void wait(pipe_t source, pipe_t target, std::int64_t id, Where where);
  void sync_pipe(pipe_t pipe, Where where);
  void inter_arrive(pipe_t pipe, std::int64_t id, Where where);
  void inter_wait(pipe_t pipe, std::int64_t id, Where where);
  bool is_atomic_add = false;  // mode of the following UB -> GM copies

  // A range of the UB, for a register access or a copy; a violation if it is none.
  Span ub_span(std::uint64_t offset, std::uint64_t num_bytes, std::uint64_t align, const Site& site);

  // Something changed: enable and disable the actors of this core, end the kernel if all is done.
  void refresh();

  // Steps, one per actor.
  void step_scalar();
  void step_pipe(pipe_t pipe);
  void step_in_flight();

  // For the deadlock report; the first entry tells the rule: an unmatched wait or a plain deadlock.
  void describe(std::vector<Involved>& places) const;
  std::optional<Involved> unmatched_wait() const;
  void cancel();

 private:
  friend class ScalarThread;

  Pipe& pipe(pipe_t kind) { return pipes_[kind - PIPE_V]; }
  const Pipe& pipe(pipe_t kind) const { return pipes_[kind - PIPE_V]; }
  Flag& flag(pipe_t source, pipe_t target, std::int64_t id) {
    return flags_[static_cast<std::size_t>((source * 4 + target) * kNumFlagIds + id)];
  }
  const Flag& flag(pipe_t source, pipe_t target, std::int64_t id) const {
    return flags_[static_cast<std::size_t>((source * 4 + target) * kNumFlagIds + id)];
  }
  void block(std::function<bool()> until, std::string what, Where where);
  void check_flag(pipe_t source, pipe_t target, std::int64_t id, Where where) const;
  bool can_step(const Pipe& pipe) const;
  void set_flag(pipe_t source, pipe_t target, std::int64_t id, const Knowledge& knowledge, const Site& site);
  Knowledge take_flag(pipe_t source, pipe_t target, std::int64_t id);
  void run(Pipe& pipe, const PipeOp& op);
  void run_copy(Pipe& pipe, const PipeOp& op);
  void set_by_copy_garbage(std::uint64_t offset, std::uint64_t num_bytes);
  void begin_vf(Pipe& pipe, const PipeOp& op);
  void step_vf(Pipe& pipe);
  bool is_drained() const;
  void finish();

  Machine& machine_;
  std::int16_t rank_;
  std::int16_t idx_;
  std::unique_ptr<Region> ub_;
  std::uint32_t scalar_now_ = 1;
  ScalarThread scalar_;
  int scalar_actor_ = -1;
  int in_flight_actor_ = -1;
  bool is_asleep_ = false;
  std::function<bool()> until_;  // the scalar unit is blocked until this holds
  struct AwaitedFlag {
    pipe_t source;
    pipe_t target;
    std::int64_t id;
  };
  std::optional<AwaitedFlag> awaited_;
  Pipe pipes_[3];
  std::vector<Flag> flags_;
  std::unique_ptr<Vf> vf_;
  std::vector<AgentId> warp_agents_;
  std::vector<std::uint32_t> warp_clocks_;
  ScalarCache scalar_cache_;
  SimtCache simt_cache_;
  InFlight in_flight_;
  Launch* launch_ = nullptr;
};

}  // namespace epsim::twin
