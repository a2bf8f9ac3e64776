// The operation trace: what happened, in the order in which it happened.
#pragma once

#include <cstdint>
#include <string>
#include <twin/violation.hpp>
#include <vector>

namespace epsim::twin {

class Trace {
 public:
  struct Event {
    std::uint64_t step;
    const char* kind;  // a literal
    Site site;
    std::uint64_t address;
    std::uint64_t num_bytes;
    std::uint64_t extra;  // flag id, number of threads, SQE: by kind
  };

  explicit Trace(bool is_on) : is_on_(is_on) {}
  bool is_on() const { return is_on_; }
  void add(std::uint64_t step, const char* kind, const Site& site, std::uint64_t address,
           std::uint64_t num_bytes, std::uint64_t extra) {
    if (is_on_) {
      events_.push_back({step, kind, site, address, num_bytes, extra});
    }
  }
  // One JSON object per line.
  std::string to_json_lines() const;

 private:
  bool is_on_;
  std::vector<Event> events_;
};

}  // namespace epsim::twin
