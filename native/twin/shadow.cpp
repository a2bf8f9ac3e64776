#include <algorithm>
#include <cstdio>
#include <twin/shadow.hpp>

namespace epsim::twin {

namespace {

// Order of the program of one thread, or order by synchronisation.
bool is_ordered(const Stamp& before, const Access& access) {
  if (before.clock == 0) {
    return true;
  }
  const bool is_same_thread =
      before.agent == access.stamp.agent && before.tid == access.stamp.tid && before.tid != kManyThreads;
  return is_same_thread || access.known->covers(before);
}

}  // namespace

AgentId Shadow::add_agent(AgentInfo info) {
  agents_.push_back(std::move(info));
  return static_cast<AgentId>(agents_.size() - 1);
}

std::uint16_t Shadow::intern(Where where) {
  if (where.file == last_where_.file && where.line == last_where_.line && !wheres_.empty()) {
    return last_where_id_;
  }
  const std::uint64_t key = (reinterpret_cast<std::uintptr_t>(where.file) << 20) ^ where.line;
  auto [entry, is_new] = where_ids_.try_emplace(key, static_cast<std::uint16_t>(wheres_.size()));
  if (is_new) {
    wheres_.push_back(where);
  }
  last_where_ = where;
  last_where_id_ = entry->second;
  return entry->second;
}

Shadow::Side& Shadow::side(Cell& cell) {
  if (cell.side == 0) {
    cell.side = static_cast<std::uint32_t>(sides_.size());
    sides_.emplace_back();
  }
  return sides_[cell.side];
}

Involved Shadow::place(const Stamp& stamp, std::uint16_t where, std::string what) const {
  const AgentInfo& agent = agents_[stamp.agent];
  Site site{wheres_.empty() ? Where{} : wheres_[where], agent.rank, agent.aiv, agent.pipe, -1};
  if (agent.pipe == PIPE_V && stamp.tid != kManyThreads) {
    site.lane = static_cast<std::int16_t>(stamp.tid);
  }
  return {site, std::move(what)};
}

Involved Shadow::writer(const Cell& cell) const { return place(cell.write, cell.write_where, "write"); }

std::string Shadow::bytes_text(const Region& region, std::uint64_t idx) const {
  char text[120];
  std::snprintf(text, sizeof(text), "byte %llu of %s \"%.60s\" of rank %d",
                static_cast<unsigned long long>(idx * kCellBytes), region.is_ub ? "UB" : "GM",
                region.name.c_str(), region.rank);
  return text;
}

void Shadow::race(Region& region, std::uint64_t idx, const Access& access, const char* what,
                  const Stamp& other, std::uint16_t other_where, const char* other_what) const {
  raise(
      Rule::data_race, access.site,
      std::string(what) + " of " + bytes_text(region, idx) + " is not ordered after an earlier " + other_what,
      {place(other, other_where, other_what)});
}

void Shadow::check_dirty(Region& region, std::uint64_t idx, const Cell& cell, const Access& access,
                         AccessKind kind, bool is_write) const {
  if ((cell.flags & kDirty) == 0 ||
      (kind == AccessKind::scalar_cached && access.stamp.agent == cell.write.agent)) {
    return;
  }
  if (!is_ordered(cell.write, access)) {
    race(region, idx, access, is_write ? "write" : "read", cell.write, cell.write_where, "write");
  }
  raise(is_write ? Rule::lost_update : Rule::unflushed_line, access.site,
        bytes_text(region, idx) + " is dirty in the scalar data cache of the AIV that wrote it",
        {place(cell.write, cell.write_where, "cached write without a later asc_dcci")});
}

void Shadow::note_read(Cell& cell, const Access& access, bool is_sync, std::uint16_t where) {
  const bool was_sync = (cell.flags & kSyncRead) != 0;
  const bool is_first = cell.read.clock == 0;
  if (is_first || (was_sync == is_sync && is_ordered(cell.read, access))) {
    cell.read = access.stamp;
    cell.read_where = where;
    cell.flags = static_cast<std::uint8_t>(is_sync ? cell.flags | kSyncRead : cell.flags & ~kSyncRead);
    return;
  }
  std::vector<Reader>& readers = side(cell).readers;
  for (Reader& reader : readers) {
    if (reader.stamp.agent == access.stamp.agent && reader.is_sync == is_sync) {
      if (reader.stamp.tid != access.stamp.tid) {
        reader.stamp.tid = kManyThreads;
      }
      reader.stamp.clock = std::max(reader.stamp.clock, access.stamp.clock);
      reader.where = where;
      return;
    }
  }
  readers.push_back({access.stamp, where, is_sync});
}

std::uint8_t Shadow::read(Region& region, std::uint64_t offset, std::uint64_t num_bytes, const Access& access,
                          AccessKind kind, bool must_be_initialised) {
  const bool is_sync = kind == AccessKind::sync;
  const std::uint64_t end = (offset + num_bytes - 1) / kCellBytes;
  if (!has_checks_) {
    return 0;
  }
  const std::uint16_t where = intern(access.site.where);
  Stamp fine{};  // the last write that was found ordered: neighbours mostly have the same
  std::uint8_t flags = 0;
  for (std::uint64_t i = offset / kCellBytes; i <= end; ++i) {
    Cell& cell = region.cell(i);
    flags |= cell.flags;
    check_dirty(region, i, cell, access, kind, false);
    if (!(cell.write == fine) && !(is_sync && (cell.flags & kSyncWrite) != 0)) {
      if (!is_ordered(cell.write, access)) {
        race(region, i, access, "read", cell.write, cell.write_where, "write");
      }
      fine = cell.write;
    }
    if (must_be_initialised && (cell.flags & kInitialised) == 0) {
      raise(Rule::uninitialised_load, access.site, "nobody has written " + bytes_text(region, i));
    }
    if (!(cell.read == access.stamp)) {
      note_read(cell, access, is_sync, where);
    }
  }
  return flags;
}

void Shadow::check_readers(Region& region, std::uint64_t idx, Cell& cell, const Access& access,
                           bool is_sync) {
  const bool may_overlap = is_sync && (cell.flags & kSyncRead) != 0;
  if (!may_overlap && !is_ordered(cell.read, access)) {
    race(region, idx, access, "write", cell.read, cell.read_where, "read");
  }
  if (cell.side == 0) {
    return;
  }
  std::vector<Reader>& readers = sides_[cell.side].readers;
  for (const Reader& reader : readers) {
    if (!(is_sync && reader.is_sync) && !is_ordered(reader.stamp, access)) {
      race(region, idx, access, "write", reader.stamp, reader.where, "read");
    }
  }
  // Readers that this write is ordered after are history; pollers that it is not ordered after stay.
  std::erase_if(readers, [&](const Reader& reader) { return is_ordered(reader.stamp, access); });
}

std::uint8_t Shadow::write(Region& region, std::uint64_t offset, std::uint64_t num_bytes,
                           const Access& access, AccessKind kind) {
  const bool is_sync = kind == AccessKind::sync;
  const std::uint64_t end = (offset + num_bytes - 1) / kCellBytes;
  const std::uint16_t where = has_checks_ ? intern(access.site.where) : std::uint16_t{0};
  const std::uint8_t marks =
      static_cast<std::uint8_t>(kInitialised | (is_sync ? kSyncWrite : 0) |
                                (kind == AccessKind::scalar_cached && has_checks_ ? kDirty : 0));
  ++version_;
  Stamp fine{};
  std::uint8_t flags = 0;
  for (std::uint64_t i = offset / kCellBytes; i <= end; ++i) {
    Cell& cell = region.cell(i);
    flags |= cell.flags;
    if (has_checks_) {
      check_dirty(region, i, cell, access, kind, true);
      if (!(cell.write == fine) && !(is_sync && (cell.flags & kSyncWrite) != 0)) {
        if (!is_ordered(cell.write, access)) {
          race(region, i, access, "write", cell.write, cell.write_where, "write");
        }
        fine = cell.write;
      }
      if (cell.read.clock != 0 || cell.side != 0) {
        check_readers(region, i, cell, access, is_sync);
        if (cell.side != 0) {
          sides_[cell.side].released = ClockRef();
        }
        if (is_ordered(cell.read, access)) {
          cell.read = Stamp{};
        }
      }
    }
    cell.write = access.stamp;
    cell.write_where = where;
    cell.version = version_;
    cell.flags = static_cast<std::uint8_t>((cell.flags & (kSyncRead | kWatched | kListened)) | marks);
  }
  return flags;
}

void Shadow::copy_marks(Region& target, std::uint64_t target_offset, const Region& source,
                        std::uint64_t source_offset, std::uint64_t num_bytes) {
  for (std::uint64_t done = 0; done < num_bytes; done += kCellBytes) {
    if ((source.cell((source_offset + done) / kCellBytes).flags & kInitialised) == 0) {
      Cell& cell = target.cell((target_offset + done) / kCellBytes);
      cell.flags = static_cast<std::uint8_t>(cell.flags & ~kInitialised);
    }
  }
}

ClockRef Shadow::released(Region& region, std::uint64_t offset, std::uint64_t num_bytes) const {
  ClockRef result;
  for (std::uint64_t i = offset / kCellBytes; i <= (offset + num_bytes - 1) / kCellBytes; ++i) {
    const Cell& cell = region.cell(i);
    if (cell.side != 0 && sides_[cell.side].released) {
      const ClockRef& clock = sides_[cell.side].released;
      result = result ? join(result, clock) : clock;
    }
  }
  return result;
}

void Shadow::set_released(Region& region, std::uint64_t offset, std::uint64_t num_bytes,
                          const ClockRef& clock) {
  for (std::uint64_t i = offset / kCellBytes; i <= (offset + num_bytes - 1) / kCellBytes; ++i) {
    side(region.cell(i)).released = clock;
  }
}

}  // namespace epsim::twin
