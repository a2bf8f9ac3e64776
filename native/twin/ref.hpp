// A counted pointer without atomics: the machine is single threaded and counts are hot.
#pragma once

#include <cstdint>
#include <utility>

namespace epsim::twin {

template <class T>
class RefPtr {
 public:
  RefPtr() = default;
  explicit RefPtr(T* object) : object_(object) { retain(); }
  RefPtr(const RefPtr& other) : object_(other.object_) { retain(); }
  RefPtr(RefPtr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  RefPtr& operator=(RefPtr other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~RefPtr() {
    if (object_ != nullptr && --object_->num_refs == 0) {
      delete object_;
    }
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(const RefPtr& other) const { return object_ == other.object_; }

 private:
  void retain() {
    if (object_ != nullptr) {
      ++object_->num_refs;
    }
  }
  T* object_ = nullptr;
};

}  // namespace epsim::twin
