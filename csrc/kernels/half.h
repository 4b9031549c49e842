// Floats from their 16-bit forms, one at a time.
#pragma once

#include <cstdint>
#include <cstring>

namespace embedkit {
namespace {

inline float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

inline float from_bf16(uint16_t x) { return from_bits(uint32_t{x} << 16); }

/// Of a finite half: its exponent is moved, and the product sets the bias right, of subnormals too.
inline float from_half(uint16_t x) {
  const float size = from_bits((x & 0x7fffu) << 13) * from_bits((127u + 112u) << 23);
  return (x & 0x8000u) != 0 ? -size : size;
}

}  // namespace
}  // namespace embedkit
