#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <twin/fiber.hpp>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define EPSIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EPSIM_ASAN 1
#endif
#endif
#ifdef EPSIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#define EPSIM_UCONTEXT 1
#endif

namespace epsim::twin {

namespace {

#ifdef EPSIM_ASAN
constexpr std::size_t kStackBytes = 256 * 1024;  // redzones make frames several times larger
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif
constexpr std::size_t kGuardBytes = 4096;
constexpr std::size_t kStacksPerSlab = 64;

// Stacks outlive machines: mapping thousands of them per run would cost more than the run.
struct StackPool {
  std::vector<void*> free;

  void* take() {
    if (free.empty()) {
      add_slab();
    }
    void* stack = free.back();
    free.pop_back();
    return stack;
  }
  void add_slab() {
    void* slab = mmap(nullptr, kStackBytes * kStacksPerSlab, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED) {
      throw std::bad_alloc();
    }
    for (std::size_t i = kStacksPerSlab; i-- > 0;) {
      void* stack = static_cast<char*>(slab) + i * kStackBytes;
      mprotect(stack, kGuardBytes, PROT_NONE);
      free.push_back(stack);
    }
  }
};

thread_local StackPool pool;
thread_local Fiber* running = nullptr;
thread_local void* outside = nullptr;  // context of the thread that resumes fibers
#ifdef EPSIM_ASAN
thread_local void* outside_fake = nullptr;
thread_local const void* outside_bottom = nullptr;
thread_local std::size_t outside_bytes = 0;
#endif

}  // namespace

#ifndef EPSIM_UCONTEXT
// Save the callee-saved registers and the stack pointer in *from, continue at `to`.
extern "C" void epsim_switch_context(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl epsim_switch_context
.hidden epsim_switch_context
.type epsim_switch_context, @function
epsim_switch_context:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size epsim_switch_context, .-epsim_switch_context
)");

static void* make_context(char* top, void (*entry)()) {
  auto* words = reinterpret_cast<std::uintptr_t*>(top);
  *--words = 0;  // the frame of entry is 8 mod 16, as after a call
  *--words = reinterpret_cast<std::uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) {
    *--words = 0;
  }
  return words;
}
#else
asm(R"(
.text
.globl epsim_switch_context
.hidden epsim_switch_context
.type epsim_switch_context, %function
epsim_switch_context:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size epsim_switch_context, .-epsim_switch_context
)");

static void* make_context(char* top, void (*entry)()) {
  auto* words = reinterpret_cast<std::uintptr_t*>(top - 160);
  for (int i = 0; i < 20; ++i) {
    words[i] = 0;
  }
  words[11] = reinterpret_cast<std::uintptr_t>(entry);  // x30
  return words;
}
#endif
#else
static void epsim_switch_context(void** from, void* to) {
  if (*from == nullptr) {
    *from = new ucontext_t;
  }
  swapcontext(static_cast<ucontext_t*>(*from), static_cast<ucontext_t*>(to));
}
static void* make_context(char* top, void (*entry)()) {
  auto* context = new ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = top - (kStackBytes - kGuardBytes);
  context->uc_stack.ss_size = kStackBytes - kGuardBytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}
#endif

Fiber::~Fiber() {
  cancel();
  release_stack();
}

void Fiber::release_stack() {
  if (stack_ != nullptr) {
    pool.free.push_back(std::exchange(stack_, nullptr));
#ifdef EPSIM_UCONTEXT
    delete static_cast<ucontext_t*>(std::exchange(context_, nullptr));
#endif
  }
}

void Fiber::start(std::function<void()> body) {
  body_ = std::move(body);
  is_done_ = false;
  is_cancelled_ = false;
}

void Fiber::resume() {
  if (stack_ == nullptr) {
    stack_ = pool.take();
    // Tops at different offsets of a page: otherwise all stacks would meet in the same few cache sets.
    const auto color = (reinterpret_cast<std::uintptr_t>(stack_) / kStackBytes % 32) * 128;
    context_ = make_context(static_cast<char*>(stack_) + kStackBytes - color, &Fiber::entry);
  }
  running = this;
#ifdef EPSIM_ASAN
  __sanitizer_start_switch_fiber(&outside_fake, static_cast<char*>(stack_) + kGuardBytes,
                                 kStackBytes - kGuardBytes);
#endif
  epsim_switch_context(&outside, context_);
#ifdef EPSIM_ASAN
  __sanitizer_finish_switch_fiber(outside_fake, nullptr, nullptr);
#endif
  running = nullptr;
  if (is_done_) {
    release_stack();
  }
}

void Fiber::suspend() {
  Fiber& self = *running;
#ifdef EPSIM_ASAN
  __sanitizer_start_switch_fiber(&self.fake_stack_, outside_bottom, outside_bytes);
#endif
  epsim_switch_context(&self.context_, outside);
#ifdef EPSIM_ASAN
  __sanitizer_finish_switch_fiber(self.fake_stack_, &outside_bottom, &outside_bytes);
#endif
  if (self.is_cancelled_) {
    throw Cancelled{};
  }
}

void Fiber::cancel() {
  if (!is_done_ && stack_ != nullptr) {
    is_cancelled_ = true;
    resume();
  }
  is_done_ = true;
}

void Fiber::entry() {
  Fiber& self = *running;
#ifdef EPSIM_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &outside_bottom, &outside_bytes);
#endif
  try {
    self.body_();
  } catch (const Cancelled&) {  // the run was given up; the stack is unwound
  }
  self.body_ = nullptr;
  self.is_done_ = true;
#ifdef EPSIM_ASAN
  __sanitizer_start_switch_fiber(nullptr, outside_bottom, outside_bytes);
#endif
  epsim_switch_context(&self.context_, outside);
}

}  // namespace epsim::twin
