#include <twin/urma_jetty.hpp>

#include <utility>

namespace epsim::twin {

Jetty::Jetty(Bus& bus, JettyPlan plan)
    : bus_(bus),
      plan_(std::move(plan)),
      agent_(bus.add_agent("jetty " + std::to_string(plan_.jetty_idx) + " of rank " +
                           std::to_string(plan_.rank))),
      order_(agent_),
      occupant_(plan_.rules.sq_depth, 0) {}

bool Jetty::waits_for(const Flight& later, const Flight& earlier) const {
  return !earlier.is_landed && later.request.is_strong() &&
         (later.request.has_fence || !earlier.request.is_loose());
}

// Nothing holds the request back any more: its pieces may land in any order.
void Jetty::start(std::uint32_t number, Flight& flight) {
  const UrmaRequest& request = flight.request;
  for (std::uint32_t i = 0; i < request.pieces.size(); ++i) {
    ready_.push_back({number, i});
  }
  if (!request.inline_bytes.empty()) {
    ready_.push_back({number, kInlinePayload});
  }
  flight.num_unlanded = request.pieces.size() + (request.inline_bytes.empty() ? 0 : 1);
  if (flight.num_unlanded == 0) {
    finish(number, flight);
  }
}

void Jetty::run(std::size_t idx) {
  const Step step = ready_[idx];
  ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(idx));
  const auto found = flights_.find(step.number);
  if (step.what == kCompletion) {
    complete(step.number, found->second);
    flights_.erase(found);
    return;
  }
  land(step.number, found->second, step.what);
}

void Jetty::land(std::uint32_t number, Flight& flight, std::uint32_t what) {
  const UrmaRequest& request = flight.request;
  const Access access{order_.stamp(number), flight.known.get(), flight.site};
  if (what == kNotify) {
    bus_.release(request.notify_address, &request.notify_value, sizeof(request.notify_value), access,
                 flight.done);
    finish(number, flight);
    return;
  }
  if (what == kInlinePayload) {
    bus_.write(request.remote_address, request.inline_bytes.data(), request.num_bytes, access);
  } else if (request.is_word()) {
    std::uint64_t word = 0;
    bus_.read(request.pieces[0].source, &word, request.num_bytes, access);
    bus_.release(request.remote_address, &word, static_cast<std::uint32_t>(request.num_bytes), access,
                 flight.done);
  } else {
    const UrmaPiece& piece = request.pieces[what];
    bus_.copy(piece.target, piece.source, piece.num_bytes, access);
  }
  if (--flight.num_unlanded != 0) {
    return;
  }
  if (request.notify_address != 0) {
    ready_.push_back({number, kNotify});
    return;
  }
  finish(number, flight);
}

// All of it is at its place: let those start that waited for it, and tell, if that was asked for.
void Jetty::finish(std::uint32_t number, Flight& flight) {
  trace("urma_done", number, flight, flight.request.remote_address);
  std::vector<std::uint32_t> startable;
  for (auto later = flights_.upper_bound(number); later != flights_.end(); ++later) {
    if (waits_for(later->second, flight) && --later->second.num_waiting == 0) {
      startable.push_back(later->first);
    }
  }
  flight.is_landed = true;
  if (flight.request.wants_completion) {
    ready_.push_back({number, kCompletion});
  } else {
    flights_.erase(number);
  }
  for (const std::uint32_t later : startable) {
    start(later, flights_.at(later));
  }
}

void Jetty::complete(std::uint32_t number, const Flight& flight) {
  const std::uint32_t depth = plan_.info.cq_depth;
  const std::uint64_t address =
      plan_.info.cq_base + std::uint64_t{num_posted_ % depth} * plan_.info.cqe_bytes;
  // Status and substatus are zero: what would fail has stopped the run. The other words stay as they were.
  const auto word = static_cast<std::uint32_t>(urma::put(urma::kCqeOwner, 1 - (num_posted_ / depth) % 2));
  posted_.push_back(number);
  ++num_posted_;
  trace("cqe", number, flight, address);
  bus_.release(address, &word, sizeof(word), {order_.stamp(number), flight.done.get(), flight.site},
               flight.done);
}

void Jetty::trace(const char* kind, std::uint32_t number, const Flight& flight, std::uint64_t address) const {
  const UrmaRequest& request = flight.request;
  const std::uint64_t extra = urma::put(kTraceNumber, number) | urma::put(kTraceNumSges, request.num_sges) |
                              urma::put(kTraceOrder, request.order) |
                              urma::put(kTraceFence, request.has_fence) |
                              urma::put(kTraceCompletion, request.wants_completion) |
                              urma::put(kTraceIsNop, request.opcode == urma::kOpcodeNop) |
                              urma::put(kTraceJetty, static_cast<std::uint64_t>(plan_.jetty_idx));
  bus_.trace(kind, flight.site, address, request.num_bytes, extra);
}

std::string Jetty::describe() const {
  if (flights_.empty()) {
    return "";
  }
  return "jetty " + std::to_string(plan_.jetty_idx) + " of rank " + std::to_string(plan_.rank) + " has " +
         std::to_string(flights_.size()) + " requests on their way";
}

}  // namespace epsim::twin
