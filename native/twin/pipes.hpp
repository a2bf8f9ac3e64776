// The in-order queues of an AIV (V, MTE2, MTE3) and the flags between them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <twin/clocks.hpp>
#include <twin/violation.hpp>

namespace epsim::twin {

inline constexpr std::int64_t kNumFlagIds = 8;
inline constexpr std::int64_t kNumCrossIds = 16;
inline constexpr std::uint32_t kMaxPending = 15;
inline constexpr std::uint64_t kUbAlign = 32;
inline constexpr std::uint32_t kMaxBursts = 4095;
inline constexpr std::uint32_t kMaxBurstBytes = 2'097'151;
inline constexpr std::int64_t kMaxThreads = 2048;

struct PipeOp {
  enum class Kind : std::uint8_t { copy_in, copy_out, vf, notify, wait, arrive, inter_wait, barrier };

  Kind kind = Kind::barrier;
  Site site;
  Knowledge issued;  // what the scalar unit knew and had done when it queued this
  // Copies.
  std::uint64_t gm_address = 0;
  std::uint64_t ub_offset = 0;
  CopyShape shape{};
  bool is_add = false;
  // Flags: the other pipe of notify and wait, and the id.
  pipe_t other = PIPE_S;
  std::int64_t id = 0;
  // VFs.
  std::function<void()> body;
  std::uint32_t num_threads = 0;
};

// One queue. Operations start in order and run one at a time, at moments that the scheduler picks. On MTE
// pipes a later operation is not ordered after an earlier one unless a barrier stands between them; on V it
// is.
struct Pipe {
  pipe_t kind = PIPE_V;
  int actor = -1;
  AgentId agent = 0;          // of an MTE pipe; a VF has its warps
  std::uint32_t num_ops = 0;  // also the clock of the last one
  Knowledge done;             // all finished operations, and all that waits have brought
  Knowledge ordered;          // what the next operation may rely on: waits, and operations before a barrier
  std::deque<PipeOp> queue;
};

struct Flag {
  bool is_set = false;
  Knowledge knowledge;
  Site set_at;
};

// Arrivals of all AIVs of a launch on the 16 cross-core flags.
class CrossFlags {
 public:
  explicit CrossFlags(std::uint32_t num_blocks);
  void arrive(std::uint32_t block, std::int64_t id, const Knowledge& knowledge, const Site& site);
  bool can_pass(std::uint32_t block, std::int64_t id) const;
  Knowledge pass(std::uint32_t block, std::int64_t id);
  // At the end of the launch: nothing may be pending.
  void check_empty(const std::vector<Site>& ends) const;
  std::uint32_t num_arrived(std::uint32_t block, std::int64_t id) const {
    return ids_[static_cast<std::size_t>(id)].arrivals[block];
  }

 private:
  struct Id {
    std::vector<std::uint32_t> arrivals;  // per block
    std::vector<std::uint32_t> passed;
    std::vector<Knowledge> rounds;  // joined over the blocks
  };
  static std::uint32_t num_full(const Id& id);
  std::vector<Id> ids_;
};

}  // namespace epsim::twin
