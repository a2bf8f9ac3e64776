// Where a call stands in kernel source. Every access carries it, so that a violation names its line.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace epsim::twin {

// Not std::source_location, which the library of clang 14 lacks. As the default of an argument, `current` is
// the line of the call, also where that call is itself the default of an argument.
struct Where {
  const char* file = "";
  std::uint32_t line = 0;

  static constexpr Where current(const char* file = __builtin_FILE(), std::uint32_t line = __builtin_LINE()) {
    return {file, line};
  }
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
  constexpr Idx(I index, Where here = Where::current())
      : value(static_cast<std::ptrdiff_t>(index)), where(here) {}

  template <Reference R>
  Idx(R&& index, Where here = Where::current())
      : value(static_cast<std::ptrdiff_t>(
            static_cast<typename std::remove_cvref_t<R>::referenced_type>(std::forward<R>(index)))),
        where(here) {}
};

}  // namespace epsim::twin
