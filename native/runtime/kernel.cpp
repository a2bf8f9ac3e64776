#include <runtime/kernel.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include <runtime/failure.hpp>

namespace epsim::runtime {

std::vector<uint8_t> pack(std::span<const Argument> arguments) {
  std::vector<uint8_t> packed;
  const auto pad_to = [&packed](uint64_t align) { packed.resize((packed.size() + align - 1) / align * align); };
  for (const Argument& argument : arguments) {
    pad_to(std::max<uint64_t>(4, argument.align));
    const auto* bytes = static_cast<const uint8_t*>(argument.data);
    packed.insert(packed.end(), bytes, bytes + argument.num_bytes);
  }
  pad_to(8);
  return packed;
}

Kernel::Kernel(const std::string& path, const std::string& name) {
  EPSIM_CALL(aclrtBinaryLoadFromFile, path.c_str(), nullptr, &binary_);
  EPSIM_CALL(aclrtBinaryGetFunction, binary_, name.c_str(), &function_);
}

void Kernel::launch(const Launch& launch, std::span<const Argument> arguments) const {
  if (launch.num_blocks == 0 || launch.timeout_secs > std::numeric_limits<uint16_t>::max()) {
    throw Failure("a launch of " + std::to_string(launch.num_blocks) + " blocks and " +
                  std::to_string(launch.timeout_secs) + " s: blocks must be positive, seconds fit 16 bits");
  }
  std::vector<uint8_t> packed = pack(arguments);
  std::array<aclrtLaunchKernelAttr, 2> attributes{};
  aclrtLaunchKernelCfg config{};
  config.attrs = attributes.data();
  if (launch.ub_bytes != 0) {
    attributes[config.numAttrs].id = ACL_RT_LAUNCH_KERNEL_ATTR_DYN_UBUF_SIZE;
    attributes[config.numAttrs++].value.dynUBufSize = launch.ub_bytes;
  }
  if (launch.timeout_secs != 0) {
    attributes[config.numAttrs].id = ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT;
    attributes[config.numAttrs++].value.timeout = static_cast<uint16_t>(launch.timeout_secs);
  }
  EPSIM_CALL(aclrtLaunchKernelWithHostArgs, function_, launch.num_blocks, launch.stream,
             config.numAttrs == 0 ? nullptr : &config, packed.empty() ? nullptr : packed.data(), packed.size(),
             nullptr, 0);
}

DeviceLimits device_limits() {
  int32_t device = 0;
  EPSIM_CALL(aclrtGetDevice, &device);
  DeviceLimits limits;
  const auto id = static_cast<uint32_t>(device);
  EPSIM_CALL(aclrtGetDeviceInfo, id, ACL_DEV_ATTR_VECTOR_CORE_NUM, &limits.num_vector_cores);
  EPSIM_CALL(aclrtGetDeviceInfo, id, ACL_DEV_ATTR_UBUF_PER_VECTOR_CORE, &limits.ub_bytes);
  return limits;
}

}  // namespace epsim::runtime
