// All memory with all its checks: the one place through which every access goes.
#pragma once

#include <cstdint>
#include <twin/engine.hpp>
#include <twin/memory.hpp>
#include <twin/shadow.hpp>
#include <twin/thread.hpp>
#include <utility>
#include <vector>

namespace epsim::twin {

// A range inside one region.
struct Span {
  Region* region;
  std::uint64_t offset;
  std::uint64_t num_bytes;

  std::uint8_t* data() const { return region->at(offset); }
};

class Space {
 public:
  Space(int num_ranks, bool has_checks) : memory(num_ranks), shadow(has_checks) {}

  Span gm(std::uint64_t address, std::uint64_t num_bytes, const Site& site) const {
    Region& region = memory.checked(address, num_bytes, site);
    return {&region, address - region.base, num_bytes};
  }

  void read(const Span& span, void* out, const Access& access, AccessKind kind, bool must_be_initialised);
  void write(const Span& span, const void* in, const Access& access, AccessKind kind);
  void copy(const Span& target, const Span& source, const Access& access);
  // Bytes of source are added to target as int32 words; readers synchronise with neither.
  void add_int32(const Span& target, const Span& source, const Access& access);

  // Sync words. Learned is what the writer released (null: nothing).
  std::uint64_t sync_load(const Span& span, const Access& access, bool must_be_initialised,
                          ClockRef& learned);
  void sync_store(const Span& span, std::uint64_t bits, const Access& access, const ClockRef& released);
  // Returns the old value; what the word had released stays released.
  std::uint64_t atomic(const Span& span, const AtomicCall& call, const Access& access,
                       const ClockRef& released, ClockRef& learned);

  void watch(const Span& span, StoreListener listener);

  // Sleepers wake when one of their polled words is written.
  void put_to_sleep(Sleeper& sleeper);
  bool wake_all();  // false if nobody sleeps
  // Something other than repeated polling has happened since the last wake_all.
  bool has_progress = true;

  Memory memory;
  Shadow shadow;

 private:
  void after_write(const Span& span, std::uint8_t flags);
  void tell_listeners(const Span& span, const Site& site, const ClockRef& released);

  std::vector<Sleeper*> sleepers_;
  std::vector<std::pair<Span, StoreListener>> listeners_;
};

// The value that an atomic leaves behind.
std::uint64_t atomic_result(const AtomicCall& call, std::uint64_t old);
inline std::uint32_t number_bytes(Number number) {
  return number == Number::i64 || number == Number::u64 ? 8 : 4;
}

}  // namespace epsim::twin
