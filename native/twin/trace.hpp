// The operation trace: what happened, in the order in which it happened.
#pragma once

#include <cstdint>
#include <set>
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
    std::uint64_t extra;  // flag id, number of threads, SQE, head of a doorbell: by kind
  };

  explicit Trace(bool is_on) : is_on_(is_on) {}
  bool is_on() const { return is_on_; }
  void add(std::uint64_t step, const char* kind, const Site& site, std::uint64_t address,
           std::uint64_t num_bytes, std::uint64_t extra) {
    if (is_on_) {
      events_.push_back({step, kind, site, address, num_bytes, extra});
    }
  }
  // An event of the host, which has a name in place of a file: of a kernel ("launch", "kernel_end") or of an
  // allocation ("alloc").
  void add_named(std::uint64_t step, const char* kind, int rank, const std::string& name,
                 std::uint64_t address, std::uint64_t num_bytes, std::uint64_t extra) {
    if (is_on_) {
      Site site;
      site.rank = static_cast<std::int16_t>(rank);
      site.where.file = names_.insert(name).first->c_str();
      add(step, kind, site, address, num_bytes, extra);
    }
  }
  // One JSON object per line.
  std::string to_json_lines() const;

 private:
  bool is_on_;
  std::vector<Event> events_;
  std::set<std::string> names_;  // that events point to
};

}  // namespace epsim::twin
