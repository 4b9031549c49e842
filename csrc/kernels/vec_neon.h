// Four float lanes. Included only by translation units compiled for aarch64.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace embedkit {
namespace {

struct Neon {
  using F = float32x4_t;
  using I = int32x4_t;
  static constexpr int kLanes = 4;
  static constexpr size_t kBytes = 16;
  static constexpr int kRegisters = 32;
  // The tile of the products: 6 x 3 accumulators, 6 registers of activations (int8: 16 of each row), 3 of
  // weights.
  static constexpr int kRows = 6;
  static constexpr int kVectors = 3;
  static constexpr size_t kPanel = size_t{kLanes} * kVectors;
  static constexpr int kSpinning = 24;        // registers of the loops that measure the ceiling
  static constexpr bool kReadsAhead = false;  // not measured yet

  static uint32x4_t mask(size_t n) {
    const uint32x4_t lanes = {0, 1, 2, 3};
    return vcltq_u32(lanes, vdupq_n_u32(static_cast<uint32_t>(n)));
  }

  static F zero() { return vdupq_n_f32(0.0f); }
  static F set1(float x) { return vdupq_n_f32(x); }
  static F load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, F x) { vst1q_f32(p, x); }
  /// The first n < 4 lanes; the others are zero.
  static F load_first(const float* p, size_t n) {
    float lanes[4] = {};
    std::memcpy(lanes, p, n * sizeof(float));
    return vld1q_f32(lanes);
  }
  static void store_first(float* p, F x, size_t n) {
    float lanes[4];
    vst1q_f32(lanes, x);
    std::memcpy(p, lanes, n * sizeof(float));
  }
  /// The first n lanes of x, `other` in the rest.
  static F first_or(F x, size_t n, float other) { return vbslq_f32(mask(n), x, set1(other)); }
  /// Lanes of `near` where x < limit, of `far` elsewhere.
  static F select_below(F x, float limit, F near, F far) {
    return vbslq_f32(vcltq_f32(x, set1(limit)), near, far);
  }

  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F min(F a, F b) { return vminq_f32(a, b); }
  static F max(F a, F b) { return vmaxq_f32(a, b); }
  static float sum(F x) { return vaddvq_f32(x); }
  static float lowest(F x) { return vminvq_f32(x); }
  static float highest(F x) { return vmaxvq_f32(x); }

  /// Lanes 2i and 2i + 1 exchanged.
  static F swap_pairs(F x) { return vrev64q_f32(x); }

  static I zero_int() { return vdupq_n_s32(0); }
  static I load_int(const void* p) { return vld1q_s32(static_cast<const int32_t*>(p)); }
  /// The same four bytes in each lane.
  static I broadcast_four(const void* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof(four));
    return vdupq_n_s32(four);
  }
  /// The lower and the upper half of each lane, two bfloat16s, as floats.
  static F bf16_low(I x) { return vreinterpretq_f32_s32(vshlq_n_s32(x, 16)); }
  static F bf16_high(I x) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s32(x), vdupq_n_u32(0xffff0000)));
  }
  /// Rounds to bfloat16 as `to_bf16`.
  static void store_bf16(uint16_t* p, F x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    vst1_u16(p, vshrn_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd), 16));
  }
  static F to_float(I x) { return vcvtq_f32_s32(x); }
  /// sums += x * x in assembly, which no compiler takes away.
  static void spin(F& sums, F x) { asm volatile("fmla %0.4s, %1.4s, %1.4s" : "+w"(sums) : "w"(x)); }

  static F round(F x) { return vrndnq_f32(x); }
  /// x * 2^n for integral -126 <= n <= 127.
  static F scale(F x, F n) {
    const int32x4_t exponent = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    return vmulq_f32(x, vreinterpretq_f32_s32(exponent));
  }
  /// Four signed bytes.
  static F load_int8(const int8_t* p) {
    uint32_t four;
    std::memcpy(&four, p, sizeof(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))))));
  }
  /// Four halves, or bfloat16s.
  static F load_half(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static F load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }

  /// Rounds 0 <= x <= 255 (+ rounding error) to the nearest integers.
  static void store_quantized(uint8_t* p, F x) {
    const uint16x4_t q = vqmovn_u32(vcvtnq_u32_f32(x));
    const uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vqmovn_u16(vcombine_u16(q, q))), 0);
    std::memcpy(p, &four, sizeof(four));
  }
  /// Four vectors of them, in fewer steps than one by one.
  static void store_quantized(uint8_t* p, F a, F b, F c, F d) {
    const auto words = [](F low, F high) {
      return vcombine_u16(vqmovn_u32(vcvtnq_u32_f32(low)), vqmovn_u32(vcvtnq_u32_f32(high)));
    };
    vst1q_u8(p, vcombine_u8(vqmovn_u16(words(a, b)), vqmovn_u16(words(c, d))));
  }
  static void store_zero(void* p) { vst1q_u8(static_cast<uint8_t*>(p), vdupq_n_u8(0)); }

  /// dst[c * ldd + r] = src[r * lds + c] for a block of 4 x 4.
  static void transpose(const float* src, size_t lds, float* dst, size_t ldd) {
    const float32x4x2_t a = vtrnq_f32(load(src), load(src + lds));
    const float32x4x2_t b = vtrnq_f32(load(src + 2 * lds), load(src + 3 * lds));
    store(dst, vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0])));
    store(dst + ldd, vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1])));
    store(dst + 2 * ldd, vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0])));
    store(dst + 3 * ldd, vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1])));
  }
};

}  // namespace
}  // namespace embedkit
