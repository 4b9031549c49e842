// Sixteen float lanes. Included only by translation units compiled for AVX-512.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace embedkit {
namespace {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;
  static constexpr size_t kBytes = 64;
  static constexpr int kRegisters = 32;
  // The tile of the products: 8 x 3 accumulators, 3 registers of weights, 1 of activations: 11 loads for 24
  // products, where 12 x 2 takes 14.
  static constexpr int kRows = 8;
  static constexpr int kVectors = 3;
  static constexpr size_t kPanel = size_t{kLanes} * kVectors;
  static constexpr int kSpinning = 24;        // registers of the loops that measure the ceiling
  static constexpr bool kReadsAhead = false;  // see ahead.h: slower on a Zen 4

  static __mmask16 mask(size_t n) { return static_cast<__mmask16>((1u << n) - 1); }

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  /// The first n < 16 lanes; the others are zero.
  static F load_first(const float* p, size_t n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static void store_first(float* p, F x, size_t n) { _mm512_mask_storeu_ps(p, mask(n), x); }
  /// The first n lanes of x, `other` in the rest.
  static F first_or(F x, size_t n, float other) { return _mm512_mask_blend_ps(mask(n), set1(other), x); }
  /// Lanes of `near` where x < limit, of `far` elsewhere.
  static F select_below(F x, float limit, F near, F far) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, set1(limit), _CMP_LT_OQ), far, near);
  }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  /// table[i] of 32 floats from a 64-byte boundary, i the integer in the low bits of the floats `shifted`.
  static F look_up(const float* table, F shifted) {
    return _mm512_permutex2var_ps(_mm512_load_ps(table), _mm512_castps_si512(shifted),
                                  _mm512_load_ps(table + kLanes));
  }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static float sum(F x) { return _mm512_reduce_add_ps(x); }
  static float lowest(F x) { return _mm512_reduce_min_ps(x); }
  static float highest(F x) { return _mm512_reduce_max_ps(x); }

  /// Lanes 2i and 2i + 1 exchanged.
  static F swap_pairs(F x) { return _mm512_permute_ps(x, 0xb1); }

  static I zero_int() { return _mm512_setzero_si512(); }
  /// From 64-byte boundaries.
  static I load_int(const void* p) { return _mm512_load_si512(p); }
  /// The same four bytes in each lane.
  static I broadcast_four(const void* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof(four));
    return _mm512_set1_epi32(four);
  }
  /// The lower and the upper half of each lane, two bfloat16s, as floats.
  static F bf16_low(I x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
  static F bf16_high(I x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
  /// The bits of x as bfloat16, rounded as `to_bf16`, in the lower half of each lane.
  static I bf16_bits(F x) {
    const I bits = _mm512_castps_si512(x);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  }
  static void store_bf16(uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(bf16_bits(x)));
  }
  static void store_bf16(uint16_t* p, F first, F second) {
    store_bf16(p, first);
    store_bf16(p + kLanes, second);
  }
  /// Both rounded to bfloat16, in the lower and the upper half of each lane.
  static I bf16_pairs(F low, F high) { return word_pairs(bf16_bits(low), bf16_bits(high)); }
  static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
  static F magnitude(F x) { return _mm512_abs_ps(x); }

  static I set1_int(int32_t x) { return _mm512_set1_epi32(x); }
  /// To 64-byte boundaries.
  static void store_int(void* p, I x) { _mm512_store_si512(p, x); }
  static I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub_int(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I max_int(I a, I b) { return _mm512_max_epi32(a, b); }
  static int32_t sum_int(I x) { return _mm512_reduce_add_epi32(x); }
  static int32_t highest_int(I x) { return _mm512_reduce_max_epi32(x); }
  /// The first n lanes of x, `other` in the rest.
  static I first_or_int(I x, size_t n, int32_t other) {
    return _mm512_mask_blend_epi32(mask(n), set1_int(other), x);
  }
  /// The nearest integers.
  static I to_int(F x) { return _mm512_cvtps_epi32(x); }
  /// int16 in the lower and the upper half of each lane.
  static I word_pairs(I low, I high) {
    return _mm512_or_si512(_mm512_slli_epi32(high, 16), _mm512_and_si512(low, _mm512_set1_epi32(0xffff)));
  }
  static I min_int(I a, I b) { return _mm512_min_epi32(a, b); }
  static I and_int(I a, I b) { return _mm512_and_si512(a, b); }
  static I shift_right_int(I x, int n) { return _mm512_sra_epi32(x, _mm_cvtsi32_si128(n)); }
  static I shift_left_int(I x, int n) { return _mm512_sll_epi32(x, _mm_cvtsi32_si128(n)); }
  /// a and b as int16, saturated.
  static I pack_words(I a, I b) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packs_epi32(a, b));
  }
  static I set1_words(int x) { return _mm512_set1_epi16(static_cast<int16_t>(x)); }
  static I sub_words(I a, I b) { return _mm512_sub_epi16(a, b); }
  /// round(a * b / 2^15).
  static I mul_words(I a, I b) { return _mm512_mulhrs_epi16(a, b); }
  template <int N>
  static I shift_left_words(I x) {
    return _mm512_slli_epi16(x, N);
  }
  template <int N>
  static I shift_right_words(I x) {
    return _mm512_srli_epi16(x, N);
  }
  /// 2^(14 - n) of 16-bit lanes 0 <= n < 32, 0 for n > 14.
  static I halved_words(I n) { return _mm512_srlv_epi16(set1_words(1 << 14), n); }
  /// The first n < 32 int16; the others are zero.
  static I first_words(I x, size_t n) { return _mm512_maskz_mov_epi16((1u << n) - 1, x); }
  static void store_words(int16_t* p, I x) { _mm512_storeu_si512(p, x); }

  /// The nearest integers to -127 <= x <= 127.
  static void store_bytes(int8_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
  }
  /// sums += x * x in assembly, which no compiler takes away.
  static void spin(F& sums, F x) { asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sums) : "v"(x)); }

  static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// x * 2^n for integral n.
  static F scale(F x, F n) { return _mm512_scalef_ps(x, n); }
  /// x - floor(x).
  static F fraction(F x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  /// x * 2^floor(n).
  static F scale_by_floor(F x, F n) { return _mm512_scalef_ps(x, n); }
  /// Sixteen signed bytes.
  static F load_int8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  /// Sixteen halves, or bfloat16s.
  static F load_half(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const uint16_t* p) {
    return bf16_low(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  }

  /// Rounds 0 <= x <= 255 (+ rounding error) to the nearest integers.
  static void store_quantized(uint8_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(x)));
  }
  /// Four vectors of them, in fewer steps than one by one.
  static void store_quantized(uint8_t* p, F a, F b, F c, F d) {
    const I low = _mm512_packus_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
    const I high = _mm512_packus_epi32(_mm512_cvtps_epi32(c), _mm512_cvtps_epi32(d));
    // In each quarter of 128 bits: four bytes of each vector.
    const I order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high)));
  }
  static void store_zero(void* p) { _mm512_storeu_si512(p, zero_int()); }

  /// dst[c * ldd + r] = src[r * lds + c] for a block of 16 x 16. Loads of four columns, which the ports of
  /// all arithmetic merge, do half of the work of the one port that moves lanes.
  static void transpose(const float* src, size_t lds, float* dst, size_t ldd) {
    for (int c = 0; c < 16; c += 4, src += 4, dst += 4 * ldd) {
      // 128-bit block b of r[i]: row 4b + i of the four columns.
      __m512 r[4];
      for (size_t i = 0; i < 4; ++i) {
        const float* row = src + i * lds;
        r[i] = _mm512_castps128_ps512(_mm_loadu_ps(row));
        r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(row + 4 * lds), 1);
        r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(row + 8 * lds), 2);
        r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(row + 12 * lds), 3);
      }
      const __m512 low01 = _mm512_unpacklo_ps(r[0], r[1]), high01 = _mm512_unpackhi_ps(r[0], r[1]);
      const __m512 low23 = _mm512_unpacklo_ps(r[2], r[3]), high23 = _mm512_unpackhi_ps(r[2], r[3]);
      store(dst, _mm512_shuffle_ps(low01, low23, 0x44));
      store(dst + ldd, _mm512_shuffle_ps(low01, low23, 0xee));
      store(dst + 2 * ldd, _mm512_shuffle_ps(high01, high23, 0x44));
      store(dst + 3 * ldd, _mm512_shuffle_ps(high01, high23, 0xee));
    }
  }
};

}  // namespace
}  // namespace embedkit
