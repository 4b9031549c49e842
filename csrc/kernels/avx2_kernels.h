// The kernels of 256-bit instruction sets, written once for three ways to add products of quantized rows
// (activations) and weights to eight int32 lanes, each exact. `Dot` is one of them:
//
//   Dot::kIsa        the instruction set
//   Dot::Weight      of packed weights: int8_t, or int16_t
//   Dot::Activation  of quantized rows: uint8_t, or uint16_t; four bytes of them are one step of K
//   Dot::add         the lanes, four bytes of a row in each lane, and as many weights of eight columns
//   Dot::spin        the same on one register in assembly, for the ceiling
#pragma once

#include <cstring>
#include <utility>

#include "kernels/attention.h"
#include "kernels/linear_fp32.h"
#include "kernels/rows.h"
#include "kernels/vec_avx2.h"

namespace embedkit {
namespace {

constexpr int kRows = 6;  // 6 x 2 accumulators, 2 registers of weights, 1 of activations
constexpr int kVectors = 2;
constexpr size_t kPanel = 8 * kVectors;
constexpr size_t kStep = 4;  // bytes of a row that are multiplied in one step

template <class Dot>
constexpr size_t kGroup = kStep / sizeof(typename Dot::Activation);

template <class Dot>
size_t packed_int8_bytes(size_t out, size_t in) {
  return round_up(out, kPanel) * round_up(in, kGroup<Dot>) * sizeof(typename Dot::Weight);
}

/// [panel][k / kGroup][column of the panel][k % kGroup]
template <class Dot>
void pack_int8(const int8_t* weights, size_t out, size_t in, void* packed) {
  using Weight = typename Dot::Weight;
  Weight* to = static_cast<Weight*>(packed);
  for (size_t n0 = 0; n0 < out; n0 += kPanel)
    for (size_t k0 = 0; k0 < in; k0 += kGroup<Dot>)
      for (size_t n = n0; n < n0 + kPanel; ++n)
        for (size_t k = k0; k < k0 + kGroup<Dot>; ++k)
          *to++ = n < out && k < in ? weights[n * in + k] : Weight{0};
}

/// The integer products of R rows with one panel, handed to `finish(vector)(row, sums)`.
template <class Dot, int R, class Finish>
inline __attribute__((always_inline)) void int8_products(const uint8_t* a, size_t stride,
                                                         const typename Dot::Weight* b, size_t groups,
                                                         Finish&& finish) {
  __m256i acc[R][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) acc[r][c] = _mm256_setzero_si256();
  for (size_t g = 0; g < groups; ++g, a += kStep, b += kPanel * kGroup<Dot>) {
    __m256i column[kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) column[c] = _mm256_load_si256(reinterpret_cast<const __m256i*>(b) + c);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int32_t step;
      std::memcpy(&step, a + static_cast<size_t>(r) * stride, kStep);
      const __m256i x = _mm256_set1_epi32(step);
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) acc[r][c] = Dot::add(acc[r][c], x, column[c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < kVectors; ++c) {
    const auto finish_row = finish(c);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) finish_row(r, acc[r][c]);
  }
}

/// x Wᵀ = scale_m (scale_n Σ q w) + lowest_m (scale_n Σ w), plus the bias.
template <class Dot, int R>
__attribute__((noinline)) void int8_tile(const QuantizedRows& x, const typename Dot::Weight* weights,
                                         size_t groups, const float* scale, const float* row_sums,
                                         const float* bias, float* out, size_t ld_out) {
  // The vectors of the columns are loaded again for each row: with them, 16 registers would be too few.
  int8_products<Dot, R>(x.data, x.stride, weights, groups, [&](int c) __attribute__((always_inline)) {
    return [&, c](int r, __m256i sums) __attribute__((always_inline)) {
      const __m256 start = _mm256_fmadd_ps(_mm256_set1_ps(x.lowest[r]), _mm256_loadu_ps(row_sums + c * 8),
                                           _mm256_loadu_ps(bias + c * 8));
      const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(x.scale[r]));
      _mm256_storeu_ps(out + static_cast<size_t>(r) * ld_out + c * 8,
                       _mm256_fmadd_ps(scaled, _mm256_loadu_ps(scale + c * 8), start));
    };
  });
}

template <class Dot, int... I>
constexpr auto int8_tiles(std::integer_sequence<int, I...>) {
  struct Table {
    decltype(&int8_tile<Dot, 1>) of[sizeof...(I)];
  };
  return Table{{&int8_tile<Dot, I + 1>...}};
}

template <class Dot>
void linear_int8(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                 size_t panel_end, float* out, size_t ld_out) {
  static constexpr auto tiles = int8_tiles<Dot>(std::make_integer_sequence<int, kRows>{});
  const size_t groups = (linear.in_features + kGroup<Dot> - 1) / kGroup<Dot>;
  const auto* weights = static_cast<const typename Dot::Weight*>(linear.weights);
  for (size_t p = panel_begin; p < panel_end; ++p) {
    const size_t column = p * kPanel;
    over_tiles(rows, kRows, [&](size_t row, size_t height) {
      tiles.of[height - 1](x.from(row), weights + column * groups * kGroup<Dot>, groups,
                           linear.scale + column, linear.row_sums + column, linear.bias + column,
                           out + row * ld_out + column, ld_out);
    });
  }
}

template <class Dot>
void products_int8(const QuantizedRows& x, size_t rows, const PackedLinear& linear, int32_t* out,
                   size_t ld_out) {
  const size_t groups = (linear.in_features + kGroup<Dot> - 1) / kGroup<Dot>;
  const auto* weights = static_cast<const typename Dot::Weight*>(linear.weights);
  for (size_t column = 0; column < linear.out_features; column += kPanel)
    for (size_t row = 0; row < rows; ++row)
      int8_products<Dot, 1>(x.data + row * x.stride, x.stride, weights + column * groups * kGroup<Dot>,
                            groups, [&](int c) {
                              return [=](int, __m256i sums) {
                                alignas(32) int32_t lanes[8];
                                _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
                                for (size_t i = 0; i < 8; ++i) {
                                  const size_t n = column + static_cast<size_t>(c) * 8 + i;
                                  if (n < linear.out_features) out[row * ld_out + n] = lanes[i];
                                }
                              };
                            });
}

template <class Dot>
double spin_int8(size_t iterations) {
  __m256i acc[12];
  for (auto& a : acc) a = _mm256_setzero_si256();
  const __m256i x = _mm256_set1_epi8(1);
  for (size_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (auto& a : acc) Dot::spin(a, x);
  }
  return static_cast<double>(iterations) * 12 * (32 / sizeof(typename Dot::Weight));
}

double spin_fp32(size_t iterations) {
  __m256 acc[12];
  for (auto& a : acc) a = _mm256_setzero_ps();
  __m256 x = _mm256_set1_ps(0.5f);
  for (size_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (auto& a : acc) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(a) : "x"(x));
  }
  return static_cast<double>(iterations) * 12 * 8;
}

template <class Dot>
constexpr Kernels avx2_kernels() {
  return {
      .isa = Dot::kIsa,
      .panel = kPanel,
      .quantized_bytes = sizeof(typename Dot::Activation),
      .quantized_group = kGroup<Dot>,
      .packed_int8_bytes = packed_int8_bytes<Dot>,
      .packed_fp32_bytes = packed_fp32_bytes<kPanel>,
      .pack_int8 = pack_int8<Dot>,
      .pack_fp32 = pack_fp32<kPanel>,
      .linear_int8 = linear_int8<Dot>,
      .linear_fp32 = linear_fp32<Avx2, kRows, kVectors>,
      .products_int8 = products_int8<Dot>,
      .quantize = quantize_rows<Avx2, typename Dot::Activation>,
      .activate = activate<Avx2, typename Dot::Activation>,
      .add_layer_norm = add_layer_norm<Avx2, typename Dot::Activation>,
      .add_scaled_int8 = add_scaled_int8<Avx2>,
      .rotate = rotate<Avx2>,
      .attention_scratch = attention_scratch<Avx2, kRows>,
      .attention = attention<Avx2, kRows>,
      .spin_int8 = spin_int8<Dot>,
      .spin_fp32 = spin_fp32,
  };
}

}  // namespace
}  // namespace embedkit
