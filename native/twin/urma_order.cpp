#include <twin/urma_order.hpp>

#include <algorithm>

namespace epsim::twin {

ClockRef UrmaOrder::add(const UrmaRequest& request, std::uint32_t number, const ClockRef& released) {
  std::erase_if(loose_, [&](std::uint32_t earlier) { return released->at(agent_) >= earlier; });
  if (!request.is_strong()) {
    if (request.is_loose()) {
      loose_.push_back(number);
    }
    return released;
  }
  if (request.has_fence || loose_.empty()) {
    loose_.clear();
    return raised(released, agent_, number - 1);
  }
  ClockRef known = raised(released, agent_, loose_.front() - 1);
  for (std::uint32_t earlier = loose_.front() + 1; earlier < number; ++earlier) {
    if (!std::ranges::binary_search(loose_, earlier)) {
      known = with_extra(known, stamp(earlier));
    }
  }
  return known;
}

}  // namespace epsim::twin
