// Simulated memory: named allocations in GM, one unified buffer per AIV, each byte pair with its shadow cell.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <twin/clocks.hpp>
#include <twin/violation.hpp>
#include <vector>

namespace epsim::twin {

enum CellFlag : std::uint8_t {
  kInitialised = 1,
  kSyncWrite = 2,  // the last write was a bypass store or an atomic
  kSyncRead = 4,   // the last read was a bypass load
  kDirty = 8,      // the last write sits in the scalar DCache of its writer
  kWatched = 16,   // a parked fiber waits for a write
  kListened = 32,  // a device wants to hear of stores
};

// What is known about two bytes.
struct Cell {
  Stamp write;
  Stamp read;
  std::uint32_t side = 0;     // further readers and the released clock: index into the side table, 0 = none
  std::uint32_t version = 0;  // of the last write, by one counter of the whole machine
  std::uint16_t write_where = 0;
  std::uint16_t read_where = 0;
  std::uint16_t generation = 0;  // a cell of an older generation of its region is blank
  std::uint8_t flags = 0;
};
static_assert(sizeof(Cell) == 32);

inline constexpr std::uint64_t kCellBytes = 2;
inline constexpr std::uint64_t kGmAlign = 512;

// Zeroed pages that cost nothing until they are touched.
class Pages {
 public:
  Pages() = default;
  explicit Pages(std::uint64_t num_bytes);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();
  std::uint8_t* data() const { return data_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::uint64_t num_bytes_ = 0;
};

struct Region {
  std::string name;
  std::uint64_t base = 0;
  std::uint64_t num_bytes = 0;
  std::int16_t rank = -1;
  bool is_ub = false;
  std::uint16_t generation = 1;
  std::uint8_t blank_flags = 0;  // of a cell that nobody touched: kInitialised in a zeroed allocation
  Pages bytes;
  Pages shadow;

  Region(std::string region_name, std::uint64_t address, std::uint64_t size);
  std::uint8_t* at(std::uint64_t offset) const { return bytes.data() + offset; }
  // Cells start blank whenever the generation has moved on.
  Cell& cell(std::uint64_t idx) const {
    Cell& found = reinterpret_cast<Cell*>(shadow.data())[idx];
    if (found.generation != generation) {
      found = Cell{};
      found.generation = generation;
      found.flags = blank_flags;
    }
    return found;
  }
};

class Memory {
 public:
  explicit Memory(int num_ranks) : regions_(static_cast<std::size_t>(num_ranks)) {}

  Region& allocate(int rank, std::uint64_t num_bytes, const std::string& name, bool is_zeroed);
  // The region that holds all of [address, address + num_bytes), null if there is none.
  Region* find(std::uint64_t address, std::uint64_t num_bytes) const;
  Region* find(int rank, const std::string& name) const;
  // Likewise, but a range outside is a violation at `site`.
  Region& checked(std::uint64_t address, std::uint64_t num_bytes, const Site& site) const;
  static int rank_of(std::uint64_t address) { return static_cast<int>(address >> 40) - 1; }

 private:
  Region* holder(std::uint64_t address) const;  // the last region that starts at or before address
  std::vector<std::vector<std::unique_ptr<Region>>> regions_;
  mutable Region* recent_ = nullptr;
};

// Mark bytes as written by the host (initialised, before everything) or as never written.
void set_by_host(Region& region, std::uint64_t offset, std::uint64_t num_bytes, bool is_initialised);

}  // namespace epsim::twin
