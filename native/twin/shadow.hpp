// The race check: every access against the last accesses of the same bytes.
#pragma once

#include <cstdint>
#include <string>
#include <twin/clocks.hpp>
#include <twin/engine.hpp>
#include <twin/memory.hpp>
#include <unordered_map>
#include <vector>

namespace epsim::twin {

enum class AccessKind : std::uint8_t {
  plain,          // copies, SIMT loads and stores, engines
  sync,           // bypass loads and stores, atomics: never race among themselves
  scalar_cached,  // through the scalar DCache of the accessing core
};

struct AgentInfo {
  std::string name;
  std::int16_t rank;
  std::int16_t aiv;
  pipe_t pipe;
  std::uint16_t first_lane;  // of a warp
};

class Shadow {
 public:
  explicit Shadow(bool has_checks) : has_checks_(has_checks) {}

  AgentId add_agent(AgentInfo info);
  std::size_t num_agents() const { return agents_.size(); }

  // Check and note an access; both return the union of the flags of the cells. With must_be_initialised a
  // blank byte is a violation.
  std::uint8_t read(Region& region, std::uint64_t offset, std::uint64_t num_bytes, const Access& access,
                    AccessKind kind, bool must_be_initialised);
  std::uint8_t write(Region& region, std::uint64_t offset, std::uint64_t num_bytes, const Access& access,
                     AccessKind kind);
  // Give the bytes of target the "initialised" marks of source (after write, which sets them).
  void copy_marks(Region& target, std::uint64_t target_offset, const Region& source,
                  std::uint64_t source_offset, std::uint64_t num_bytes);

  // What the writers of these bytes released; null if none of them was a sync write.
  ClockRef released(Region& region, std::uint64_t offset, std::uint64_t num_bytes) const;
  void set_released(Region& region, std::uint64_t offset, std::uint64_t num_bytes, const ClockRef& clock);

  std::uint32_t version() const { return version_; }
  // The last writer of a cell, for reports.
  Involved writer(const Cell& cell) const;
  bool has_checks() const { return has_checks_; }

 private:
  struct Reader {
    Stamp stamp;
    std::uint16_t where;
    bool is_sync;
  };
  struct Side {
    ClockRef released;
    std::vector<Reader> readers;
  };

  std::uint16_t intern(Where where);
  Side& side(Cell& cell);
  void note_read(Cell& cell, const Access& access, bool is_sync, std::uint16_t where);
  void check_readers(Region& region, std::uint64_t idx, Cell& cell, const Access& access, bool is_sync);
  void check_dirty(Region& region, std::uint64_t idx, const Cell& cell, const Access& access, AccessKind kind,
                   bool is_write) const;
  [[noreturn]] void race(Region& region, std::uint64_t idx, const Access& access, const char* what,
                         const Stamp& other, std::uint16_t other_where, const char* other_what) const;
  Involved place(const Stamp& stamp, std::uint16_t where, std::string what) const;
  std::string bytes_text(const Region& region, std::uint64_t idx) const;

  bool has_checks_;
  std::uint32_t version_ = 0;
  std::vector<AgentInfo> agents_;
  std::vector<Side> sides_{1};
  std::vector<Where> wheres_;
  std::unordered_map<std::uint64_t, std::uint16_t> where_ids_;
  Where last_where_{};
  std::uint16_t last_where_id_ = 0;
};

}  // namespace epsim::twin
