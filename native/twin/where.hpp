// Where a call stands in kernel source. Every access carries it, so that a violation names its line.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <type_traits>
#include <utility>

namespace epsim::twin {

struct Where {
  const char* file = "";
  std::uint32_t line = 0;

  constexpr Where() = default;
  constexpr Where(std::source_location location)  // NOLINT: implicit, so that a defaulted argument converts
      : file(location.file_name()), line(location.line()) {}
};

// What p[i] yields: converts to its value once, and never lives in a variable (`auto x = p[i]` is of no use).
template <class R>
concept Reference = requires { typename std::remove_cvref_t<R>::referenced_type; };

// An index or a count that remembers the line it was written on.
struct Idx {
  std::ptrdiff_t value;
  Where where;

  template <class I>
    requires(std::integral<I> || std::is_enum_v<I>)
  constexpr Idx(I index, std::source_location location = std::source_location::current())
      : value(static_cast<std::ptrdiff_t>(index)), where(location) {}

  template <Reference R>
  Idx(R&& index, std::source_location location = std::source_location::current())
      : value(static_cast<std::ptrdiff_t>(
            static_cast<typename std::remove_cvref_t<R>::referenced_type>(std::forward<R>(index)))),
        where(location) {}
};

}  // namespace epsim::twin
