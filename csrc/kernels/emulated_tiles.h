// The tile operations of AMX in plain C++, from their definitions in Intel's manual (Software Developer's
// Manual, volume 2: TILELOADD, TILESTORED, TILEZERO, TDPBUSD, TDPBF16PS): every machine tests the code around
// them with these, at some thousandth of the speed.
#pragma once

#include <cstring>

#include "kernels/tile_kernels.h"

namespace embedkit {
namespace {

class EmulatedTiles {
 public:
  static constexpr const char* kInt8Instruction = "tdpbusd, emulated";
  static constexpr const char* kBf16Instruction = "tdpbf16ps, emulated";
  static constexpr size_t kSpinOnce = 1000;

  explicit EmulatedTiles(size_t height) : height_(height) {
    std::memset(sums_, 0, sizeof(sums_));
    std::memset(rows_, 0, sizeof(rows_));
    std::memset(columns_, 0, sizeof(columns_));
  }
  void release() {}

  template <int r, int c>
  void zero() {
    std::memset(sums_[r][c], 0, sizeof(sums_[r][c]));
  }
  template <int r, int c>
  void fill(const float* row) {
    for (size_t i = 0; i < height_; ++i) std::memcpy(sums_[r][c] + i * kTileRowBytes, row, kTileRowBytes);
  }
  template <int r>
  void load_rows(const uint8_t* from, size_t stride) {
    for (size_t row = 0; row < height_; ++row)
      std::memcpy(rows_[r] + row * kTileRowBytes, from + row * stride, kTileRowBytes);
  }
  template <int c>
  void load_columns(const uint8_t* from) {
    std::memcpy(columns_[c], from, kTileBytes);
  }
  /// Four sums a column, added up last: integers are exact in any order, and compilers vectorize this one.
  template <int r, int c>
  void add_int8() {
    int32_t sums[kTileColumns];
    for (size_t row = 0; row < height_; ++row) {
      int32_t parts[kTileRowBytes] = {};
      for (size_t k = 0; k < kTileRows; ++k) {
        const uint8_t* x = rows_[r] + row * kTileRowBytes + 4 * k;
        const uint8_t* w = columns_[c] + k * kTileRowBytes;
        for (size_t i = 0; i < kTileRowBytes; ++i) parts[i] += int32_t{x[i % 4]} * static_cast<int8_t>(w[i]);
      }
      std::memcpy(sums, sums_[r][c] + row * kTileRowBytes, sizeof(sums));
      for (size_t i = 0; i < kTileRowBytes; ++i) sums[i / 4] += parts[i];
      std::memcpy(sums_[r][c] + row * kTileRowBytes, sums, sizeof(sums));
    }
  }
  /// The first and the second values of all pairs are summed apart, each product with one rounding, then to
  /// each other, then to the sum before. Subnormal numbers are zeros throughout.
  template <int r, int c>
  void add_bf16() {
    float sums[kTileColumns];
    for (size_t row = 0; row < height_; ++row) {
      float halves[2][kTileColumns] = {};
      for (size_t k = 0; k < kTileRows; ++k)
        for (size_t half = 0; half < 2; ++half) {
          const float x = value(rows_[r] + row * kTileRowBytes, 2 * k + half);
          for (size_t n = 0; n < kTileColumns; ++n)
            halves[half][n] = flushed(
                __builtin_fmaf(x, value(columns_[c] + k * kTileRowBytes, 2 * n + half), halves[half][n]));
        }
      std::memcpy(sums, sums_[r][c] + row * kTileRowBytes, sizeof(sums));
      for (size_t n = 0; n < kTileColumns; ++n)
        sums[n] = flushed(sums[n] + flushed(halves[0][n] + halves[1][n]));
      std::memcpy(sums_[r][c] + row * kTileRowBytes, sums, sizeof(sums));
    }
  }
  template <int r, int c>
  void store(void* to, size_t stride) const {
    for (size_t row = 0; row < height_; ++row)
      std::memcpy(static_cast<uint8_t*>(to) + row * stride, sums_[r][c] + row * kTileRowBytes, kTileRowBytes);
  }

 private:
  static float flushed(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7f800000) == 0) bits &= 0x80000000;
    std::memcpy(&x, &bits, sizeof(bits));
    return x;
  }
  /// Bfloat16 number i of a row of a tile.
  static float value(const uint8_t* row, size_t i) {
    uint16_t half;
    std::memcpy(&half, row + i * sizeof(half), sizeof(half));
    const uint32_t bits = uint32_t{half} << 16;
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return flushed(x);
  }

  size_t height_;
  uint8_t sums_[2][2][kTileBytes];
  uint8_t rows_[2][kTileBytes];
  uint8_t columns_[2][kTileBytes];
};

}  // namespace
}  // namespace embedkit
