// Fibers: stacks that the machine switches between, all on one thread of the host.
#pragma once

#include <cstddef>
#include <functional>

namespace epsim::twin {

// Thrown at the place where a fiber waits, when its run is given up: unwinds its stack.
struct Cancelled {};

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // Prepare to run `body` at the next resume. The former body must have ended.
  void start(std::function<void()> body);
  // Run until the fiber suspends or ends. Only from outside fibers.
  void resume();
  // Back to whoever resumed the running fiber. Throws Cancelled instead of returning after cancel().
  static void suspend();
  // Unwind the fiber if it is in the middle of its body.
  void cancel();
  bool is_done() const { return is_done_; }

 private:
  static void entry();
  void release_stack();

  std::function<void()> body_;
  void* stack_ = nullptr;
  void* context_ = nullptr;
  [[maybe_unused]] void* fake_stack_ = nullptr;  // of AddressSanitizer
  bool is_done_ = true;
  bool is_cancelled_ = false;
};

}  // namespace epsim::twin
