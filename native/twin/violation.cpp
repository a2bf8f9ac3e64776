#include <cstdio>
#include <twin/violation.hpp>

namespace epsim::twin {

namespace {

struct RuleInfo {
  const char* name;
  const char* text;
};

// In the order of enum Rule.
constexpr RuleInfo kRules[] = {
    {"unaligned_access",
     "an address must be a multiple of the access size, of 32 B for the UB side of a copy"},
    {"ub_out_of_range", "an access must stay inside the unified buffer"},
    {"simt_dcache_overrun",
     "an access behind the UB of the kernel lands in the SIMT data cache and corrupts it"},
    {"gm_out_of_bounds", "an access must stay inside one allocation"},
    {"uninitialised_load", "a register must not be loaded from memory that nobody has written"},
    {"bad_argument", "an argument must lie in the range that the hardware takes"},
    {"double_notify", "a flag must be waited for before it is set again"},
    {"unmatched_wait", "a wait needs a notify of the same pipes and id"},
    {"flag_left_set", "every flag must be waited for before the kernel ends"},
    {"count_limit", "at most 15 arrivals may be pending on a cross-core flag"},
    {"data_race", "two accesses, one of them a write, need a synchronisation between them"},
    {"stale_scalar_cache",
     "a line in the scalar data cache must be invalidated before memory that changed is read"},
    {"stale_simt_cache",
     "a line in the SIMT data cache must be invalidated or bypassed to read memory that changed"},
    {"unflushed_line", "a dirty line of a scalar data cache must be written back before others read it"},
    {"lost_update", "a line that is dirty in a scalar data cache must not be written by others"},
    {"sq_two_producers", "a send queue has one producing AIV"},
    {"sq_overflow", "a send queue must not be filled beyond its depth"},
    {"sqe_bad_owner", "the owner bit of an SQE must have the phase of its lap"},
    {"sqe_bad_index", "an SQE must carry its own index"},
    {"sqe_bad_opcode", "an SQE must have a known opcode"},
    {"sqe_bad_length", "lengths and counts of an SQE must lie in range"},
    {"remote_out_of_window", "a remote range must lie in the window of the peer"},
    {"wrong_token", "an SQE must carry the token of the peer"},
    {"self_send", "a jetty has no path to its own rank"},
    {"cq_misuse", "completions must be consumed in order and not beyond what arrived"},
    {"doorbell_beyond_head", "a doorbell must not pass the entries that were written"},
    {"missing_arrivals", "a block barrier must be reached by every lane"},
    {"deadlock", "some agent must be able to go on"},
    {"livelock", "a run must end within its steps"},
    {"kernel_trap", "a kernel must not trap"},
};
static_assert(sizeof(kRules) / sizeof(kRules[0]) == static_cast<std::size_t>(Rule::num_rules));

std::string site_json(const Site& site) {
  return "\"file\": " + json_string(site.where.file) + ", \"line\": " + std::to_string(site.where.line) +
         ", \"rank\": " + std::to_string(site.rank) + ", \"aiv\": " + std::to_string(site.aiv) +
         ", \"pipe\": \"" + pipe_name(site.pipe) + "\", \"lane\": " + std::to_string(site.lane);
}

}  // namespace

const char* rule_name(Rule rule) { return kRules[static_cast<std::size_t>(rule)].name; }
const char* rule_text(Rule rule) { return kRules[static_cast<std::size_t>(rule)].text; }

const char* pipe_name(pipe_t pipe) {
  constexpr const char* names[] = {"S", "V", "MTE2", "MTE3", "ALL", "UBMEM", "URMA", "HOST"};
  return names[pipe];
}

std::string json_string(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(c));
      result += code;
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string Violation::to_json() const {
  std::string result = std::string("{\"rule\": \"") + rule_name(rule) +
                       "\", \"text\": " + json_string(rule_text(rule)) +
                       ", \"message\": " + json_string(message) + ", " + site_json(site) + ", \"others\": [";
  for (std::size_t i = 0; i < others.size(); ++i) {
    result += (i == 0 ? "{" : ", {") + site_json(others[i].site) +
              ", \"what\": " + json_string(others[i].what) + "}";
  }
  return result + "]}";
}

void raise(Rule rule, const Site& site, std::string message, std::vector<Involved> others) {
  Violation violation;
  violation.rule = rule;
  violation.site = site;
  violation.message = std::move(message);
  violation.others = std::move(others);
  throw violation;
}

}  // namespace epsim::twin
