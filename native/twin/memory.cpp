#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <twin/memory.hpp>
#include <utility>

namespace epsim::twin {

Pages::Pages(std::uint64_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) {
    return;
  }
  void* pages =
      mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) {
    throw std::bad_alloc();
  }
  data_ = static_cast<std::uint8_t*>(pages);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

Pages::~Pages() {
  if (data_ != nullptr) {
    munmap(data_, num_bytes_);
  }
}

Region::Region(std::string region_name, std::uint64_t address, std::uint64_t size)
    : name(std::move(region_name)), base(address), num_bytes(size) {
  // Whole cache lines, so that a line may be looked at beyond the last byte.
  const std::uint64_t capacity = (size + kGmAlign - 1) / kGmAlign * kGmAlign;
  bytes = Pages(capacity);
  shadow = Pages(capacity / kCellBytes * sizeof(Cell));
}

Region& Memory::allocate(int rank, std::uint64_t num_bytes, const std::string& name, bool is_zeroed) {
  auto& list = regions_[static_cast<std::size_t>(rank)];
  // A page between allocations belongs to nobody: running over an end is out of bounds, not another buffer.
  std::uint64_t base = static_cast<std::uint64_t>(rank + 1) << 40;
  if (!list.empty()) {
    base = (list.back()->base + list.back()->num_bytes + 4096 + kGmAlign - 1) / kGmAlign * kGmAlign;
  }
  list.push_back(std::make_unique<Region>(name, base, num_bytes));
  Region& region = *list.back();
  region.rank = static_cast<std::int16_t>(rank);
  if (is_zeroed) {
    region.blank_flags = kInitialised;
  } else {
    std::memset(region.at(0), 0xff, num_bytes);
  }
  return region;
}

Region* Memory::holder(std::uint64_t address) const {
  const int rank = rank_of(address);
  if (rank < 0 || static_cast<std::size_t>(rank) >= regions_.size()) {
    return nullptr;
  }
  const auto& list = regions_[static_cast<std::size_t>(rank)];
  auto after =
      std::upper_bound(list.begin(), list.end(), address,
                       [](std::uint64_t wanted, const auto& region) { return wanted < region->base; });
  return after == list.begin() ? nullptr : std::prev(after)->get();
}

Region* Memory::find(std::uint64_t address, std::uint64_t num_bytes) const {
  const auto holds = [&](const Region* region) {
    return region != nullptr && address >= region->base && num_bytes <= region->num_bytes &&
           address - region->base <= region->num_bytes - num_bytes;
  };
  if (holds(recent_)) {
    return recent_;
  }
  Region* region = holder(address);
  return holds(region) ? (recent_ = region) : nullptr;
}

Region* Memory::find(int rank, const std::string& name) const {
  if (rank < 0 || static_cast<std::size_t>(rank) >= regions_.size()) {
    return nullptr;
  }
  for (const auto& region : regions_[static_cast<std::size_t>(rank)]) {
    if (region->name == name) {
      return region.get();
    }
  }
  return nullptr;
}

Region& Memory::checked(std::uint64_t address, std::uint64_t num_bytes, const Site& site) const {
  if (Region* region = find(address, num_bytes)) {
    return *region;
  }
  char text[200];
  if (const Region* region = holder(address)) {
    std::snprintf(text, sizeof(text), "%llu B at 0x%llx: byte %llu of \"%.60s\" of rank %d, which has %llu B",
                  static_cast<unsigned long long>(num_bytes), static_cast<unsigned long long>(address),
                  static_cast<unsigned long long>(address - region->base), region->name.c_str(), region->rank,
                  static_cast<unsigned long long>(region->num_bytes));
  } else {
    std::snprintf(text, sizeof(text), "%llu B at 0x%llx: no allocation starts before it",
                  static_cast<unsigned long long>(num_bytes), static_cast<unsigned long long>(address));
  }
  raise(Rule::gm_out_of_bounds, site, text);
}

void set_by_host(Region& region, std::uint64_t offset, std::uint64_t num_bytes, bool is_initialised) {
  if (num_bytes == 0) {
    return;
  }
  if (!is_initialised) {
    std::memset(region.at(offset), 0xff, num_bytes);
  }
  const auto keep = static_cast<std::uint8_t>(kListened);
  for (std::uint64_t i = offset / kCellBytes; i <= (offset + num_bytes - 1) / kCellBytes; ++i) {
    Cell& cell = region.cell(i);
    const auto flags = static_cast<std::uint8_t>((cell.flags & keep) | (is_initialised ? kInitialised : 0));
    cell = Cell{};
    cell.generation = region.generation;
    cell.flags = flags;
  }
}

}  // namespace epsim::twin
