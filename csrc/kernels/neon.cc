// NEON with the dot product of Armv8.2 (FEAT_DotProd). sdot multiplies signed bytes by signed bytes and adds
// four products to each of four int32 lanes: the activations are shifted to q - 128 as they are read, and the
// sums start from 128 Σ w, which is packed before each panel, so that they come out as Σ q w.
#include <cstring>
#include <utility>

#include "kernels/attention.h"
#include "kernels/linear_fp32.h"
#include "kernels/rows.h"
#include "kernels/vec_neon.h"

namespace embedkit {
namespace {

// 6 x 3 accumulators, 6 registers of activations (4 groups each), 3 of weights.
constexpr int kRows = 6;
constexpr int kVectors = 3;
constexpr size_t kPanel = 4 * kVectors;
constexpr size_t kGroup = 16;  // bytes of activations in a register, for one row
constexpr size_t kStartBytes = kPanel * sizeof(int32_t);

constexpr size_t panel_bytes(size_t in) { return kStartBytes + round_up(in, kGroup) * kPanel; }

size_t packed_int8_bytes(size_t out, size_t in) { return round_up(out, kPanel) / kPanel * panel_bytes(in); }

/// [panel]: 128 Σ w of its columns as int32, then [k / 4][column of the panel][k % 4]
void pack_int8(const int8_t* weights, size_t out, size_t in, void* packed) {
  auto* to = static_cast<int8_t*>(packed);
  for (size_t n0 = 0; n0 < out; n0 += kPanel) {
    int32_t start[kPanel] = {};
    for (size_t n = n0; n < n0 + kPanel && n < out; ++n)
      for (size_t k = 0; k < in; ++k) start[n - n0] += 128 * weights[n * in + k];
    std::memcpy(to, start, kStartBytes);
    to += kStartBytes;
    for (size_t k0 = 0; k0 < round_up(in, kGroup); k0 += 4)
      for (size_t n = n0; n < n0 + kPanel; ++n)
        for (size_t k = k0; k < k0 + 4; ++k) *to++ = n < out && k < in ? weights[n * in + k] : int8_t{0};
  }
}

/// The integer products of R rows with one panel, handed to `finish(vector)(row, sums)`.
template <int R, class Finish>
inline __attribute__((always_inline)) void int8_products(const uint8_t* a, size_t stride, const int8_t* b,
                                                         size_t groups, Finish&& finish) {
  int32x4_t acc[R][kVectors];
#pragma GCC unroll 4
  for (int c = 0; c < kVectors; ++c) {
    const int32x4_t start = vld1q_s32(reinterpret_cast<const int32_t*>(b) + c * 4);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[r][c] = start;
  }
  b += kStartBytes;
  const uint8x16_t shift = vdupq_n_u8(128);
  for (size_t g = 0; g < groups; ++g, a += kGroup) {
    int8x16_t x[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
      x[r] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(a + static_cast<size_t>(r) * stride), shift));
    const auto four = [&]<int kLane>(std::integral_constant<int, kLane>) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) {
        const int8x16_t column = vld1q_s8(b + c * 16);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[r][c] = vdotq_laneq_s32(acc[r][c], column, x[r], kLane);
      }
      b += 4 * kPanel;
      // Loads of weights stay in their group: hoisted above each other, they would push sums out of
      // registers.
      asm volatile("" ::: "memory");
    };
    four(std::integral_constant<int, 0>{});
    four(std::integral_constant<int, 1>{});
    four(std::integral_constant<int, 2>{});
    four(std::integral_constant<int, 3>{});
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
    const float32x4_t column_scale = vld1q_f32(scale + c * 4);
    const float32x4_t column_sum = vld1q_f32(row_sums + c * 4);
    const float32x4_t column_bias = vld1q_f32(bias + c * 4);
    return [=, &x](int r, int32x4_t sums) __attribute__((always_inline)) {
      const float32x4_t start = vfmaq_n_f32(column_bias, column_sum, x.lowest[r]);
      const float32x4_t scaled = vmulq_n_f32(vcvtq_f32_s32(sums), x.scale[r]);
      vst1q_f32(out + static_cast<size_t>(r) * ld_out + c * 4, vfmaq_f32(start, scaled, column_scale));
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
  const auto* weights = static_cast<const int8_t*>(linear.weights);
  for (size_t p = panel_begin; p < panel_end; ++p) {
    const size_t column = p * kPanel;
    over_tiles(rows, kRows, [&](size_t row, size_t height) {
      kInt8Tiles.of[height - 1](x.from(row), weights + p * panel_bytes(linear.in_features), groups,
                                linear.scale + column, linear.row_sums + column, linear.bias + column,
                                out + row * ld_out + column, ld_out);
    });
  }
}

void products_int8(const QuantizedRows& x, size_t rows, const PackedLinear& linear, int32_t* out,
                   size_t ld_out) {
  const size_t groups = (linear.in_features + kGroup - 1) / kGroup;
  const auto* weights = static_cast<const int8_t*>(linear.weights);
  for (size_t column = 0; column < linear.out_features; column += kPanel)
    for (size_t row = 0; row < rows; ++row)
      int8_products<1>(x.data + row * x.stride, x.stride,
                       weights + column / kPanel * panel_bytes(linear.in_features), groups, [&](int c) {
                         return [=](int, int32x4_t sums) {
                           int32_t lanes[4];
                           vst1q_s32(lanes, sums);
                           for (size_t i = 0; i < 4; ++i) {
                             const size_t n = column + static_cast<size_t>(c) * 4 + i;
                             if (n < linear.out_features) out[row * ld_out + n] = lanes[i];
                           }
                         };
                       });
}

double spin_int8(size_t iterations) {
  int32x4_t acc[24];
  for (auto& a : acc) a = vdupq_n_s32(0);
  const int8x16_t x = vdupq_n_s8(1);
  for (size_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (auto& a : acc) asm volatile("sdot %0.4s, %1.16b, %1.16b" : "+w"(a) : "w"(x));
  }
  return static_cast<double>(iterations) * 24 * 16;
}

double spin_fp32(size_t iterations) {
  float32x4_t acc[24];
  for (auto& a : acc) a = vdupq_n_f32(0.0f);
  const float32x4_t x = vdupq_n_f32(0.5f);
  for (size_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (auto& a : acc) asm volatile("fmla %0.4s, %1.4s, %1.4s" : "+w"(a) : "w"(x));
  }
  return static_cast<double>(iterations) * 24 * 4;
}

}  // namespace

extern const Kernels kNeonKernels = {
    .isa = Isa::kNeon,
    .panel = kPanel,
    .quantized_bytes = 1,
    .quantized_group = kGroup,
    .packed_int8_bytes = packed_int8_bytes,
    .packed_fp32_bytes = packed_fp32_bytes<kPanel>,
    .pack_int8 = pack_int8,
    .pack_fp32 = pack_fp32<kPanel>,
    .linear_int8 = linear_int8,
    .linear_fp32 = linear_fp32<Neon, kRows, kVectors>,
    .products_int8 = products_int8,
    .quantize = quantize_rows<Neon, uint8_t>,
    .activate = activate<Neon, uint8_t>,
    .add_layer_norm = add_layer_norm<Neon, uint8_t>,
    .add_scaled_int8 = add_scaled_int8<Neon>,
    .rotate = rotate<Neon>,
    .attention_scratch = attention_scratch<Neon, kRows>,
    .attention = attention<Neon, kRows>,
    .spin_int8 = spin_int8,
    .spin_fp32 = spin_fp32,
};

}  // namespace embedkit
