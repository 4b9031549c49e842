// 16-bit floats, one at a time: half precision, and bfloat16, the upper half of a float.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace embedkit {
namespace {

inline float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

/// Of a finite half: its exponent is moved, and the product sets the bias right, of subnormals too.
inline float from_half(uint16_t x) {
  const float size = from_bits((x & 0x7fffu) << 13) * from_bits((127u + 112u) << 23);
  return (x & 0x8000u) != 0 ? -size : size;
}

inline float from_bf16(uint16_t x) { return from_bits(uint32_t{x} << 16); }

/// Of a finite number: to nearest, ties to even.
inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// weights (out, in) as [panel][k / 2][column of the panel][k % 2], zeros beyond both.
inline void pack_bf16_panels(const float* weights, size_t out, size_t in, size_t panel, void* packed) {
  auto* to = static_cast<uint16_t*>(packed);
  for (size_t n0 = 0; n0 < out; n0 += panel)
    for (size_t k0 = 0; k0 < in; k0 += 2)
      for (size_t n = n0; n < n0 + panel; ++n)
        for (size_t k = k0; k < k0 + 2; ++k) *to++ = n < out && k < in ? to_bf16(weights[n * in + k]) : 0;
}

}  // namespace
}  // namespace embedkit
