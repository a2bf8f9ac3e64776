// Device memory is host memory; kernels are names.
#include <cstdlib>
#include <cstring>
#include <map>

#include "fake.hpp"

using fake::state;

namespace fake {

State& state() {
  static State the_state;
  return the_state;
}

int64_t option(const char* name, int64_t otherwise) {
  const auto found = state().options.find(name);
  return found == state().options.end() ? otherwise : found->second;
}

void break_rule(const std::string& text) { state().broken_rules.push_back(text); }

void say(const std::string& line) { state().log += line + "\n"; }

int64_t called(const char* name, const std::string& details) {
  const int64_t nth = ++state().num_calls[name];
  say(details.empty() ? name : name + (" " + details));
  return state().failing_call == name && state().failing_nth == nth ? state().failing_status : 0;
}

}  // namespace fake

extern "C" {

void fake_reset() { state() = {}; }
void fake_option(const char* name, int64_t value) { state().options[name] = value; }
void fake_fail(const char* call, int64_t nth, int64_t status) {
  state().failing_call = call;
  state().failing_nth = nth;
  state().failing_status = status;
}
void fake_on_launch(void (*hook)(const char*, const void*, uint64_t)) { state().on_launch = hook; }
const char* fake_log() { return state().log.c_str(); }
const char* fake_broken_rules() {
  static std::string text;
  text.clear();
  for (const std::string& rule : state().broken_rules) {
    text += rule + "\n";
  }
  return text.c_str();
}
// Memories that are allocated and no window of a communicator, which stay until the process ends.
int64_t fake_num_held() {
  const auto& s = state();
  return static_cast<int64_t>(s.memories.size() - s.tags_by_memory.size() + s.hosts.size() +
                              s.registered_hosts.size() + s.memories_by_endpoint.size() +
                              s.endpoint_by_channel.size() + s.configs.size());
}

aclError aclrtMalloc(void** memory, size_t num_bytes, aclrtMemMallocPolicy) {
  FAKE_CALL(aclError, std::to_string(num_bytes));
  *memory = std::aligned_alloc(512, (num_bytes + 511) / 512 * 512);
  std::memset(*memory, 0xA5, num_bytes);
  state().memories.insert(*memory);
  return 0;
}

aclError aclrtFree(void* memory) {
  FAKE_CALL(aclError);
  if (state().is_running) {
    fake::break_rule("memory is freed while a kernel runs");
  }
  if (state().tags_by_memory.contains(memory)) {
    fake::break_rule("registered memory is freed");
  }
  if (state().memories.erase(memory) == 0) {
    fake::break_rule("memory is freed that is none");
    return 1;
  }
  std::free(memory);
  return 0;
}

aclError aclrtMemset(void* memory, size_t, int32_t value, size_t num_bytes) {
  FAKE_CALL(aclError);
  std::memset(memory, value, num_bytes);
  return 0;
}

aclError aclrtMemcpy(void* target, size_t, const void* source, size_t num_bytes, aclrtMemcpyKind kind) {
  FAKE_CALL(aclError, kind == ACL_MEMCPY_HOST_TO_DEVICE ? "to device" : "to host");
  std::memcpy(target, source, num_bytes);
  return 0;
}

aclError aclrtMallocHost(void** memory, size_t num_bytes) {
  FAKE_CALL(aclError);
  *memory = std::malloc(num_bytes);
  state().hosts.insert(*memory);
  return 0;
}

aclError aclrtFreeHost(void* memory) {
  FAKE_CALL(aclError);
  if (state().registered_hosts.contains(memory)) {
    fake::break_rule("registered host memory is freed");
  }
  state().hosts.erase(memory);
  std::free(memory);
  return 0;
}

aclError aclrtHostRegister(void* memory, uint64_t, aclrtHostRegisterType, void** device) {
  FAKE_CALL(aclError);
  state().registered_hosts.insert(memory);
  *device = memory;
  return 0;
}

aclError aclrtHostUnregister(void* memory) {
  FAKE_CALL(aclError);
  state().registered_hosts.erase(memory);
  return 0;
}

aclError aclrtSynchronizeDevice() {
  FAKE_CALL(aclError);
  state().is_running = false;
  return 0;
}

aclError aclrtGetDevice(int32_t* device) {
  FAKE_CALL(aclError);
  *device = 3;
  return 0;
}

aclError aclrtGetDeviceInfo(uint32_t device, aclrtDevAttr attribute, int64_t* value) {
  FAKE_CALL(aclError, std::to_string(device));
  *value = attribute == ACL_DEV_ATTR_VECTOR_CORE_NUM ? fake::option("vector_cores", 64) : 253952;
  return 0;
}

aclError aclrtBinaryLoadFromFile(const char* path, aclrtBinaryLoadOptions*, aclrtBinHandle* binary) {
  FAKE_CALL(aclError, path);
  static int a_binary;
  *binary = &a_binary;
  return 0;
}

aclError aclrtBinaryGetFunction(const aclrtBinHandle, const char* name, aclrtFuncHandle* function) {
  FAKE_CALL(aclError, name);
  static std::map<std::string, int> names;
  *function = const_cast<char*>(names.try_emplace(name, 0).first->first.c_str());
  return 0;
}

aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle function, uint32_t num_blocks, aclrtStream stream,
                                       aclrtLaunchKernelCfg* config, void* arguments, size_t num_bytes,
                                       aclrtPlaceHolderInfo*, size_t) {
  const auto* name = static_cast<const char*>(function);
  std::string details = name + (" blocks " + std::to_string(num_blocks)) + " stream " +
                        std::to_string(reinterpret_cast<uint64_t>(stream));
  for (size_t i = 0; config != nullptr && i < config->numAttrs; ++i) {
    const aclrtLaunchKernelAttr& attribute = config->attrs[i];
    details += attribute.id == ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT
                   ? " timeout " + std::to_string(attribute.value.timeout)
                   : " ub " + std::to_string(attribute.value.dynUBufSize);
  }
  details += " arguments ";
  for (size_t i = 0; i < num_bytes; ++i) {
    const auto byte = static_cast<const uint8_t*>(arguments)[i];
    details += "0123456789abcdef"[byte >> 4];
    details += "0123456789abcdef"[byte & 15];
  }
  FAKE_CALL(aclError, details);
  state().is_running = true;
  if (state().on_launch != nullptr) {
    state().on_launch(name, arguments, num_bytes);
  }
  return 0;
}
}
