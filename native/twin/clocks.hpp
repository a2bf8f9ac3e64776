// Happens-before: stamps of single accesses and vector clocks of agents.
//
// An agent is one component of every clock: scalar unit, MTE2, MTE3 of an AIV, each of its warps, each jetty,
// the host of a rank. Clocks are immutable snapshots that agents, flags and words share; changing one copies
// it.
#pragma once

#include <cstdint>
#include <twin/ref.hpp>
#include <vector>

namespace epsim::twin {

using AgentId = std::uint16_t;

// tid of a stamp that stands for several threads of an agent: never "the same thread".
inline constexpr std::uint16_t kManyThreads = 0xffff;

// Who accessed, and when by that agent's own count. clock 0 = nobody yet.
struct Stamp {
  AgentId agent = 0;
  std::uint16_t tid = 0;
  std::uint32_t clock = 0;

  bool operator==(const Stamp&) const = default;
};

struct Clock {
  std::uint32_t num_refs = 0;
  std::vector<std::uint32_t> of_agent;  // missing components are 0
  // Single threads that are known further than their agent: a lane's own writes before its fence.
  std::vector<Stamp> extras;

  std::uint32_t at(AgentId agent) const { return agent < of_agent.size() ? of_agent[agent] : 0; }
  bool covers(const Stamp& stamp) const {
    return at(stamp.agent) >= stamp.clock || (!extras.empty() && covers_by_extra(stamp));
  }
  bool covers_by_extra(const Stamp& stamp) const;
};

using ClockRef = RefPtr<Clock>;

// The empty clock, shared by everything that knows nothing.
ClockRef no_clock();
// The smallest clock that covers both; one of the two itself when it covers the other.
ClockRef join(const ClockRef& a, const ClockRef& b);
// `clock` with one component raised to at least `value`.
ClockRef raised(const ClockRef& clock, AgentId agent, std::uint32_t value);
// `clock` that also covers one thread of an agent up to its stamp.
ClockRef with_extra(const ClockRef& clock, const Stamp& stamp);

// Who may rely on a store: everybody (a word in GM) or this core alone (a word in UB).
enum Scope : std::uint8_t { kScopeGm, kScopeCore, kNumScopes };

// What one thread or pipe knows: `known` is finished before its next access; `visible` is the part of it that
// is fenced, per scope, and therefore passed on by a store or atomic to a sync word.
struct Knowledge {
  ClockRef known;
  ClockRef visible[kNumScopes];
};

Knowledge nothing_known();
Knowledge join(const Knowledge& a, const Knowledge& b);
// `knowledge`, after `agent` finished everything up to `value` in a way that all can see (a pipe's copies).
Knowledge completed(const Knowledge& knowledge, AgentId agent, std::uint32_t value);

}  // namespace epsim::twin
