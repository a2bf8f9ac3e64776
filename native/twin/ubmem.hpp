// Stores and atomics of one AIV on their way to the memory of a peer: each lands late, at a moment that the
// scheduler picks; those to the same bytes land in order, and a fence of the thread lands all of its own.
#pragma once

#include <cstdint>
#include <twin/space.hpp>
#include <unordered_map>
#include <vector>

namespace epsim::twin {

struct RemoteAccess {
  enum class Kind : std::uint8_t { plain_store, sync_store, atomic } kind;
  Span span;
  std::vector<std::uint8_t> bytes;  // of a plain store
  std::uint64_t bits = 0;           // of a sync store
  AtomicCall call{};
  Stamp stamp;  // taken at issue, as the clocks are
  ClockRef known;
  ClockRef released;
  Site site;
  std::uint64_t ticket = 0;
};

class InFlight {
 public:
  explicit InFlight(Space& space) : space_(space) {}

  std::uint64_t add(RemoteAccess access);  // returns the ticket, not 0
  std::uint64_t last_ticket() const { return num_tickets_; }
  bool empty() const { return pending_.empty(); }
  std::size_t size() const { return pending_.size(); }
  // Land entry idx, or the earliest one to the same bytes.
  void land(std::size_t idx);
  void land_all_of(const Stamp& thread);
  void land_all_but_of(AgentId agent);
  void land_overlapping(const Span& span);
  // The old value of an atomic; lands it if need be.
  std::uint64_t result(std::uint64_t ticket, ClockRef& learned);
  const RemoteAccess& at(std::size_t idx) const { return pending_[idx]; }

 private:
  template <class Predicate>
  void land_where(Predicate is_wanted);

  struct Result {
    std::uint64_t old;
    ClockRef learned;
  };
  Space& space_;
  std::uint64_t num_tickets_ = 0;
  std::vector<RemoteAccess> pending_;  // in order of issue
  std::unordered_map<std::uint64_t, Result> results_;
};

}  // namespace epsim::twin
