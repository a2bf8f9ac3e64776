// What a device beside the cores (the URMA engine of a jetty) sees of the machine, and what the machine asks
// of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <twin/clocks.hpp>
#include <twin/violation.hpp>

namespace epsim::twin {

// One access: who at which own time (stamp), what it knows to be finished (known), where to report it.
struct Access {
  Stamp stamp;
  const Clock* known = nullptr;
  Site site;
};

// A bypass store or an atomic that has just landed on a watched word.
struct Store {
  std::uint64_t address;
  std::uint32_t num_bytes;
  std::uint64_t value;  // new content, little endian, zero extended
  ClockRef released;    // what a reader of this word learns: the storer's clock as of its last fence
  Site site;            // the store: rank and AIV of the producer
};
using StoreListener = std::function<void(const Store&)>;

// A device with steps that the scheduler runs one at a time, in an order that the strategy picks.
class Device {
 public:
  virtual ~Device() = default;
  // How many steps could run now, any of them next: an order that the flags demand is the device's own
  // business. Asked again after every step of this device and after every store that one of its listeners
  // heard.
  virtual std::size_t num_ready() const = 0;
  // Run ready step `idx` in [0, num_ready()). May raise a violation. Strategy inorder always passes 0.
  virtual void run(std::size_t idx) = 0;
  // For the deadlock report; empty = idle.
  virtual std::string describe() const = 0;
};

struct AllocationInfo {
  std::string name;
  std::uint64_t base;
  std::uint64_t num_bytes;
};

// The services. Machine implements this; tests may fake it.
class Bus {
 public:
  virtual ~Bus() = default;

  virtual int num_ranks() const = 0;
  virtual int num_aivs() const = 0;  // per rank
  // A parameter of epsim_machine_create that the machine itself does not know ("sq_depth", ...).
  virtual std::int64_t parameter(const std::string& name, std::int64_t fallback) const = 0;
  // False under strategy inorder: accesses are then not checked, and the device should not raise ordering
  // rules.
  virtual bool has_checks() const = 0;
  // Deterministic bits of this run's seed.
  virtual std::uint64_t random() = 0;

  // A new component of the vector clocks, for the accesses of a device.
  virtual AgentId add_agent(const std::string& name) = 0;
  virtual void attach(std::unique_ptr<Device> device) = 0;
  // Call back after each bypass store or atomic that lands in the range, in the order of landing.
  virtual void watch(std::uint64_t address, std::uint64_t num_bytes, StoreListener listener) = 0;

  // Allocation as by epsim_alloc; `find` by name, `owner` by address (nullopt = outside every allocation).
  virtual std::uint64_t allocate(int rank, std::uint64_t num_bytes, const std::string& name,
                                 bool is_zeroed) = 0;
  virtual std::optional<AllocationInfo> find(int rank, const std::string& name) const = 0;
  virtual std::optional<AllocationInfo> owner(std::uint64_t address) const = 0;

  // Checked accesses: bounds, happens-before against every other access, dirty lines of scalar caches.
  virtual void read(std::uint64_t address, void* out, std::uint64_t num_bytes, const Access& access) = 0;
  virtual void write(std::uint64_t address, const void* in, std::uint64_t num_bytes,
                     const Access& access) = 0;
  // Read and write in one: keeps "uninitialised" with the bytes.
  virtual void copy(std::uint64_t target, std::uint64_t source, std::uint64_t num_bytes,
                    const Access& access) = 0;
  // A store as by asc_store_dev that readers synchronise with: they learn `released`. Up to 8 bytes, aligned.
  // Wakes pollers and listeners.
  virtual void release(std::uint64_t address, const void* in, std::uint32_t num_bytes, const Access& access,
                       const ClockRef& released) = 0;
  // A bypass load of a sync word (up to 8 bytes, aligned): the value, and what its writer released (never
  // null).
  virtual std::uint64_t acquire(std::uint64_t address, std::uint32_t num_bytes, const Access& access,
                                ClockRef& learned) = 0;
  // Unchecked, for set-up and descriptions. Both mark nothing but `poke` initialises.
  virtual void peek(std::uint64_t address, void* out, std::uint64_t num_bytes) const = 0;
  virtual void poke(std::uint64_t address, const void* in, std::uint64_t num_bytes) = 0;

  // Append to the trace: a short kind ("urma_write", "cqe"), with the address and size it concerns.
  virtual void trace(const char* kind, const Site& site, std::uint64_t address, std::uint64_t num_bytes,
                     std::uint64_t extra) = 0;
};

// urma.cpp: create all jetties, fill their tables, attach their engines. Errors of use throw
// std::invalid_argument.
void init_jetties(Bus& bus);

}  // namespace epsim::twin
