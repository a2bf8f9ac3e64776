// A running VF: its lanes as fibers, warps of 32, block barrier and warp operations.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <twin/thread.hpp>
#include <vector>

namespace epsim::twin {

class Vf;

inline constexpr std::uint32_t kWarpLanes = 32;

enum class WarpOp : std::uint8_t { none, sync, ballot, shuffle };

class Lane final : public Thread {
 public:
  void yield() override;
  void sleep() override;
  void wake() override;

  enum class State : std::uint8_t { ready, at_warp, at_block, asleep, done };
  Vf* vf = nullptr;
  State state = State::ready;
  // The warp operation it waits in: arguments, then the result.
  WarpOp op = WarpOp::none;
  rt::Shuffle shuffle = rt::Shuffle::index;
  std::uint32_t operand = 0;
  std::uint64_t bits = 0;
};

class Vf {
 public:
  Vf(Core& core, const std::vector<AgentId>& warp_agents, std::vector<std::uint32_t>& warp_clocks,
     std::uint32_t num_threads, const std::function<void()>& body, const Knowledge& start, Where where);

  // Run lanes until one of them lets others go first, or none can go on.
  void step();
  bool can_step() const { return !ready_.empty(); }
  bool is_done() const { return num_live_ == 0; }
  // What all lanes together did and know, after the last one ended.
  Knowledge finish();

  void yield(Lane& lane);
  void sleep(Lane& lane);
  void wake(Lane& lane);
  void syncthreads(Lane& lane, Where where);
  // Wait for the active lanes of the warp; the result is in lane.bits.
  void warp_op(Lane& lane, WarpOp op, Where where);

  std::vector<Involved> describe() const;
  void cancel();

 private:
  struct Warp {
    std::uint32_t first = 0;
    std::uint32_t num_lanes = 0;
    std::uint32_t num_live = 0;
    std::uint32_t num_waiting = 0;  // at_warp or at_block
  };

  void order_lanes();
  void enter(Lane& lane);
  void lane_ended(Lane& lane);
  void suspend(Lane& lane);
  void make_ready(Lane& lane);
  Warp& warp_of(const Lane& lane) { return warps_[lane.clock.tid / kWarpLanes]; }
  void resolve(Warp& warp);
  void resolve_group(Warp& warp, const std::vector<Lane*>& group);
  static void compute(const std::vector<Lane*>& group, const Lane* const* warp_lanes);
  void resolve_block();
  // Order everything that the lanes of a warp did before everything that they do next.
  Knowledge meet(Warp& warp);
  void give(Warp& warp, const Knowledge& knowledge);

  Core& core_;
  std::function<void()> body_;
  Where where_;
  std::vector<std::uint32_t>& warp_clocks_;
  std::vector<AgentId> warp_agents_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Warp> warps_;
  std::deque<Lane*> ready_;
  std::uint32_t num_live_ = 0;
  std::uint32_t num_at_block_ = 0;
  bool has_yielded_ = false;
};

}  // namespace epsim::twin
