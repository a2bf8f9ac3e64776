// What the flags of requests promise: which earlier requests of its queue a request waits for, and therefore
// knows.
#pragma once

#include <cstdint>
#include <vector>

#include <twin/clocks.hpp>
#include <twin/urma_request.hpp>

namespace epsim::twin {

// Requests of a queue are numbered from 1; the number is the jetty's own component of the clocks. Requests
// are threads of their own: neither their order in the queue nor the time at which they happen to land orders
// anything.
class UrmaOrder {
 public:
  explicit UrmaOrder(AgentId agent) : agent_(agent) {}

  Stamp stamp(std::uint32_t number) const {
    return {agent_, static_cast<std::uint16_t>(number % kManyThreads), number};
  }

  // Add the next request, rung by someone who had released `released`; returns what it knows when it lands:
  // that, and all that it waits for.
  ClockRef add(const UrmaRequest& request, std::uint32_t number, const ClockRef& released);

  // What its completion tells: all that it knew, and itself.
  ClockRef completed(const ClockRef& known, std::uint32_t number) const {
    return known->at(agent_) + 1 >= number ? raised(known, agent_, number) : with_extra(known, stamp(number));
  }

 private:
  AgentId agent_;
  std::vector<std::uint32_t> loose_;  // numbers of loose requests that no fence has covered yet
};

}  // namespace epsim::twin
