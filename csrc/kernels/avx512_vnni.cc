// AVX-512 with VNNI: vpdpbusd multiplies unsigned bytes (activations) by signed bytes (weights) and adds four
// products to each of sixteen int32 lanes, without saturation.
#include <cstring>

#include "kernels/attention.h"
#include "kernels/linear_fp32.h"
#include "kernels/rows.h"
#include "kernels/vec_avx512.h"

namespace embedkit {
namespace {

// 8 x 3 accumulators, 3 registers of weights, 1 of activations: 11 loads for 24 products, where 12 x 2
// takes 14.
constexpr int kRows = 8;
constexpr int kVectors = 3;
constexpr size_t kPanel = 16 * kVectors;
constexpr size_t kGroup = 4;

size_t packed_int8_bytes(size_t out, size_t in) { return round_up(out, kPanel) * round_up(in, kGroup); }

/// [panel][k / 4][column of the panel][k % 4]
void pack_int8(const int8_t* weights, size_t out, size_t in, void* packed) {
  int8_t* to = static_cast<int8_t*>(packed);
  for (size_t n0 = 0; n0 < out; n0 += kPanel)
    for (size_t k0 = 0; k0 < in; k0 += kGroup)
      for (size_t n = n0; n < n0 + kPanel; ++n, to += kGroup) {
        if (n < out && k0 + kGroup <= in) {
          std::memcpy(to, weights + n * in + k0, kGroup);
        } else {
          for (size_t k = k0; k < k0 + kGroup; ++k)
            to[k - k0] = n < out && k < in ? weights[n * in + k] : int8_t{0};
        }
      }
}

/// The integer products of R rows with one panel, handed to `finish(vector)(row, sums)`.
template <int R, class Finish>
inline __attribute__((always_inline)) void int8_products(const uint8_t* a, size_t stride, const int8_t* b,
                                                         size_t groups, Finish&& finish) {
  __m512i acc[R][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) acc[r][c] = _mm512_setzero_si512();
  for (size_t g = 0; g < groups; ++g, a += kGroup, b += kPanel * kGroup) {
    __m512i column[kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) column[c] = _mm512_load_si512(b + c * 64);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int32_t four;
      std::memcpy(&four, a + static_cast<size_t>(r) * stride, sizeof(four));
      const __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) acc[r][c] = _mm512_dpbusd_epi32(acc[r][c], x, column[c]);
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
template <int R>
__attribute__((noinline)) void int8_tile(const QuantizedRows& x, const int8_t* weights, size_t groups,
                                         const float* scale, const float* row_sums, const float* bias,
                                         float* out, size_t ld_out) {
  int8_products<R>(x.data, x.stride, weights, groups, [&](int c) __attribute__((always_inline)) {
    const __m512 column_scale = _mm512_loadu_ps(scale + c * 16);
    const __m512 column_sum = _mm512_loadu_ps(row_sums + c * 16);
    const __m512 column_bias = _mm512_loadu_ps(bias + c * 16);
    return [=, &x](int r, __m512i sums) __attribute__((always_inline)) {
      const __m512 start = _mm512_fmadd_ps(_mm512_set1_ps(x.lowest[r]), column_sum, column_bias);
      const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(x.scale[r]));
      _mm512_storeu_ps(out + static_cast<size_t>(r) * ld_out + c * 16,
                       _mm512_fmadd_ps(scaled, column_scale, start));
    };
  });
}

template <int... I>
constexpr auto int8_tiles(std::integer_sequence<int, I...>) {
  struct Table {
    decltype(&int8_tile<1>) of[sizeof...(I)];
  };
  return Table{{&int8_tile<I + 1>...}};
}
constexpr auto kInt8Tiles = int8_tiles(std::make_integer_sequence<int, kRows>{});

void linear_int8(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                 size_t panel_end, float* out, size_t ld_out) {
  const size_t groups = (linear.in_features + kGroup - 1) / kGroup;
  const int8_t* weights = static_cast<const int8_t*>(linear.weights);
  for (size_t p = panel_begin; p < panel_end; ++p) {
    const size_t column = p * kPanel;
    over_tiles(rows, kRows, [&](size_t row, size_t height) {
      kInt8Tiles.of[height - 1](x.from(row), weights + column * groups * kGroup, groups,
                                linear.scale + column, linear.row_sums + column, linear.bias + column,
                                out + row * ld_out + column, ld_out);
    });
  }
}

void products_int8(const QuantizedRows& x, size_t rows, const PackedLinear& linear, int32_t* out,
                   size_t ld_out) {
  const size_t groups = (linear.in_features + kGroup - 1) / kGroup;
  const int8_t* weights = static_cast<const int8_t*>(linear.weights);
  for (size_t column = 0; column < linear.out_features; column += kPanel)
    for (size_t row = 0; row < rows; ++row)
      int8_products<1>(x.data + row * x.stride, x.stride, weights + column * groups * kGroup, groups,
                       [&](int c) {
                         return [=](int, __m512i sums) {
                           alignas(64) int32_t lanes[16];
                           _mm512_store_si512(lanes, sums);
                           for (size_t i = 0; i < 16; ++i) {
                             const size_t n = column + static_cast<size_t>(c) * 16 + i;
                             if (n < linear.out_features) out[row * ld_out + n] = lanes[i];
                           }
                         };
                       });
}

double spin_int8(size_t iterations) {
  __m512i acc[24];
  for (auto& a : acc) a = _mm512_setzero_si512();
  __m512i x = _mm512_set1_epi8(1);
  for (size_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (auto& a : acc) asm volatile("vpdpbusd %1, %1, %0" : "+v"(a) : "v"(x));
  }
  return static_cast<double>(iterations) * 24 * 64;
}

double spin_fp32(size_t iterations) {
  __m512 acc[24];
  for (auto& a : acc) a = _mm512_setzero_ps();
  __m512 x = _mm512_set1_ps(0.5f);
  for (size_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (auto& a : acc) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(a) : "v"(x));
  }
  return static_cast<double>(iterations) * 24 * 16;
}

}  // namespace

extern const Kernels kAvx512VnniKernels = {
    .isa = Isa::kAvx512Vnni,
    .panel = kPanel,
    .quantized_bytes = 1,
    .quantized_group = kGroup,
    .packed_int8_bytes = packed_int8_bytes,
    .packed_fp32_bytes = packed_fp32_bytes<kPanel>,
    .pack_int8 = pack_int8,
    .pack_fp32 = pack_fp32<kPanel>,
    .linear_int8 = linear_int8,
    .linear_fp32 = linear_fp32<Avx512, kRows, kVectors>,
    .products_int8 = products_int8,
    .quantize = quantize_rows<Avx512, uint8_t>,
    .activate = activate<Avx512, uint8_t>,
    .add_layer_norm = add_layer_norm<Avx512, uint8_t>,
    .add_scaled_int8 = add_scaled_int8<Avx512>,
    .rotate = rotate<Avx512>,
    .attention_scratch = attention_scratch<Avx512, kRows>,
    .attention = attention<Avx512, kRows>,
    .spin_int8 = spin_int8,
    .spin_fp32 = spin_fp32,
};

}  // namespace embedkit
