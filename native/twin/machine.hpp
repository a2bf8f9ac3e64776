// The whole: ranks x AIVs, their memory, the streams of launches, devices, and the loop that runs them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <twin/core.hpp>
#include <twin/engine.hpp>
#include <twin/scheduler.hpp>
#include <twin/space.hpp>
#include <twin/trace.hpp>
#include <vector>

namespace epsim::twin {

struct Parameters {
  std::map<std::string, std::string> values;  // of the JSON object, strings without quotes

  static Parameters parse(const std::string& json);  // throws std::invalid_argument
  std::int64_t integer(const std::string& name, std::int64_t fallback) const;
  std::string text(const std::string& name, const std::string& fallback) const;
};

struct Launch {
  std::string kernel;
  std::uint64_t args_address = 0;
  std::uint32_t num_blocks = 0;
  std::function<void()> body;
  std::unique_ptr<CrossFlags> flags;
  std::uint32_t num_running = 0;
  std::vector<Site> ends;  // per block
  Knowledge done;
};

// One entry of a rank's stream: a launch, or a wait of the host for words in GM.
struct StreamStep {
  std::optional<Launch> launch;
  std::uint64_t address = 0;
  std::uint32_t num_words = 0;
  std::uint32_t mask = 0;
  std::uint32_t value = 0;
};

class Machine;

class HostStream final : public Sleeper {
 public:
  Machine* machine = nullptr;
  int rank = 0;
  int actor = -1;
  ThreadClock clock;
  std::uint32_t now = 1;
  std::deque<StreamStep> steps;
  bool is_running = false;  // the launch at the head has started

  void wake() override;
  void step();
  void launch_ended();

 private:
  bool words_are_there(StreamStep& step);
};

class Machine final : public Bus {
 public:
  explicit Machine(Parameters parameters);
  ~Machine() override;

  // The machine whose fibers run on this thread now; a misuse outside a run throws.
  static Machine& current();

  Space& space() { return space_; }
  Scheduler& scheduler() { return scheduler_; }
  Random& dice() { return scheduler_.random(); }
  Trace& operation_trace() { return trace_; }
  Core& core(int rank, int idx) { return *cores_[static_cast<std::size_t>(rank * num_aivs_ + idx)]; }
  int add_actor(Role role, std::function<void()> step);

  void enqueue(int rank, StreamStep step);
  // True when all streams came to their ends; false leaves a violation.
  bool run();
  const std::optional<Violation>& violation() const { return violation_; }

  // The thread that runs now.
  Thread& thread(Where where);
  Thread& running_thread() const { return *thread_; }
  void set_current(Thread* thread) { thread_ = thread; }
  // Let the scheduler pick; returns false if the running actor goes on.
  bool others_first(int own_actor);
  // Run a body on a fiber: a violation in it is kept for rethrow() on the outside.
  void run_guarded(const std::function<void()>& body, Thread& thread);
  void rethrow();
  std::int64_t cycle() const { return static_cast<std::int64_t>(scheduler_.num_steps()) * 10; }
  void count_op() { ++num_ops_; }
  // A core has ended its part of a launch.
  void block_ended(Launch& launch, int rank, const Knowledge& done);
  void refresh_rank(int rank);
  std::string stats() const;

  // Bus.
  int num_ranks() const override { return num_ranks_; }
  int num_aivs() const override { return num_aivs_; }
  std::int64_t parameter(const std::string& name, std::int64_t fallback) const override;
  bool has_checks() const override { return has_checks_; }
  std::uint64_t random() override { return scheduler_.random().next(); }
  AgentId add_agent(const std::string& name) override;
  void attach(std::unique_ptr<Device> device) override;
  void watch(std::uint64_t address, std::uint64_t num_bytes, StoreListener listener) override;
  std::uint64_t allocate(int rank, std::uint64_t num_bytes, const std::string& name, bool is_zeroed) override;
  std::optional<AllocationInfo> find(int rank, const std::string& name) const override;
  std::optional<AllocationInfo> owner(std::uint64_t address) const override;
  void read(std::uint64_t address, void* out, std::uint64_t num_bytes, const Access& access) override;
  void write(std::uint64_t address, const void* in, std::uint64_t num_bytes, const Access& access) override;
  void copy(std::uint64_t target, std::uint64_t source, std::uint64_t num_bytes,
            const Access& access) override;
  void release(std::uint64_t address, const void* in, std::uint32_t num_bytes, const Access& access,
               const ClockRef& released) override;
  std::uint64_t acquire(std::uint64_t address, std::uint32_t num_bytes, const Access& access,
                        ClockRef& learned) override;
  void peek(std::uint64_t address, void* out, std::uint64_t num_bytes) const override;
  void poke(std::uint64_t address, const void* in, std::uint64_t num_bytes) override;
  void trace(const char* kind, const Site& site, std::uint64_t address, std::uint64_t num_bytes,
             std::uint64_t extra) override;

 private:
  friend class HostStream;

  void loop();
  void give_up();
  [[noreturn]] void deadlock();
  void refresh_device(std::size_t idx);

  Parameters parameters_;
  int num_ranks_;
  int num_aivs_;
  bool has_checks_;
  Scheduler scheduler_;
  Space space_;
  Trace trace_;
  std::vector<std::function<void()>> actors_;  // by actor id
  std::vector<std::unique_ptr<Core>> cores_;
  std::vector<std::unique_ptr<HostStream>> streams_;
  struct AttachedDevice {
    std::unique_ptr<Device> device;
    int actor;
  };
  std::vector<AttachedDevice> devices_;
  Thread* thread_ = nullptr;
  int next_ = -1;  // picked on a fiber, to be run by the loop
  std::optional<Violation> pending_;
  std::optional<Violation> violation_;
  std::uint64_t num_ops_ = 0;
};

}  // namespace epsim::twin
