// The services of the machine to devices.
#include <cstring>
#include <stdexcept>
#include <twin/machine.hpp>

namespace epsim::twin {

std::int64_t Machine::parameter(const std::string& name, std::int64_t fallback) const {
  return parameters_.integer(name, fallback);
}

AgentId Machine::add_agent(const std::string& name) {
  return space_.shadow.add_agent({name, -1, -1, PIPE_URMA, 0});
}

void Machine::attach(std::unique_ptr<Device> device) {
  const std::size_t idx = devices_.size();
  const int actor = add_actor(Role::completion, [this, idx] {
    Device& running = *devices_[idx].device;
    const std::size_t num_ready = running.num_ready();
    if (num_ready > 0) {
      running.run(scheduler_.strategy() == Strategy::inorder ? 0 : dice().below(num_ready));
    }
    refresh_device(idx);
  });
  devices_.push_back({std::move(device), actor});
  refresh_device(idx);
}

void Machine::refresh_device(std::size_t idx) {
  scheduler_.set_enabled(devices_[idx].actor, devices_[idx].device->num_ready() > 0);
}

void Machine::watch(std::uint64_t address, std::uint64_t num_bytes, StoreListener listener) {
  const Span span = space_.gm(address, num_bytes, Site{});
  space_.watch(span, [this, listener = std::move(listener)](const Store& store) {
    listener(store);
    for (std::size_t idx = 0; idx < devices_.size(); ++idx) {
      refresh_device(idx);
    }
  });
}

std::uint64_t Machine::allocate(int rank, std::uint64_t num_bytes, const std::string& name, bool is_zeroed) {
  if (rank < 0 || rank >= num_ranks_ || num_bytes == 0) {
    throw std::invalid_argument("an allocation needs a rank in 0.." + std::to_string(num_ranks_ - 1) +
                                " and at least one byte");
  }
  const std::uint64_t base = space_.memory.allocate(rank, num_bytes, name, is_zeroed).base;
  trace_.add_named(scheduler_.num_steps(), "alloc", rank, name, base, num_bytes, 0);
  return base;
}

std::optional<AllocationInfo> Machine::find(int rank, const std::string& name) const {
  const Region* region = space_.memory.find(rank, name);
  return region == nullptr ? std::nullopt
                           : std::optional<AllocationInfo>({region->name, region->base, region->num_bytes});
}

std::optional<AllocationInfo> Machine::owner(std::uint64_t address) const {
  const Region* region = space_.memory.find(address, 1);
  return region == nullptr ? std::nullopt
                           : std::optional<AllocationInfo>({region->name, region->base, region->num_bytes});
}

void Machine::read(std::uint64_t address, void* out, std::uint64_t num_bytes, const Access& access) {
  if (num_bytes > 0) {
    space_.read(space_.gm(address, num_bytes, access.site), out, access, AccessKind::plain, true);
  }
}

void Machine::write(std::uint64_t address, const void* in, std::uint64_t num_bytes, const Access& access) {
  if (num_bytes > 0) {
    space_.write(space_.gm(address, num_bytes, access.site), in, access, AccessKind::plain);
  }
}

void Machine::copy(std::uint64_t target, std::uint64_t source, std::uint64_t num_bytes,
                   const Access& access) {
  if (num_bytes > 0) {
    space_.copy(space_.gm(target, num_bytes, access.site), space_.gm(source, num_bytes, access.site), access);
  }
}

void Machine::release(std::uint64_t address, const void* in, std::uint32_t num_bytes, const Access& access,
                      const ClockRef& released) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, in, num_bytes);
  space_.sync_store(space_.gm(address, num_bytes, access.site), bits, access, released);
}

std::uint64_t Machine::acquire(std::uint64_t address, std::uint32_t num_bytes, const Access& access,
                               ClockRef& learned) {
  const std::uint64_t bits =
      space_.sync_load(space_.gm(address, num_bytes, access.site), access, true, learned);
  if (!learned) {
    learned = no_clock();
  }
  return bits;
}

void Machine::peek(std::uint64_t address, void* out, std::uint64_t num_bytes) const {
  const Region* region = space_.memory.find(address, num_bytes);
  if (region == nullptr) {
    throw std::invalid_argument("a host copy must lie inside one allocation");
  }
  std::memcpy(out, region->at(address - region->base), num_bytes);
}

void Machine::poke(std::uint64_t address, const void* in, std::uint64_t num_bytes) {
  Region* region = space_.memory.find(address, num_bytes);
  if (region == nullptr) {
    throw std::invalid_argument("a host copy must lie inside one allocation");
  }
  std::memcpy(region->at(address - region->base), in, num_bytes);
  set_by_host(*region, address - region->base, num_bytes, true);
}

void Machine::trace(const char* kind, const Site& site, std::uint64_t address, std::uint64_t num_bytes,
                    std::uint64_t extra) {
  trace_.add(scheduler_.num_steps(), kind, site, address, num_bytes, extra);
}

}  // namespace epsim::twin
