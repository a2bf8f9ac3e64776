// What was acquired is released in the reverse order, everything, even when a release fails in the middle. A
// constructor that throws leaves the same list behind, so one order serves teardown and failed set-up.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <runtime/failure.hpp>

namespace epsim::runtime {

class Releases {
 public:
  Releases() = default;
  Releases(const Releases&) = delete;
  Releases& operator=(const Releases&) = delete;
  ~Releases() { run(); }

  // `release` returns 0 or the status of the call of that name.
  void add(std::string call, std::function<int64_t()> release) {
    entries_.push_back({std::move(call), std::move(release)});
  }

  // Run all; the first failure is returned, the others follow from it more often than not.
  std::optional<Failure> run() {
    std::optional<Failure> first;
    while (!entries_.empty()) {
      const Entry entry = std::move(entries_.back());
      entries_.pop_back();
      const int64_t status = entry.release();
      if (status != 0 && !first) {
        first.emplace(entry.call, status);
      }
    }
    return first;
  }

 private:
  struct Entry {
    std::string call;
    std::function<int64_t()> release;
  };
  std::vector<Entry> entries_;
};

}  // namespace epsim::runtime
