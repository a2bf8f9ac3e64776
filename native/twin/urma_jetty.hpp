// The engine of one jetty: takes requests when the doorbell rings, lands them in an order that their flags
// allow, and tells of completions.
//
// What is checked at the doorbell holds for every schedule: words of requests, sources and free blocks are
// judged by what the ringing AIV knew, not by what happens to have landed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <twin/engine.hpp>
#include <twin/urma_order.hpp>
#include <twin/urma_request.hpp>

namespace epsim::twin {

struct JettyPlan {
  int rank;
  int jetty_idx;
  urma::JettyInfo info;
  UrmaRules rules;
};

// Of the trace events "urma_post", "urma_done" (address and size of the remote range; 0 of a NOP) and "cqe"
// (address of the entry, size of the request): number of the request in its queue, then what it asked for.
inline constexpr urma::BitField kTraceNumber{0, 32};
inline constexpr urma::BitField kTraceNumSges{32, 8};
inline constexpr urma::BitField kTraceOrder{40, 3};
inline constexpr urma::BitField kTraceFence{43, 1};
inline constexpr urma::BitField kTraceCompletion{44, 1};
inline constexpr urma::BitField kTraceIsNop{45, 1};
inline constexpr urma::BitField kTraceJetty{48, 16};

// The AIV that uses one side of a jetty. Another may follow it once it knows all that the former had
// released.
class Tenant {
 public:
  // Returns the former AIV's store if this one is not ordered after it.
  std::optional<Involved> take(const Store& store);

 private:
  std::optional<Store> last_;
};

class Jetty final : public Device {
 public:
  Jetty(Bus& bus, JettyPlan plan);

  void hear_doorbell(const Store& store);
  void hear_cq_doorbell(const Store& store);

  std::size_t num_ready() const override { return ready_.size(); }
  void run(std::size_t idx) override;
  std::string describe() const override;

 private:
  // A request between its doorbell and its completion.
  struct Flight {
    UrmaRequest request;
    Site site;       // the doorbell
    ClockRef known;  // before it lands
    ClockRef done;   // what its completion tells
    std::size_t num_unlanded = 0;
    std::size_t num_waiting = 0;  // earlier requests that it waits for
    bool is_landed = false;
  };
  // A gather element by its position, or one of these.
  enum : std::uint32_t { kInlinePayload = 0xfffffffd, kNotify, kCompletion };
  struct Step {
    std::uint32_t number;  // of the request
    std::uint32_t what;
  };

  Site own_site(const Store& store) const;
  // Intake (urma_intake.cpp).
  std::uint32_t checked_head(const Store& store, std::uint32_t published) const;
  UrmaBlock read_block(std::uint32_t head, const Store& store) const;
  void read_published(std::uint64_t address, void* out, std::uint64_t num_bytes, const Store& store,
                      Rule rule) const;
  void admit(UrmaRequest request, const Store& store);
  void check_expected(const Store& store, std::uint64_t packed_head) const;
  void check_taken(const Store& store, std::uint32_t num_taken) const;
  // Landing (urma_jetty.cpp).
  bool waits_for(const Flight& later, const Flight& earlier) const;
  void start(std::uint32_t number, Flight& flight);
  void land(std::uint32_t number, Flight& flight, std::uint32_t what);
  void finish(std::uint32_t number, Flight& flight);
  void complete(std::uint32_t number, const Flight& flight);
  void trace(const char* kind, std::uint32_t number, const Flight& flight, std::uint64_t address) const;

  Bus& bus_;
  JettyPlan plan_;
  AgentId agent_;
  UrmaOrder order_;
  Tenant producer_;
  Tenant consumer_;
  std::uint32_t cursor_ = 0;  // blocks taken by doorbells, running
  std::uint32_t num_requests_ = 0;
  std::uint32_t num_requested_ = 0;      // completions asked for
  std::uint32_t num_posted_ = 0;         // CQEs written
  std::uint32_t num_taken_ = 0;          // CQEs given back by the CQ doorbell
  std::deque<std::uint32_t> posted_;     // requests of the CQEs that were not given back
  std::vector<std::uint32_t> occupant_;  // of each block of the ring: the last request there, 0 = none
  std::map<std::uint32_t, Flight> flights_;
  std::vector<Step> ready_;
};

}  // namespace epsim::twin
