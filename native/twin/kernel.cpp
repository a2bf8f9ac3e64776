#include <map>
#include <twin/kernel.hpp>

namespace epsim::twin {

namespace {

// Registered before main by static objects of other files: built on first use.
std::map<std::string, KernelBody>& kernels() {
  static std::map<std::string, KernelBody> all;
  return all;
}

}  // namespace

void register_kernel(const char* name, KernelBody body) { kernels()[name] = std::move(body); }

const KernelBody* find_kernel(const std::string& name) {
  const auto found = kernels().find(name);
  return found == kernels().end() ? nullptr : &found->second;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const auto& [name, body] : kernels()) {
    names.push_back(name);
  }
  return names;
}

}  // namespace epsim::twin
