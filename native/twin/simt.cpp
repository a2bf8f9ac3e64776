#include <algorithm>
#include <twin/asc_simt.hpp>
#include <twin/core.hpp>
#include <twin/machine.hpp>
#include <twin/simt.hpp>

thread_local asc_dim threadIdx{0};
thread_local asc_dim blockDim{0};

namespace epsim::twin {

namespace {

bool is_same_place(const Lane& a, const Lane& b) {
  return a.op == b.op && a.where.line == b.where.line && a.where.file == b.where.file;
}

}  // namespace

void Lane::yield() { vf->yield(*this); }
void Lane::sleep() { vf->sleep(*this); }
void Lane::wake() { vf->wake(*this); }

Vf::Vf(Core& core, const std::vector<AgentId>& warp_agents, std::vector<std::uint32_t>& warp_clocks,
       std::uint32_t num_threads, const std::function<void()>& body, const Knowledge& start, Where where)
    : core_(core),
      body_(body),
      where_(where),
      warp_clocks_(warp_clocks),
      warp_agents_(warp_agents),
      num_live_(num_threads) {
  const std::uint32_t num_warps = (num_threads + kWarpLanes - 1) / kWarpLanes;
  for (std::uint32_t w = 0; w < num_warps; ++w) {
    const std::uint32_t num_lanes = std::min(kWarpLanes, num_threads - w * kWarpLanes);
    warps_.push_back({w * kWarpLanes, num_lanes, num_lanes, 0});
  }
  for (std::uint32_t i = 0; i < num_threads; ++i) {
    auto lane = std::make_unique<Lane>();
    lane->core = &core;
    lane->is_lane = true;
    lane->vf = this;
    lane->where = where;
    lane->clock.agent = warp_agents_[i / kWarpLanes];
    lane->clock.tid = static_cast<std::uint16_t>(i);
    lane->clock.is_single = false;
    lane->clock.now = &warp_clocks_[i / kWarpLanes];
    lane->clock.begin(start);
    lanes_.push_back(std::move(lane));
  }
  order_lanes();
}

// Any order of warps, and of lanes in a warp, is a legal one.
void Vf::order_lanes() {
  Random& random = core_.machine().dice();
  const bool is_shuffled = core_.machine().has_checks();
  std::vector<std::uint32_t> order(warps_.size());
  for (std::uint32_t w = 0; w < order.size(); ++w) {
    order[w] = w;
    if (is_shuffled) {
      std::swap(order[w], order[random.below(w + 1)]);
    }
  }
  for (const std::uint32_t w : order) {
    const std::uint64_t first = is_shuffled ? random.below(warps_[w].num_lanes) : 0;
    for (std::uint32_t i = 0; i < warps_[w].num_lanes; ++i) {
      ready_.push_back(lanes_[warps_[w].first + (first + i) % warps_[w].num_lanes].get());
    }
  }
}

void Vf::step() {
  has_yielded_ = false;
  while (!ready_.empty() && !has_yielded_) {
    Lane& lane = *ready_.front();
    ready_.pop_front();
    enter(lane);
  }
}

void Vf::enter(Lane& lane) {
  if (lane.fiber.is_done()) {
    lane.fiber.start([this, &lane] { core_.machine().run_guarded(body_, lane); });
  }
  threadIdx.x = lane.clock.tid;
  blockDim.x = static_cast<std::uint32_t>(lanes_.size());
  core_.machine().set_current(&lane);
  lane.fiber.resume();
  core_.machine().set_current(nullptr);
  core_.machine().rethrow();
  if (lane.fiber.is_done()) {
    lane_ended(lane);
  }
}

void Vf::lane_ended(Lane& lane) {
  lane.state = Lane::State::done;
  --num_live_;
  Warp& warp = warp_of(lane);
  --warp.num_live;
  resolve(warp);
}

void Vf::suspend(Lane& lane) {
  lane.waiting = lane.state == Lane::State::at_block  ? "every lane at asc_syncthreads"
                 : lane.state == Lane::State::at_warp ? "the other lanes of its warp"
                 : lane.state == Lane::State::asleep  ? "a write to a word that it polls"
                                                      : "";
  Fiber::suspend();
  lane.waiting.clear();
}

void Vf::make_ready(Lane& lane) {
  lane.state = Lane::State::ready;
  ready_.push_back(&lane);
}

void Vf::yield(Lane& lane) {
  make_ready(lane);
  has_yielded_ = true;
  suspend(lane);
}

void Vf::sleep(Lane& lane) {
  lane.state = Lane::State::asleep;
  core_.machine().space().put_to_sleep(lane);
  suspend(lane);
}

void Vf::wake(Lane& lane) {
  make_ready(lane);
  core_.refresh();
}

void Vf::syncthreads(Lane& lane, Where where) {
  lane.where = where;
  lane.state = Lane::State::at_block;
  ++num_at_block_;
  Warp& warp = warp_of(lane);
  ++warp.num_waiting;
  resolve(warp);
  if (lane.state == Lane::State::at_block) {
    suspend(lane);
  } else {
    ready_.erase(std::ranges::find(ready_, &lane));  // it was the last one: no need to switch
  }
}

void Vf::warp_op(Lane& lane, WarpOp op, Where where) {
  lane.where = where;
  lane.op = op;
  lane.state = Lane::State::at_warp;
  Warp& warp = warp_of(lane);
  ++warp.num_waiting;
  resolve(warp);
  if (lane.state == Lane::State::at_warp) {
    suspend(lane);
  } else {
    ready_.erase(std::ranges::find(ready_, &lane));
  }
}

// When all live lanes of a warp wait, those at the same place as its first waiting lane are the active ones.
void Vf::resolve(Warp& warp) {
  if (warp.num_waiting == warp.num_live && warp.num_live > 0) {
    std::vector<Lane*> group;
    for (std::uint32_t i = 0; i < warp.num_lanes; ++i) {
      Lane* lane = lanes_[warp.first + i].get();
      if (lane->state == Lane::State::at_warp && (group.empty() || is_same_place(*lane, *group.front()))) {
        group.push_back(lane);
      }
    }
    if (!group.empty()) {
      resolve_group(warp, group);
      return;
    }
  }
  if (num_at_block_ == num_live_ && num_live_ > 0) {
    resolve_block();
  }
}

void Vf::resolve_group(Warp& warp, const std::vector<Lane*>& group) {
  const Lane* by_lane[kWarpLanes] = {};
  for (const Lane* lane : group) {
    by_lane[lane->clock.tid % kWarpLanes] = lane;
  }
  compute(group, by_lane);
  give(warp, meet(warp));
  for (Lane* lane : group) {
    --warp.num_waiting;
    make_ready(*lane);
  }
}

void Vf::compute(const std::vector<Lane*>& group, const Lane* const* warp_lanes) {
  std::vector<std::uint64_t> results;
  std::uint64_t votes = 0;
  for (const Lane* lane : group) {
    votes |= (lane->bits & 1) << (lane->clock.tid % kWarpLanes);
  }
  for (const Lane* lane : group) {
    if (lane->op != WarpOp::shuffle) {
      results.push_back(votes);
      continue;
    }
    const std::uint32_t own = lane->clock.tid % kWarpLanes;
    std::uint32_t from = own;
    switch (lane->shuffle) {
      case rt::Shuffle::index:
        from = lane->operand % kWarpLanes;
        break;
      case rt::Shuffle::up:
        from = own >= lane->operand ? own - lane->operand : own;
        break;
      case rt::Shuffle::bit_xor:
        from = (own ^ lane->operand) % kWarpLanes;
        break;
    }
    // A lane that does not take part has nothing to give: garbage, the same in every run.
    results.push_back(warp_lanes[from] != nullptr ? warp_lanes[from]->bits : 0xdeadbeefdeadbeefULL);
  }
  for (std::size_t i = 0; i < group.size(); ++i) {
    group[i]->bits = results[i];
  }
}

void Vf::resolve_block() {
  if (num_live_ != lanes_.size()) {
    const auto waiting =
        std::ranges::find_if(lanes_, [](const auto& l) { return l->state == Lane::State::at_block; });
    raise(Rule::missing_arrivals, (*waiting)->site((*waiting)->where),
          std::to_string(lanes_.size() - num_live_) + " of " + std::to_string(lanes_.size()) +
              " lanes ended without reaching the barrier");
  }
  Knowledge all = meet(warps_.front());
  for (std::size_t w = 1; w < warps_.size(); ++w) {
    all = join(all, meet(warps_[w]));
  }
  for (Warp& warp : warps_) {
    give(warp, all);
    warp.num_waiting = 0;
  }
  num_at_block_ = 0;
  for (const auto& lane : lanes_) {
    make_ready(*lane);
  }
}

Knowledge Vf::meet(Warp& warp) {
  const std::uint32_t w = warp.first / kWarpLanes;
  const AgentId agent = warp_agents_[w];
  const std::uint32_t now = warp_clocks_[w]++;
  Knowledge all = lanes_[warp.first]->clock.knowledge;
  bool is_clean[kNumScopes] = {true, true};
  for (std::uint32_t i = 0; i < warp.num_lanes; ++i) {
    const ThreadClock& clock = lanes_[warp.first + i]->clock;
    all.known = join(all.known, clock.knowledge.known);
    for (std::size_t scope = 0; scope < kNumScopes; ++scope) {
      is_clean[scope] = is_clean[scope] && clock.is_clean[scope];
    }
  }
  const ClockRef known = raised(all.known, agent, now);
  for (std::size_t scope = 0; scope < kNumScopes; ++scope) {
    if (is_clean[scope]) {
      all.visible[scope] = known;
      continue;
    }
    for (std::uint32_t i = 0; i < warp.num_lanes; ++i) {
      all.visible[scope] =
          join(all.visible[scope], lanes_[warp.first + i]->clock.released(static_cast<Scope>(scope)));
    }
  }
  all.known = known;
  return all;
}

void Vf::give(Warp& warp, const Knowledge& knowledge) {
  for (std::uint32_t i = 0; i < warp.num_lanes; ++i) {
    ThreadClock& clock = lanes_[warp.first + i]->clock;
    const bool wrote_unfenced[kNumScopes] = {!clock.is_clean[kScopeGm], !clock.is_clean[kScopeCore]};
    clock.begin(knowledge);
    for (std::size_t scope = 0; scope < kNumScopes; ++scope) {
      // An unfenced write stays unfenced across a barrier.
      clock.is_clean[scope] = clock.is_clean[scope] && !wrote_unfenced[scope];
    }
  }
}

Knowledge Vf::finish() {
  Knowledge all = meet(warps_.front());
  for (std::size_t w = 1; w < warps_.size(); ++w) {
    all = join(all, meet(warps_[w]));
  }
  return all;
}

std::vector<Involved> Vf::describe() const {
  std::vector<Involved> result;
  for (const auto& lane : lanes_) {
    if (lane->state != Lane::State::done) {
      const bool repeats = !result.empty() && result.back().site.where.line == lane->where.line &&
                           result.back().what == "waits for " + lane->waiting;
      if (!repeats && result.size() < 16) {
        result.push_back({lane->site(lane->where), "waits for " + lane->waiting});
      }
    }
  }
  return result;
}

void Vf::cancel() {
  for (const auto& lane : lanes_) {
    lane->fiber.cancel();
  }
}

}  // namespace epsim::twin
