// State of the fake library: what tests tell it, what it has been told by the runtime, and what broke a rule.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "types.h"

namespace fake {

struct State {
  // Told by tests.
  std::map<std::string, int64_t> options;  // see option()
  std::string failing_call;
  int64_t failing_nth = 0, failing_status = 0;
  void (*on_launch)(const char* name, const void* arguments, uint64_t num_bytes) = nullptr;

  // Seen.
  std::string log;
  std::vector<std::string> broken_rules;
  std::map<std::string, int64_t> num_calls;
  std::set<void*> memories, hosts, registered_hosts;
  std::map<void*, std::string> tags_by_memory;
  std::map<void*, std::set<void*>> memories_by_endpoint;
  std::map<void*, int> planes;  // of endpoints
  std::map<ChannelHandle, void*> endpoint_by_channel;
  std::set<void*> configs;
  uint32_t num_polls = 0;
  bool is_running = false;
};

State& state();
int64_t option(const char* name, int64_t otherwise);
void break_rule(const std::string& text);
void say(const std::string& line);
// Count and log a call. Returns the status it must fail with, 0 for none.
int64_t called(const char* name, const std::string& details = "");

}  // namespace fake

#define FAKE_CALL(type, ...)                                                        \
  if (const int64_t status = fake::called(__func__ __VA_OPT__(, ) __VA_ARGS__)) {   \
    return static_cast<type>(status);                                               \
  }
