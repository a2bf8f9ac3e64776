#include <twin/capi.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <twin/kernel.hpp>
#include <twin/machine.hpp>

using epsim::twin::Machine;
using epsim::twin::Parameters;
using epsim::twin::StreamStep;

struct epsim_machine {
  Machine machine;
  std::string text;  // of the last call that returned one
};

namespace {

thread_local std::string last_error;

// Run `body`; an exception becomes `failure` and a text.
template <class Result, class Body>
Result guarded(Result failure, Body body) {
  try {
    last_error.clear();
    return body();
  } catch (const std::exception& error) {
    last_error = error.what();
    return failure;
  }
}

void check_rank(const epsim_machine& handle, int32_t rank) {
  if (rank < 0 || rank >= handle.machine.num_ranks()) {
    throw std::invalid_argument("rank must be in 0.." + std::to_string(handle.machine.num_ranks() - 1) +
                                ", not " + std::to_string(rank));
  }
}

}  // namespace

extern "C" {

epsim_machine* epsim_machine_create(const char* params_json) {
  return guarded<epsim_machine*>(
      nullptr, [&] { return new epsim_machine{Machine(Parameters::parse(params_json)), std::string()}; });
}

void epsim_machine_destroy(epsim_machine* handle) { delete handle; }

uint64_t epsim_alloc(epsim_machine* handle, int32_t rank, uint64_t num_bytes, const char* name,
                     uint32_t flags) {
  return guarded<uint64_t>(
      0, [&] { return handle->machine.allocate(rank, num_bytes, name, (flags & 1U) != 0); });
}

int32_t epsim_write(epsim_machine* handle, uint64_t address, const void* source, uint64_t num_bytes) {
  return guarded<int32_t>(-1, [&] {
    handle->machine.poke(address, source, num_bytes);
    return 0;
  });
}

int32_t epsim_read(epsim_machine* handle, uint64_t address, void* target, uint64_t num_bytes) {
  return guarded<int32_t>(-1, [&] {
    handle->machine.peek(address, target, num_bytes);
    return 0;
  });
}

int32_t epsim_forget(epsim_machine* handle, uint64_t address, uint64_t num_bytes) {
  return guarded<int32_t>(-1, [&] {
    epsim::twin::Region* region = handle->machine.space().memory.find(address, num_bytes);
    if (region == nullptr) {
      throw std::invalid_argument("the range must lie inside one allocation");
    }
    set_by_host(*region, address - region->base, num_bytes, false);
    return 0;
  });
}

int32_t epsim_init_jetties(epsim_machine* handle) {
  return guarded<int32_t>(-1, [&] {
    epsim::twin::init_jetties(handle->machine);
    return 0;
  });
}

uint64_t epsim_find(epsim_machine* handle, int32_t rank, const char* name) {
  return guarded<uint64_t>(0, [&] {
    const auto found = handle->machine.find(rank, name);
    return found ? found->base : uint64_t{0};
  });
}

int32_t epsim_enqueue(epsim_machine* handle, int32_t rank, const char* kernel, uint64_t args_address,
                      int32_t blocks) {
  return guarded<int32_t>(-1, [&] {
    check_rank(*handle, rank);
    const epsim::twin::KernelBody* body = epsim::twin::find_kernel(kernel);
    if (body == nullptr) {
      throw std::invalid_argument(std::string("no kernel is named \"") + kernel + "\"");
    }
    if (blocks < 1 || blocks > handle->machine.num_aivs()) {
      throw std::invalid_argument("blocks must be in 1.." + std::to_string(handle->machine.num_aivs()) +
                                  ", not " + std::to_string(blocks));
    }
    StreamStep step;
    step.launch.emplace();
    step.launch->kernel = kernel;
    step.launch->args_address = args_address;
    step.launch->num_blocks = static_cast<uint32_t>(blocks);
    step.launch->body = [body, args_address] { (*body)(args_address); };
    handle->machine.enqueue(rank, std::move(step));
    return 0;
  });
}

int32_t epsim_enqueue_wait_words(epsim_machine* handle, int32_t rank, uint64_t address, uint32_t n,
                                 uint32_t mask, uint32_t value) {
  return guarded<int32_t>(-1, [&] {
    check_rank(*handle, rank);
    if (n == 0 || handle->machine.space().memory.find(address, uint64_t{4} * n) == nullptr) {
      throw std::invalid_argument("the words to wait for must lie inside one allocation");
    }
    StreamStep step;
    step.address = address;
    step.num_words = n;
    step.mask = mask;
    step.value = value;
    handle->machine.enqueue(rank, std::move(step));
    return 0;
  });
}

int32_t epsim_run(epsim_machine* handle) {
  return guarded<int32_t>(-1, [&] {
    if (handle->machine.violation()) {
      throw std::logic_error("the machine has stopped at a violation; make a new one");
    }
    return handle->machine.run() ? 0 : 1;
  });
}

const char* epsim_report(epsim_machine* handle) {
  const auto& violation = handle->machine.violation();
  handle->text = violation ? violation->to_json() : "null";
  return handle->text.c_str();
}

int32_t epsim_trace(epsim_machine* handle, const char* path) {
  return guarded<int32_t>(-1, [&] {
    if (!handle->machine.operation_trace().is_on()) {
      throw std::invalid_argument("the machine keeps no trace; make it with \"trace\": 1");
    }
    const std::string lines = handle->machine.operation_trace().to_json_lines();
    std::FILE* file = std::fopen(path, "wb");
    if (file == nullptr) {
      throw std::invalid_argument(std::string("cannot write ") + path);
    }
    const bool is_whole = std::fwrite(lines.data(), 1, lines.size(), file) == lines.size();
    if (std::fclose(file) != 0 || !is_whole) {
      throw std::invalid_argument(std::string("cannot write all of ") + path);
    }
    return 0;
  });
}

const char* epsim_stats(epsim_machine* handle) {
  handle->text = handle->machine.stats();
  return handle->text.c_str();
}

const char* epsim_kernels(void) {
  thread_local std::string names;
  names = "[";
  for (const std::string& name : epsim::twin::kernel_names()) {
    names += (names.size() > 1 ? ", " : "") + epsim::twin::json_string(name);
  }
  names += "]";
  return names.c_str();
}

const char* epsim_last_error(void) { return last_error.c_str(); }

}  // extern "C"
