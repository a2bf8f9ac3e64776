// Kernels are found by name: EPSIM_KERNEL(dispatch, dispatch_entry) at namespace scope, where
// `void dispatch_entry(gm<const DispatchArgs> args)`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <twin/pointer.hpp>
#include <vector>

namespace epsim::twin {

using KernelBody = std::function<void(std::uint64_t args_address)>;

void register_kernel(const char* name, KernelBody body);
const KernelBody* find_kernel(const std::string& name);
std::vector<std::string> kernel_names();

struct KernelEntry {
  template <class T>
  KernelEntry(const char* name, void (*entry)(gm<T>)) {
    register_kernel(name, [entry](std::uint64_t args_address) { entry(gm<T>(args_address)); });
  }
};

}  // namespace epsim::twin

#define EPSIM_KERNEL(name, entry) static const ::epsim::twin::KernelEntry epsim_kernel_##name(#name, entry)
