#include <runtime/capi.h>

#include <exception>
#include <memory>
#include <string>

#include <runtime/domain.hpp>
#include <runtime/failure.hpp>
#include <runtime/kernel.hpp>

struct epsim_domain {
  epsim::runtime::Domain domain;
};
struct epsim_kernel {
  epsim::runtime::Kernel kernel;
};
static_assert(sizeof(epsim_addresses) == sizeof(epsim::runtime::Addresses));
static_assert(sizeof(epsim_argument) == sizeof(epsim::runtime::Argument));

namespace {

using epsim::runtime::Failure;

thread_local std::string error;
thread_local std::string failed_call;
thread_local int64_t failed_status = 0;

void note(const Failure& failure) {
  error = failure.what();
  failed_call = failure.call();
  failed_status = failure.status();
}

// Run what may throw; nothing gets past the C ABI. Returns `bad` after a failure.
template <class T, class Body>
T guarded(T bad, Body body) {
  note(Failure(""));
  try {
    return body();
  } catch (const Failure& failure) {
    note(failure);
  } catch (const std::exception& other) {
    note(Failure(other.what()));
  }
  return bad;
}

}  // namespace

extern "C" {

epsim_domain* epsim_domain_open(const epsim_domain_spec* spec, epsim_all_gather gather, void* context) {
  return guarded<epsim_domain*>(nullptr, [=] {
    epsim::runtime::DomainSpec copy;
    copy.comm_name = spec->comm_name;
    copy.rank = spec->rank;
    copy.num_ranks = spec->num_ranks;
    copy.num_jetties = spec->num_jetties;
    copy.window_bytes = spec->window_bytes;
    copy.cpu_timeout = std::chrono::milliseconds(spec->cpu_timeout_ms);
    return new epsim_domain{{copy, [=](const void* own, void* all, uint64_t num_bytes) {
                               epsim::runtime::check("all_gather", gather(context, own, all, num_bytes));
                             }}};
  });
}

void epsim_domain_addresses(const epsim_domain* domain, epsim_addresses* addresses) {
  const epsim::runtime::Addresses& from = domain->domain.addresses();
  *addresses = {from.window, from.host_workspace, from.host_workspace_on_host, from.jetty_table, from.peer_table};
}

int32_t epsim_domain_wait_words(const epsim_domain* domain, uint64_t offset, uint32_t num_words, uint32_t mask,
                                uint32_t value, uint32_t timeout_ms) {
  return guarded(-1, [=] {
    domain->domain.wait_words(offset, num_words, mask, value, std::chrono::milliseconds(timeout_ms));
    return 0;
  });
}

int32_t epsim_domain_close(epsim_domain* domain) {
  const std::unique_ptr<epsim_domain> owned(domain);
  return guarded(-1, [&owned] {
    if (const auto failure = owned->domain.close()) {
      throw *failure;
    }
    return 0;
  });
}

epsim_kernel* epsim_kernel_load(const char* path, const char* name) {
  return guarded<epsim_kernel*>(nullptr, [=] { return new epsim_kernel{{path, name}}; });
}

int32_t epsim_kernel_launch(const epsim_kernel* kernel, uint32_t num_blocks, void* stream, uint32_t ub_bytes,
                            uint32_t timeout_secs, const epsim_argument* arguments, uint32_t num_arguments) {
  return guarded(-1, [=] {
    const auto* first = reinterpret_cast<const epsim::runtime::Argument*>(arguments);
    kernel->kernel.launch({num_blocks, stream, ub_bytes, timeout_secs}, {first, num_arguments});
    return 0;
  });
}

int32_t epsim_device_limits(int64_t* num_vector_cores, int64_t* ub_bytes) {
  return guarded(-1, [=] {
    const epsim::runtime::DeviceLimits limits = epsim::runtime::device_limits();
    *num_vector_cores = limits.num_vector_cores;
    *ub_bytes = limits.ub_bytes;
    return 0;
  });
}

const char* epsim_runtime_error(void) { return error.c_str(); }
const char* epsim_runtime_failed_call(void) { return failed_call.c_str(); }
int64_t epsim_runtime_failed_status(void) { return failed_status; }

}  // extern "C"
