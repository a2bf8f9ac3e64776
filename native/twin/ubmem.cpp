#include <twin/ubmem.hpp>
#include <utility>

namespace epsim::twin {

namespace {

bool overlap(const Span& a, const Span& b) {
  return a.region == b.region && a.offset < b.offset + b.num_bytes && b.offset < a.offset + a.num_bytes;
}

}  // namespace

std::uint64_t InFlight::add(RemoteAccess access) {
  access.ticket = ++num_tickets_;
  pending_.push_back(std::move(access));
  return num_tickets_;
}

void InFlight::land(std::size_t idx) {
  for (std::size_t i = 0; i < idx; ++i) {
    if (overlap(pending_[i].span, pending_[idx].span)) {
      idx = i;
      break;
    }
  }
  const RemoteAccess landed = std::move(pending_[idx]);
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(idx));
  const Access access{landed.stamp, landed.known.get(), landed.site};
  switch (landed.kind) {
    case RemoteAccess::Kind::plain_store:
      space_.write(landed.span, landed.bytes.data(), access, AccessKind::plain);
      break;
    case RemoteAccess::Kind::sync_store:
      space_.sync_store(landed.span, landed.bits, access, landed.released);
      break;
    case RemoteAccess::Kind::atomic: {
      ClockRef learned;
      const std::uint64_t old = space_.atomic(landed.span, landed.call, access, landed.released, learned);
      results_[landed.ticket] = {old, learned};
      break;
    }
  }
}

template <class Predicate>
void InFlight::land_where(Predicate is_wanted) {
  for (std::size_t i = 0; i < pending_.size();) {
    if (is_wanted(pending_[i])) {
      land(i);
      i = 0;  // an earlier one of somebody else may have landed in its place
    } else {
      ++i;
    }
  }
}

void InFlight::land_all_of(const Stamp& thread) {
  land_where([&](const RemoteAccess& access) {
    return access.stamp.agent == thread.agent && access.stamp.tid == thread.tid;
  });
}

void InFlight::land_all_but_of(AgentId agent) {
  land_where([&](const RemoteAccess& access) { return access.stamp.agent != agent; });
}

void InFlight::land_overlapping(const Span& span) {
  land_where([&](const RemoteAccess& access) { return overlap(access.span, span); });
}

std::uint64_t InFlight::result(std::uint64_t ticket, ClockRef& learned) {
  for (;;) {
    const auto found = results_.find(ticket);
    if (found != results_.end()) {
      const Result result = found->second;
      results_.erase(found);
      learned = result.learned;
      return result.old;
    }
    std::size_t idx = 0;
    while (idx < pending_.size() && pending_[idx].ticket != ticket) {
      ++idx;
    }
    if (idx == pending_.size()) {
      return 0;
    }
    land(idx);
  }
}

}  // namespace epsim::twin
