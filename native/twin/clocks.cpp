#include <algorithm>
#include <twin/clocks.hpp>

namespace epsim::twin {

namespace {

// Keep only what `clock` does not say already by its components.
void prune(Clock& clock) {
  std::erase_if(clock.extras, [&](const Stamp& extra) { return clock.at(extra.agent) >= extra.clock; });
}

void add_extra(Clock& clock, const Stamp& stamp) {
  if (clock.at(stamp.agent) >= stamp.clock) {
    return;
  }
  for (Stamp& extra : clock.extras) {
    if (extra.agent == stamp.agent && extra.tid == stamp.tid) {
      extra.clock = std::max(extra.clock, stamp.clock);
      return;
    }
  }
  clock.extras.push_back(stamp);
}

bool covers_all(const Clock& big, const Clock& small) {
  const std::size_t common = std::min(big.of_agent.size(), small.of_agent.size());
  bool is_covered = true;
  for (std::size_t i = 0; i < common; ++i) {
    is_covered &= big.of_agent[i] >= small.of_agent[i];
  }
  for (std::size_t i = common; i < small.of_agent.size(); ++i) {
    is_covered &= small.of_agent[i] == 0;
  }
  return is_covered &&
         std::ranges::all_of(small.extras, [&](const Stamp& extra) { return big.covers(extra); });
}

void merge_into(Clock& target, const Clock& other) {
  if (target.of_agent.size() < other.of_agent.size()) {
    target.of_agent.resize(other.of_agent.size(), 0);
  }
  for (std::size_t i = 0; i < other.of_agent.size(); ++i) {
    target.of_agent[i] = std::max(target.of_agent[i], other.of_agent[i]);
  }
  prune(target);
  for (const Stamp& extra : other.extras) {
    add_extra(target, extra);
  }
}

ClockRef copy(const Clock& clock) {
  auto* result = new Clock;
  result->of_agent = clock.of_agent;
  result->extras = clock.extras;
  return ClockRef(result);
}

}  // namespace

bool Clock::covers_by_extra(const Stamp& stamp) const {
  return std::ranges::any_of(extras, [&](const Stamp& extra) {
    return extra.agent == stamp.agent && extra.tid == stamp.tid && extra.clock >= stamp.clock;
  });
}

ClockRef no_clock() { return ClockRef(new Clock); }

ClockRef join(const ClockRef& a, const ClockRef& b) {
  if (a == b || covers_all(*a, *b)) {
    return a;
  }
  if (covers_all(*b, *a)) {
    return b;
  }
  ClockRef result = copy(*a);
  merge_into(*result, *b);
  return result;
}

ClockRef raised(const ClockRef& clock, AgentId agent, std::uint32_t value) {
  if (clock->at(agent) >= value) {
    return clock;
  }
  ClockRef result = copy(*clock);
  if (result->of_agent.size() <= agent) {
    result->of_agent.resize(agent + 1U, 0);
  }
  result->of_agent[agent] = value;
  prune(*result);
  return result;
}

ClockRef with_extra(const ClockRef& clock, const Stamp& stamp) {
  if (clock->covers(stamp)) {
    return clock;
  }
  ClockRef result = copy(*clock);
  add_extra(*result, stamp);
  return result;
}

Knowledge join(const Knowledge& a, const Knowledge& b) {
  Knowledge result;
  result.known = join(a.known, b.known);
  for (std::size_t scope = 0; scope < kNumScopes; ++scope) {
    // Where both sides share one clock the result does, too: most of them stay equal for ever.
    const bool is_shared = a.visible[scope] == a.known && b.visible[scope] == b.known;
    result.visible[scope] = is_shared ? result.known : join(a.visible[scope], b.visible[scope]);
  }
  return result;
}

Knowledge nothing_known() {
  const ClockRef clock = no_clock();
  return {clock, {clock, clock}};
}

Knowledge completed(const Knowledge& knowledge, AgentId agent, std::uint32_t value) {
  Knowledge result = knowledge;
  result.known = raised(knowledge.known, agent, value);
  for (std::size_t scope = 0; scope < kNumScopes; ++scope) {
    const bool is_shared = knowledge.visible[scope] == knowledge.known;
    result.visible[scope] = is_shared ? result.known : raised(knowledge.visible[scope], agent, value);
  }
  return result;
}

}  // namespace epsim::twin
