#include <twin/caches.hpp>

namespace epsim::twin {

template <std::uint64_t kLineBytes>
typename LineCache<kLineBytes>::Line* LineCache<kLineBytes>::find(const Region& region,
                                                                  std::uint64_t line_offset) {
  const auto entry = idx_of_line_.find(region.base + line_offset);
  return entry == idx_of_line_.end() || !lines_[entry->second].is_valid ? nullptr : &lines_[entry->second];
}

template <std::uint64_t kLineBytes>
typename LineCache<kLineBytes>::Line& LineCache<kLineBytes>::fetch(Shadow& shadow, Region& region,
                                                                   std::uint64_t line_offset) {
  const auto [entry, is_new] = idx_of_line_.try_emplace(region.base + line_offset, lines_.size());
  if (is_new) {
    lines_.emplace_back();
  }
  Line& line = lines_[entry->second];
  line.region = &region;
  line.offset = line_offset;
  line.is_valid = true;
  line.is_dirty = false;
  line.seen.fill(shadow.version());
  return line;
}

template <std::uint64_t kLineBytes>
void LineCache<kLineBytes>::load(Shadow& shadow, Region& region, std::uint64_t offset,
                                 std::uint64_t num_bytes, const Site& site, Rule stale_rule) {
  const std::uint64_t end = offset + num_bytes;
  for (std::uint64_t start = offset / kLineBytes * kLineBytes; start < end; start += kLineBytes) {
    Line* line = find(region, start);
    if (line == nullptr) {
      fetch(shadow, region, start);
      continue;
    }
    for (std::uint64_t i = 0; i < kLineCells; ++i) {
      const std::uint64_t at = start + i * kCellBytes;
      if (at + kCellBytes <= offset || at >= end) {
        continue;
      }
      const Cell& cell = region.cell(at / kCellBytes);
      if (cell.version > line->seen[i]) {
        raise(stale_rule, site,
              "byte " + std::to_string(at) + " of \"" + region.name + "\" of rank " +
                  std::to_string(region.rank) + " was written after this core's cache had fetched its line",
              {shadow.writer(cell)});
      }
    }
  }
}

template <std::uint64_t kLineBytes>
void LineCache<kLineBytes>::prepare(Shadow& shadow, Region& region, std::uint64_t offset,
                                    std::uint64_t num_bytes) {
  const std::uint64_t end = offset + num_bytes;
  for (std::uint64_t start = offset / kLineBytes * kLineBytes; start < end; start += kLineBytes) {
    if (find(region, start) == nullptr) {
      fetch(shadow, region, start);
    }
  }
}

template <std::uint64_t kLineBytes>
void LineCache<kLineBytes>::store(Shadow& shadow, Region& region, std::uint64_t offset,
                                  std::uint64_t num_bytes, bool allocate) {
  const std::uint64_t end = offset + num_bytes;
  for (std::uint64_t start = offset / kLineBytes * kLineBytes; start < end; start += kLineBytes) {
    Line* line = find(region, start);
    if (line == nullptr) {
      if (!allocate) {
        continue;
      }
      line = &fetch(shadow, region, start);
    }
    line->is_dirty = line->is_dirty || allocate;
    for (std::uint64_t i = 0; i < kLineCells; ++i) {
      const std::uint64_t at = start + i * kCellBytes;
      if (at + kCellBytes > offset && at < end) {
        line->seen[i] = shadow.version();
      }
    }
  }
}

template <std::uint64_t kLineBytes>
void LineCache<kLineBytes>::clean(Shadow& shadow, Line& line, const Site& site) {
  line.is_valid = false;
  if (!line.is_dirty) {
    return;
  }
  const std::uint64_t capacity = (line.region->num_bytes + kGmAlign - 1) / kGmAlign * kGmAlign;
  for (std::uint64_t i = 0; i < kLineCells && line.offset + i * kCellBytes < capacity; ++i) {
    Cell& cell = line.region->cell(line.offset / kCellBytes + i);
    if (cell.version > line.seen[i]) {
      raise(Rule::lost_update, site,
            "writing a line back would undo a write to byte " + std::to_string(line.offset + i * kCellBytes) +
                " of \"" + line.region->name + "\" of rank " + std::to_string(line.region->rank) +
                ", made after the line was fetched",
            {shadow.writer(cell)});
    }
    cell.flags = static_cast<std::uint8_t>(cell.flags & ~kDirty);
  }
}

template <std::uint64_t kLineBytes>
void LineCache<kLineBytes>::clean_line(Shadow& shadow, Region& region, std::uint64_t offset,
                                       const Site& site) {
  if (Line* line = find(region, offset / kLineBytes * kLineBytes)) {
    clean(shadow, *line, site);
  }
}

template <std::uint64_t kLineBytes>
void LineCache<kLineBytes>::clean_all(Shadow& shadow, const Site& site) {
  for (Line& line : lines_) {
    if (line.is_valid) {
      clean(shadow, line, site);
    }
  }
  drop_all();
}

template <std::uint64_t kLineBytes>
void LineCache<kLineBytes>::drop_all() {
  lines_.clear();
  idx_of_line_.clear();
}

template class LineCache<64>;
template class LineCache<128>;

}  // namespace epsim::twin
