// Device binaries and their launch, as DeepJIT does it (spec/ascend.md 5).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <runtime/cann.hpp>

namespace epsim::runtime {

struct Argument {
  const void* data;
  uint64_t num_bytes;
  uint64_t align;  // alignof of its type
};

// Arguments in order, each aligned to max(4, align), the whole rounded up to 8 bytes; gaps are zero.
std::vector<uint8_t> pack(std::span<const Argument> arguments);

struct Launch {
  uint32_t num_blocks = 0;
  aclrtStream stream = nullptr;
  uint32_t ub_bytes = 0;      // of unified buffer, 0 = none beyond static
  uint32_t timeout_secs = 0;  // 0 = the device's default
};

// A loaded kernel. It is never unloaded: some releases run stale code when the address of an unloaded binary is used
// again (reported in public for CANN 9.0 and 9.2 beta, unsure).
class Kernel {
 public:
  Kernel(const std::string& path, const std::string& name);
  void launch(const Launch& launch, std::span<const Argument> arguments) const;

 private:
  aclrtBinHandle binary_ = nullptr;
  aclrtFuncHandle function_ = nullptr;
};

struct DeviceLimits {
  int64_t num_vector_cores = 0;
  int64_t ub_bytes = 0;  // per vector core, as the device reports it
};
DeviceLimits device_limits();

}  // namespace epsim::runtime
