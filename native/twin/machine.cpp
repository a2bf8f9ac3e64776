#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <twin/machine.hpp>
#include <utility>

namespace epsim::twin {

namespace {

thread_local Machine* active = nullptr;

int positive(const Parameters& parameters, const char* name, std::int64_t fallback, std::int64_t limit) {
  const std::int64_t value = parameters.integer(name, fallback);
  if (value < 1 || value > limit) {
    throw std::invalid_argument(std::string(name) + " must be in 1.." + std::to_string(limit) + ", not " +
                                std::to_string(value));
  }
  return static_cast<int>(value);
}

Choices choices_of(const Parameters& parameters) {
  Choices choices;
  choices.strategy = parse_strategy(parameters.text("strategy", "random"));
  choices.seed = static_cast<std::uint64_t>(parameters.integer("seed", 0));
  choices.pct_depth = static_cast<std::uint32_t>(positive(parameters, "pct_depth", 3, 1000));
  choices.pct_steps = static_cast<std::uint32_t>(positive(parameters, "pct_steps", 2000, 1'000'000'000));
  choices.max_steps =
      static_cast<std::uint64_t>(positive(parameters, "max_steps", 20'000'000, 2'000'000'000));
  return choices;
}

}  // namespace

Machine::Machine(Parameters parameters)
    : parameters_(std::move(parameters)),
      num_ranks_(positive(parameters_, "ranks", 2, 256)),
      num_aivs_(positive(parameters_, "aivs", 2, 128)),
      has_checks_(parameters_.text("strategy", "random") != "inorder"),
      scheduler_(choices_of(parameters_)),
      space_(num_ranks_, has_checks_),
      trace_(parameters_.integer("trace", 0) != 0) {
  const int ub_bytes = positive(parameters_, "ub_bytes", 221'184, 253'952);
  for (int rank = 0; rank < num_ranks_; ++rank) {
    for (int idx = 0; idx < num_aivs_; ++idx) {
      cores_.push_back(std::make_unique<Core>(*this, rank, idx, static_cast<std::uint64_t>(ub_bytes)));
    }
  }
  for (int rank = 0; rank < num_ranks_; ++rank) {
    auto stream = std::make_unique<HostStream>();
    HostStream& host = *stream;
    host.machine = this;
    host.rank = rank;
    host.clock.agent = space_.shadow.add_agent({"host", static_cast<std::int16_t>(rank), -1, PIPE_HOST, 0});
    host.clock.now = &host.now;
    host.clock.begin(nothing_known());
    host.actor = add_actor(Role::host, [&host] { host.step(); });
    streams_.push_back(std::move(stream));
  }
}

Machine::~Machine() { give_up(); }

Machine& Machine::current() {
  if (active == nullptr) {
    throw std::logic_error("a kernel call outside a run of the twin");
  }
  return *active;
}

int Machine::add_actor(Role role, std::function<void()> step) {
  actors_.push_back(std::move(step));
  return scheduler_.add(role);
}

void Machine::enqueue(int rank, StreamStep step) {
  HostStream& stream = *streams_[static_cast<std::size_t>(rank)];
  stream.steps.push_back(std::move(step));
  scheduler_.set_enabled(stream.actor, true);
}

bool Machine::run() {
  active = this;
  try {
    loop();
  } catch (const Violation& violation) {
    violation_ = violation;
  }
  active = nullptr;
  if (violation_) {
    give_up();
  }
  return !violation_;
}

void Machine::loop() {
  for (;;) {
    const int actor = next_ >= 0 ? std::exchange(next_, -1) : scheduler_.pick();
    if (scheduler_.is_out_of_steps()) {
      raise(Rule::livelock, Site{},
            "the run has not ended after " + std::to_string(scheduler_.num_steps()) + " steps");
    }
    if (actor >= 0) {
      actors_[static_cast<std::size_t>(actor)]();
      continue;
    }
    bool is_done = true;
    for (const auto& stream : streams_) {
      is_done = is_done && stream->steps.empty();
    }
    if (is_done) {
      return;
    }
    // Sleepers may have slept by mistake (a word read twice is not yet a poll): give them one more round.
    if (std::exchange(space_.has_progress, false) && space_.wake_all()) {
      continue;
    }
    deadlock();
  }
}

void Machine::deadlock() {
  std::vector<Involved> places;
  for (const auto& core : cores_) {
    if (const auto wait = core->unmatched_wait()) {
      raise(Rule::unmatched_wait, wait->site, "nothing will set " + wait->what);
    }
    core->describe(places);
  }
  for (const auto& stream : streams_) {
    if (!stream->steps.empty() && !stream->is_running) {
      places.push_back(
          {Site{{}, static_cast<std::int16_t>(stream->rank), -1, PIPE_HOST, -1}, "host waits for words"});
    }
  }
  for (const auto& attached : devices_) {
    if (const std::string text = attached.device->describe(); !text.empty()) {
      places.push_back({Site{{}, -1, -1, PIPE_URMA, -1}, text});
    }
  }
  const Site site = places.empty() ? Site{} : places.front().site;
  const std::string message = std::to_string(places.size()) + " agents wait and none can go on";
  raise(Rule::deadlock, site, message, std::move(places));
}

void Machine::give_up() {
  active = this;
  for (const auto& core : cores_) {
    core->cancel();
  }
  active = nullptr;
}

Thread& Machine::thread(Where where) {
  if (thread_ == nullptr) {
    throw std::logic_error("a kernel call outside a kernel");
  }
  thread_->where = where;
  return *thread_;
}

bool Machine::others_first(int own_actor) {
  const int actor = scheduler_.pick();
  if (actor == own_actor && !scheduler_.is_out_of_steps()) {
    return false;
  }
  next_ = actor;
  Fiber::suspend();
  return true;
}

void Machine::run_guarded(const std::function<void()>& body, Thread& thread) {
  (void)thread;
  try {
    body();
  } catch (const Violation& violation) {
    pending_ = violation;
  }
}

void Machine::rethrow() {
  if (pending_) {
    const Violation violation = *std::exchange(pending_, std::nullopt);
    throw violation;
  }
}

void Machine::block_ended(Launch& launch, int rank, const Knowledge& done) {
  launch.done = launch.done.known ? join(launch.done, done) : done;
  if (--launch.num_running > 0) {
    return;
  }
  if (has_checks_) {
    launch.flags->check_empty(launch.ends);
  }
  streams_[static_cast<std::size_t>(rank)]->launch_ended();
}

void Machine::refresh_rank(int rank) {
  for (int idx = 0; idx < num_aivs_; ++idx) {
    core(rank, idx).refresh();
  }
}

std::string Machine::stats() const {
  char text[200];
  std::snprintf(
      text, sizeof(text), "{\"steps\": %llu, \"ops\": %llu, \"agents\": %zu, \"hash\": \"%016llx\"}",
      static_cast<unsigned long long>(scheduler_.num_steps()), static_cast<unsigned long long>(num_ops_),
      space_.shadow.num_agents(), static_cast<unsigned long long>(scheduler_.hash()));
  return text;
}

}  // namespace epsim::twin
