// Eight float lanes. Included only by translation units compiled for AVX2 and FMA.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace embedkit {
namespace {

struct Avx2 {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;
  static constexpr size_t kBytes = 32;
  static constexpr int kRegisters = 16;
  // The tile of the products: 6 x 2 accumulators, 2 registers of weights, 1 of activations.
  static constexpr int kRows = 6;
  static constexpr int kVectors = 2;
  static constexpr size_t kPanel = size_t{kLanes} * kVectors;
  static constexpr int kSpinning = 12;       // registers of the loops that measure the ceiling
  static constexpr bool kReadsAhead = true;  // see ahead.h: measured on a Zen 2

  static __m256i mask(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  /// The first n < 8 lanes; the others are zero.
  static F load_first(const float* p, size_t n) { return _mm256_maskload_ps(p, mask(n)); }
  static void store_first(float* p, F x, size_t n) { _mm256_maskstore_ps(p, mask(n), x); }
  /// The first n lanes of x, `other` in the rest.
  static F first_or(F x, size_t n, float other) {
    return _mm256_blendv_ps(set1(other), x, _mm256_castsi256_ps(mask(n)));
  }
  /// Lanes of `near` where x < limit, of `far` elsewhere.
  static F select_below(F x, float limit, F near, F far) {
    return _mm256_blendv_ps(far, near, _mm256_cmp_ps(x, set1(limit), _CMP_LT_OQ));
  }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static float sum(F x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float lowest(F x) {
    __m128 s = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_min_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_min_ss(s, _mm_movehdup_ps(s)));
  }
  static float highest(F x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  /// Lanes 2i and 2i + 1 exchanged.
  static F swap_pairs(F x) { return _mm256_permute_ps(x, 0xb1); }

  static I zero_int() { return _mm256_setzero_si256(); }
  /// From 32-byte boundaries.
  static I load_int(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
  /// The same four bytes in each lane.
  static I broadcast_four(const void* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof(four));
    return _mm256_set1_epi32(four);
  }
  /// The lower and the upper half of each lane, two bfloat16s, as floats.
  static F bf16_low(I x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
  /// The mask stays in memory: it would take the register that the products lack. Two shifts instead are
  /// slower where one unit shifts (Zen 2), or one that multiplies as well.
  static F bf16_high(I x) {
    alignas(32) static constexpr uint16_t kMask[] = {0, 0xffff, 0, 0xffff, 0, 0xffff, 0, 0xffff,
                                                     0, 0xffff, 0, 0xffff, 0, 0xffff, 0, 0xffff};
    I high;
    asm("vpand %1, %2, %0" : "=x"(high) : "m"(kMask), "x"(x));
    return _mm256_castsi256_ps(high);
  }
  /// The bits of x as bfloat16, rounded as `to_bf16`, in the lower half of each lane.
  static I bf16_bits(F x) {
    const I bits = _mm256_castps_si256(x);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  }
  static void store_bf16(uint16_t* p, F x) {
    const I rounded = bf16_bits(x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1)));
  }
  static void store_bf16(uint16_t* p, F first, F second) {
    store_bf16(p, first);
    store_bf16(p + kLanes, second);
  }
  /// Both rounded to bfloat16, in the lower and the upper half of each lane.
  static I bf16_pairs(F low, F high) { return word_pairs(bf16_bits(low), bf16_bits(high)); }
  static F to_float(I x) { return _mm256_cvtepi32_ps(x); }
  static F magnitude(F x) { return _mm256_andnot_ps(set1(-0.0f), x); }

  static I set1_int(int32_t x) { return _mm256_set1_epi32(x); }
  /// To 32-byte boundaries.
  static void store_int(void* p, I x) { _mm256_store_si256(static_cast<__m256i*>(p), x); }
  static I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
  static I sub_int(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I max_int(I a, I b) { return _mm256_max_epi32(a, b); }
  static int32_t sum_int(I x) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
  }
  static int32_t highest_int(I x) {
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
  }
  /// The first n lanes of x, `other` in the rest.
  static I first_or_int(I x, size_t n, int32_t other) {
    return _mm256_blendv_epi8(set1_int(other), x, mask(n));
  }
  /// The nearest integers.
  static I to_int(F x) { return _mm256_cvtps_epi32(x); }
  /// int16 in the lower and the upper half of each lane.
  static I word_pairs(I low, I high) { return _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa); }
  static I min_int(I a, I b) { return _mm256_min_epi32(a, b); }
  static I and_int(I a, I b) { return _mm256_and_si256(a, b); }
  static I shift_right_int(I x, int n) { return _mm256_sra_epi32(x, _mm_cvtsi32_si128(n)); }
  static I shift_left_int(I x, int n) { return _mm256_sll_epi32(x, _mm_cvtsi32_si128(n)); }
  /// a and b as int16, saturated.
  static I pack_words(I a, I b) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8); }
  static I set1_words(int x) { return _mm256_set1_epi16(static_cast<int16_t>(x)); }
  static I sub_words(I a, I b) { return _mm256_sub_epi16(a, b); }
  /// round(a * b / 2^15).
  static I mul_words(I a, I b) { return _mm256_mulhrs_epi16(a, b); }
  template <int N>
  static I shift_left_words(I x) {
    return _mm256_slli_epi16(x, N);
  }
  template <int N>
  static I shift_right_words(I x) {
    return _mm256_srli_epi16(x, N);
  }
  /// 2^(14 - n) of 16-bit lanes 0 <= n < 32, 0 for n > 14: its upper and its lower byte from a table each.
  static I halved_words(I n) {
    const I upper = _mm256_setr_epi8(64, 32, 16, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                     64, 32, 16, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const I lower = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, -128, 64, 32, 16, 8, 4, 2, 1, 0,  //
                                     0, 0, 0, 0, 0, 0, 0, -128, 64, 32, 16, 8, 4, 2, 1, 0);
    n = _mm256_min_epi16(n, _mm256_set1_epi16(15));
    // The other byte of each lane, 0, looks up a zero in `lower`, and is shifted away in `upper`.
    return _mm256_or_si256(_mm256_slli_epi16(_mm256_shuffle_epi8(upper, n), 8),
                           _mm256_shuffle_epi8(lower, n));
  }
  /// The first n < 16 int16; the others are zero.
  static I first_words(I x, size_t n) {
    const I lanes = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm256_and_si256(x, _mm256_cmpgt_epi16(_mm256_set1_epi16(static_cast<int16_t>(n)), lanes));
  }
  static void store_words(int16_t* p, I x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  /// The nearest integers to -127 <= x <= 127.
  static void store_bytes(int8_t* p, F x) {
    const __m256i q = _mm256_cvtps_epi32(x);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
  }
  /// sums += x * x in assembly, which no compiler takes away.
  static void spin(F& sums, F x) { asm volatile("vfmadd231ps %1, %1, %0" : "+x"(sums) : "x"(x)); }

  static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// x * 2^n for integral -126 <= n <= 127.
  static F scale(F x, F n) {
    const __m256i exponent =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(x, _mm256_castsi256_ps(exponent));
  }
  /// x - floor(x).
  static F fraction(F x) { return _mm256_sub_ps(x, _mm256_floor_ps(x)); }
  /// x * 2^floor(n), n taken to be in -126 to 127.
  static F scale_by_floor(F x, F n) {
    return scale(x, _mm256_floor_ps(min(max(n, set1(-126.0f)), set1(127.0f))));
  }
  /// Eight signed bytes.
  static F load_int8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  /// Eight halves, or bfloat16s.
  static F load_half(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F load_bf16(const uint16_t* p) {
    return bf16_low(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }

  /// Rounds 0 <= x <= 255 (+ rounding error) to the nearest integers.
  static void store_quantized(uint8_t* p, F x) {
    const __m256i q = _mm256_min_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(255));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
  }
  /// Four vectors of them, in fewer steps than one by one.
  static void store_quantized(uint8_t* p, F a, F b, F c, F d) {
    const I low = _mm256_packus_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
    const I high = _mm256_packus_epi32(_mm256_cvtps_epi32(c), _mm256_cvtps_epi32(d));
    // In each half: four bytes of each vector.
    const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order));
  }
  static void store_zero(void* p) { _mm256_storeu_si256(static_cast<__m256i*>(p), zero_int()); }

  /// dst[c * ldd + r] = src[r * lds + c] for a block of 8 x 8.
  static void transpose(const float* src, size_t lds, float* dst, size_t ldd) {
    __m256 r[8];
    __m256 t[8];
    for (int i = 0; i < 8; ++i) r[i] = load(src + static_cast<size_t>(i) * lds);
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
      r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
      r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
      r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int j = 0; j < 4; ++j) {
      store(dst + static_cast<size_t>(j) * ldd, _mm256_permute2f128_ps(r[j], r[4 + j], 0x20));
      store(dst + static_cast<size_t>(4 + j) * ldd, _mm256_permute2f128_ps(r[j], r[4 + j], 0x31));
    }
  }
};

}  // namespace
}  // namespace embedkit
