// What goes wrong on the host: a call of the vendor's that returned a status, or a rule of ours that does not hold.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace epsim::runtime {

class Failure : public std::runtime_error {
 public:
  // A rule of ours; `call` stays empty.
  explicit Failure(const std::string& text) : std::runtime_error(text) {}
  Failure(const std::string& call, int64_t status)
      : std::runtime_error(call + " returned " + std::to_string(status)), call_(call), status_(status) {}

  const std::string& call() const { return call_; }
  int64_t status() const { return status_; }

 private:
  std::string call_;
  int64_t status_ = 0;
};

inline void check(const char* call, int64_t status) {
  if (status != 0) {
    throw Failure(call, status);
  }
}

// Call a function whose 0 means success, else throw a Failure that names it.
#define EPSIM_CALL(function, ...) ::epsim::runtime::check(#function, function(__VA_ARGS__))

}  // namespace epsim::runtime
