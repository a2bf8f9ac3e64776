#include <algorithm>
#include <stdexcept>
#include <twin/scheduler.hpp>

namespace epsim::twin {

std::uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

Strategy parse_strategy(const std::string& name) {
  constexpr const char* names[] = {"random", "pct", "delay_pipe", "late", "inorder"};
  for (int i = 0; i < 5; ++i) {
    if (name == names[i]) {
      return static_cast<Strategy>(i);
    }
  }
  throw std::invalid_argument("strategy must be random, pct, delay_pipe, late or inorder, not \"" + name +
                              "\"");
}

Scheduler::Scheduler(const Choices& choices) : choices_(choices), random_(choices.seed) {
  // Priorities of actors lie above the ones that change points hand out.
  lowest_ = choices.pct_depth;
  for (std::uint32_t i = 0; i < choices.pct_depth; ++i) {
    change_points_.push_back(random_.below(std::max<std::uint32_t>(choices.pct_steps, 1)));
  }
  std::ranges::sort(change_points_);
}

int Scheduler::add(Role role) {
  actors_.push_back({role, -1, (random_.next() >> 16) + choices_.pct_depth + 1});
  return static_cast<int>(actors_.size()) - 1;
}

void Scheduler::set_enabled(int idx, bool is_enabled) {
  Actor& changed = actor(idx);
  if ((changed.position >= 0) == is_enabled) {
    return;
  }
  if (is_enabled) {
    changed.position = static_cast<int>(enabled_.size());
    enabled_.push_back(idx);
    return;
  }
  const int moved = enabled_.back();
  enabled_[static_cast<std::size_t>(changed.position)] = moved;
  actor(moved).position = changed.position;
  enabled_.pop_back();
  changed.position = -1;
}

int Scheduler::pick() {
  ++num_steps_;
  if (enabled_.empty()) {
    return -1;
  }
  switch (choices_.strategy) {
    case Strategy::random:
      current_ = pick_random();
      break;
    case Strategy::pct:
      current_ = pick_by_priority();
      break;
    case Strategy::delay_pipe:
      current_ = pick_but_victim();
      break;
    case Strategy::late:
      current_ = pick_late();
      break;
    case Strategy::inorder:
      current_ = pick_in_order();
      break;
  }
  hash_ = (hash_ ^ static_cast<std::uint64_t>(current_)) * 0x100000001b3ULL + 1;
  return current_;
}

int Scheduler::pick_random() { return enabled_[random_.below(enabled_.size())]; }

int Scheduler::pick_by_priority() {
  const auto best = [&] {
    return *std::ranges::max_element(enabled_, {}, [&](int idx) { return actor(idx).priority; });
  };
  while (next_change_ < change_points_.size() && change_points_[next_change_] <= num_steps_) {
    ++next_change_;
    actor(best()).priority = --lowest_;
  }
  return best();
}

int Scheduler::pick_but_victim() {
  if (victim_ < 0) {
    victim_ = static_cast<int>(random_.below(actors_.size()));
  }
  if (enabled_.size() == 1 || actor(victim_).position < 0) {
    return pick_random();
  }
  // Skip over the victim's position.
  const auto drawn = random_.below(enabled_.size() - 1);
  const bool is_behind = drawn >= static_cast<std::uint64_t>(actor(victim_).position);
  return enabled_[drawn + (is_behind ? 1 : 0)];
}

int Scheduler::pick_late() {
  std::size_t num_fibers = 0;
  for (const int idx : enabled_) {
    num_fibers += actor(idx).role != Role::completion ? 1 : 0;
  }
  if (num_fibers == 0) {
    return pick_random();
  }
  auto drawn = random_.below(num_fibers);
  for (const int idx : enabled_) {
    if (actor(idx).role != Role::completion && drawn-- == 0) {
      return idx;
    }
  }
  return enabled_.front();
}

int Scheduler::pick_in_order() {
  // By role, then round robin from the current actor on, so that nobody starves behind a poller.
  const auto distance = [&](int idx) {
    const int num = static_cast<int>(actors_.size());
    return (idx - current_ + num) % num;
  };
  const auto before = [&](int a, int b) {
    return actor(a).role != actor(b).role ? actor(a).role < actor(b).role : distance(a) < distance(b);
  };
  return *std::ranges::min_element(enabled_, before);
}

}  // namespace epsim::twin
