// Who goes next. One seed and one strategy give one schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace epsim::twin {

// splitmix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  // Uniform in [0, bound).
  std::uint64_t below(std::uint64_t bound) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }

 private:
  std::uint64_t state_;
};

enum class Strategy : std::uint8_t {
  random,      // uniform among all that could go on
  pct,         // fixed random priorities, lowered at a few random points
  delay_pipe,  // one actor waits until nothing else can go on
  late,        // copies, remote stores and engines wait until no fiber can go on
  inorder,     // all asynchronous work at once, no checks: what a twin of empty stubs would do
};
Strategy parse_strategy(const std::string& name);  // throws std::invalid_argument

enum class Role : std::uint8_t { completion, vector, scalar, host };

struct Choices {
  Strategy strategy = Strategy::random;
  std::uint64_t seed = 0;
  std::uint32_t pct_depth = 3;
  std::uint32_t pct_steps = 2000;
  std::uint64_t max_steps = 20'000'000;
};

class Scheduler {
 public:
  explicit Scheduler(const Choices& choices);

  int add(Role role);
  void set_enabled(int actor, bool is_enabled);
  bool is_enabled(int actor) const { return actors_[static_cast<std::size_t>(actor)].position >= 0; }
  // The next actor, -1 if none is enabled.
  int pick();
  bool is_out_of_steps() const { return num_steps_ > choices_.max_steps; }

  Random& random() { return random_; }
  Strategy strategy() const { return choices_.strategy; }
  std::uint64_t num_steps() const { return num_steps_; }
  // Of all picks so far: equal hashes are equal schedules.
  std::uint64_t hash() const { return hash_; }

 private:
  struct Actor {
    Role role;
    int position = -1;  // in enabled_
    std::uint64_t priority = 0;
  };

  int pick_random();
  int pick_by_priority();
  int pick_but_victim();
  int pick_late();
  int pick_in_order();
  Actor& actor(int idx) { return actors_[static_cast<std::size_t>(idx)]; }

  Choices choices_;
  Random random_;
  std::vector<Actor> actors_;
  std::vector<int> enabled_;
  std::vector<std::uint64_t> change_points_;  // ascending
  std::size_t next_change_ = 0;
  std::uint64_t lowest_ = 0;
  int victim_ = -1;
  int current_ = 0;
  std::uint64_t num_steps_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace epsim::twin
