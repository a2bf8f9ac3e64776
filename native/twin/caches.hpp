// The two data caches of an AIV that are not coherent: scalar (64 B lines, write back) and SIMT (128 B lines,
// write through). Only what they hold is modelled, not their bytes: whoever would see another value gets a
// violation. Lines stay until they are invalidated, the worst case for a reader that forgot to.
#pragma once

#include <array>
#include <cstdint>
#include <twin/memory.hpp>
#include <twin/shadow.hpp>
#include <unordered_map>
#include <vector>

namespace epsim::twin {

template <std::uint64_t kLineBytes>
class LineCache {
 public:
  static constexpr std::uint64_t kLineCells = kLineBytes / kCellBytes;

  struct Line {
    Region* region = nullptr;
    std::uint64_t offset = 0;  // of the line in its region
    bool is_valid = false;
    bool is_dirty = false;
    std::array<std::uint32_t, kLineCells> seen{};  // the version of each cell that the line holds
  };

  // After a checked load: fetch the lines of the range, or find that a held one is older than memory.
  void load(Shadow& shadow, Region& region, std::uint64_t offset, std::uint64_t num_bytes, const Site& site,
            Rule stale_rule);
  // Before a store that allocates: fetch absent lines.
  void prepare(Shadow& shadow, Region& region, std::uint64_t offset, std::uint64_t num_bytes);
  // After a checked store: what the range holds is what was stored. With `allocate` absent lines are fetched.
  void store(Shadow& shadow, Region& region, std::uint64_t offset, std::uint64_t num_bytes, bool allocate);
  // Write back and drop one line; a cell that others wrote since the fetch would be overwritten: a violation.
  void clean_line(Shadow& shadow, Region& region, std::uint64_t offset, const Site& site);
  void clean_all(Shadow& shadow, const Site& site);
  void drop_all();

 private:
  Line* find(const Region& region, std::uint64_t line_offset);
  Line& fetch(Shadow& shadow, Region& region, std::uint64_t line_offset);
  static void clean(Shadow& shadow, Line& line, const Site& site);

  std::vector<Line> lines_;
  std::unordered_map<std::uint64_t, std::size_t> idx_of_line_;  // by address; only looked up
};

using ScalarCache = LineCache<64>;
using SimtCache = LineCache<128>;

extern template class LineCache<64>;
extern template class LineCache<128>;

}  // namespace epsim::twin
