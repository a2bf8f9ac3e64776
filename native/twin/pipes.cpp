#include <algorithm>
#include <twin/pipes.hpp>

namespace epsim::twin {

CrossFlags::CrossFlags(std::uint32_t num_blocks) : ids_(kNumCrossIds) {
  for (Id& id : ids_) {
    id.arrivals.assign(num_blocks, 0);
    id.passed.assign(num_blocks, 0);
  }
}

std::uint32_t CrossFlags::num_full(const Id& id) { return *std::ranges::min_element(id.arrivals); }

void CrossFlags::arrive(std::uint32_t block, std::int64_t idx, const Knowledge& knowledge, const Site& site) {
  Id& id = ids_[static_cast<std::size_t>(idx)];
  const std::uint32_t round = id.arrivals[block]++;
  if (id.arrivals[block] - id.passed[block] > kMaxPending) {
    raise(Rule::count_limit, site,
          "arrival " + std::to_string(kMaxPending + 1) + " on cross-core flag " + std::to_string(idx) +
              " before a wait");
  }
  if (round == id.rounds.size()) {
    id.rounds.push_back(knowledge);
  } else {
    id.rounds[round] = join(id.rounds[round], knowledge);
  }
}

bool CrossFlags::can_pass(std::uint32_t block, std::int64_t idx) const {
  const Id& id = ids_[static_cast<std::size_t>(idx)];
  return num_full(id) > id.passed[block];
}

Knowledge CrossFlags::pass(std::uint32_t block, std::int64_t idx) {
  Id& id = ids_[static_cast<std::size_t>(idx)];
  return id.rounds[id.passed[block]++];
}

void CrossFlags::check_empty(const std::vector<Site>& ends) const {
  for (std::size_t idx = 0; idx < ids_.size(); ++idx) {
    for (std::size_t block = 0; block < ends.size(); ++block) {
      const std::uint32_t arrived = ids_[idx].arrivals[block];
      if (arrived != ids_[idx].passed[block]) {
        raise(Rule::flag_left_set, ends[block],
              "cross-core flag " + std::to_string(idx) + ": " + std::to_string(arrived) + " arrivals, " +
                  std::to_string(ids_[idx].passed[block]) + " waits when the kernel ended");
      }
    }
  }
}

}  // namespace epsim::twin
