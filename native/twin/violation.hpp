// What the machine refuses, and how it says so.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <twin/runtime.hpp>
#include <vector>

namespace epsim::twin {

enum class Rule : std::uint8_t {
  unaligned_access,
  ub_out_of_range,
  simt_dcache_overrun,
  gm_out_of_bounds,
  uninitialised_load,
  bad_argument,
  double_notify,
  unmatched_wait,
  flag_left_set,
  count_limit,
  data_race,
  stale_scalar_cache,
  stale_simt_cache,
  unflushed_line,
  lost_update,
  sq_two_producers,
  sq_overflow,
  sqe_bad_owner,
  sqe_bad_index,
  sqe_bad_opcode,
  sqe_bad_length,
  remote_out_of_window,
  wrong_token,
  self_send,
  cq_misuse,
  doorbell_beyond_head,
  missing_arrivals,
  deadlock,
  livelock,
  kernel_trap,
  num_rules,
};

const char* rule_name(Rule rule);
// One sentence: what the rule asks for.
const char* rule_text(Rule rule);

// Where in the program and on which part of the machine. rank and aiv are -1 where they mean nothing.
struct Site {
  Where where;
  std::int16_t rank = -1;
  std::int16_t aiv = -1;
  pipe_t pipe = PIPE_HOST;
  std::int16_t lane = -1;  // SIMT thread
};

// A second place that belongs to a violation: the other access, or one of the fibers of a deadlock.
struct Involved {
  Site site;
  std::string what;
};

struct Violation : std::exception {
  Rule rule = Rule::deadlock;
  Site site;
  std::string message;
  std::vector<Involved> others;

  const char* what() const noexcept override { return message.c_str(); }
  std::string to_json() const;
};

[[noreturn]] void raise(Rule rule, const Site& site, std::string message, std::vector<Involved> others = {});

std::string json_string(const std::string& text);
const char* pipe_name(pipe_t pipe);

}  // namespace epsim::twin
