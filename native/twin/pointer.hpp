// gm<T> and ub<T>: on the device plain pointers, here a simulated address and a UB offset whose accesses are
// checked.
#pragma once

#include <compare>
#include <cstdint>
#include <twin/runtime.hpp>
#include <type_traits>

namespace epsim::twin {

struct GmSpace {
  using Address = std::uint64_t;
  static constexpr auto load = rt::gm_load;
  static constexpr auto store = rt::gm_store;
};

struct UbSpace {
  using Address = std::uint32_t;
  static constexpr auto load = rt::ub_load;
  static constexpr auto store = rt::ub_store;
};

template <class Space, class T>
std::remove_const_t<T> load_value(typename Space::Address address, Via via, Where where) {
  using Value = std::remove_const_t<T>;
  static_assert(std::is_trivially_copyable_v<Value>);
  alignas(Value) unsigned char bytes[sizeof(Value)];
  Space::load(address, bytes, sizeof(Value), alignof(Value), via, where);
  return *__builtin_launder(reinterpret_cast<Value*>(bytes));
}

template <class Space, class T>
void store_value(typename Space::Address address, const T& value, Via via, Where where) {
  static_assert(std::is_trivially_copyable_v<T>);
  Space::store(address, &value, sizeof(T), alignof(T), via, where);
}

template <class Space, class T>
class Ref {
 public:
  using referenced_type = std::remove_const_t<T>;

  Ref(typename Space::Address address, Where where) : address_(address), where_(where) {}
  Ref(const Ref&) = delete;

  operator referenced_type() && { return load_value<Space, T>(address_, Via::cached, where_); }
  template <class U>
    requires(std::is_constructible_v<U, referenced_type> && !std::is_same_v<U, referenced_type> &&
             !std::is_arithmetic_v<referenced_type>)
  explicit operator U() && {
    return U(load_value<Space, T>(address_, Via::cached, where_));
  }

  Ref& operator=(const referenced_type& value) && {
    static_assert(!std::is_const_v<T>);
    store_value<Space, referenced_type>(address_, value, Via::cached, where_);
    return *this;
  }
  Ref& operator=(Ref&& other) && { return std::move(*this) = static_cast<referenced_type>(std::move(other)); }
  // One load and one store each, as on the device.
#define EPSIM_UPDATE(op)                                         \
  Ref& operator op## = (const referenced_type& value) && {       \
    return update(value, [](auto a, auto b) { return a op b; }); \
  }
  EPSIM_UPDATE(+)
  EPSIM_UPDATE(-)
  EPSIM_UPDATE(*)
  EPSIM_UPDATE(/)
  EPSIM_UPDATE(|)
  EPSIM_UPDATE(&)
  EPSIM_UPDATE(^)
#undef EPSIM_UPDATE

 private:
  template <class F>
  Ref& update(const referenced_type& value, F combine) {
    const auto old = load_value<Space, T>(address_, Via::cached, where_);
    store_value<Space, referenced_type>(address_, static_cast<referenced_type>(combine(old, value)),
                                        Via::cached, where_);
    return *this;
  }

  typename Space::Address address_;
  Where where_;
};

template <class Space, class T>
class Pointer {
 public:
  using element_type = T;
  using Address = typename Space::Address;

  constexpr Pointer() = default;
  template <std::integral I>
  constexpr explicit Pointer(I address) : address_(static_cast<Address>(address)) {}
  template <Reference R>
  explicit Pointer(R&& address) : Pointer(static_cast<std::uint64_t>(std::forward<R>(address))) {}
  template <class U>
    requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>)
  constexpr Pointer(Pointer<Space, U> other) : address_(other.address()) {}  // NOLINT: adds const

  Ref<Space, T> operator[](Idx index) const {
    return {static_cast<Address>(address_ + static_cast<Address>(index.value) * sizeof(T)), index.where};
  }
  constexpr Address address() const { return address_; }
  constexpr Pointer operator+(std::ptrdiff_t count) const { return moved(count); }
  constexpr Pointer operator-(std::ptrdiff_t count) const { return moved(-count); }
  constexpr Pointer& operator+=(std::ptrdiff_t count) { return *this = moved(count); }
  constexpr Pointer& operator-=(std::ptrdiff_t count) { return *this = moved(-count); }
  constexpr Pointer& operator++() { return *this = moved(1); }
  constexpr std::ptrdiff_t operator-(Pointer other) const {
    return (static_cast<std::ptrdiff_t>(address_) - static_cast<std::ptrdiff_t>(other.address_)) /
           static_cast<std::ptrdiff_t>(sizeof(T));
  }
  constexpr auto operator<=>(const Pointer&) const = default;
  constexpr explicit operator bool() const { return address_ != 0; }

 private:
  constexpr Pointer moved(std::ptrdiff_t count) const {
    return Pointer(static_cast<std::uint64_t>(static_cast<std::ptrdiff_t>(address_) +
                                              count * static_cast<std::ptrdiff_t>(sizeof(T))));
  }
  Address address_ = 0;
};

}  // namespace epsim::twin

template <class T>
using gm = epsim::twin::Pointer<epsim::twin::GmSpace, T>;
template <class T>
using ub = epsim::twin::Pointer<epsim::twin::UbSpace, T>;

template <class U, class T>
constexpr gm<U> gm_cast(gm<T> pointer) {
  return gm<U>(pointer.address());
}
template <class U, class T>
constexpr ub<U> ub_cast(ub<T> pointer) {
  return ub<U>(pointer.address());
}
template <class T>
constexpr std::uint64_t gm_address(gm<T> pointer) {
  return pointer.address();
}
template <class T>
constexpr std::uint32_t ub_address(ub<T> pointer) {
  return pointer.address();
}
// The address of a member of a struct in GM: &p->member on the device.
template <class T, class S, class M>
gm<std::conditional_t<std::is_const_v<T>, const M, M>> gm_field(gm<T> pointer, M S::* member) {
  static_assert(std::is_same_v<std::remove_const_t<T>, S> && std::is_standard_layout_v<S>);
  alignas(S) static const unsigned char blank[sizeof(S)] = {};
  const auto* origin = reinterpret_cast<const S*>(blank);
  const auto offset = reinterpret_cast<const unsigned char*>(&(origin->*member)) - blank;
  return gm<std::conditional_t<std::is_const_v<T>, const M, M>>(pointer.address() +
                                                                static_cast<std::uint64_t>(offset));
}
