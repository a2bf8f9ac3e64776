// bfloat16 as the device has it: the upper half of an fp32, converted with round to nearest even.
#pragma once

#include <bit>
#include <cstdint>

struct bfloat16_t {
  std::uint16_t bits;

  bfloat16_t() = default;
  constexpr explicit bfloat16_t(float value) : bits(round(std::bit_cast<std::uint32_t>(value))) {}
  constexpr operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

  static constexpr bfloat16_t from_bits(std::uint16_t bits) {
    bfloat16_t value(0.0F);
    value.bits = bits;
    return value;
  }

 private:
  static constexpr std::uint16_t round(std::uint32_t word) {
    // A NaN whose payload sits in the lower half would round to infinity: keep it a quiet NaN.
    if ((word & 0x7fffffffU) > 0x7f800000U) {
      return static_cast<std::uint16_t>((word >> 16) | 0x40U);
    }
    return static_cast<std::uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
  }
};
static_assert(sizeof(bfloat16_t) == 2);
