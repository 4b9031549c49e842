// How AVX2 multiplies in int8; see avx2.cc.
#pragma once

#include "kernels/linear_int8.h"
#include "kernels/vec_avx2.h"

namespace embedkit {
namespace {

struct Paired : ByteDot<Avx2> {
  static constexpr const char* kInstruction = "vpmaddubsw";
  static constexpr int kLevels = paired::kLevels;
  static constexpr int kRows = 4;  // 8 sums, 4 registers of weights, 2 of products, activations, ones
  static constexpr int kSpun = 2;

  static __m256i products(__m256i x, __m256i w) { return _mm256_maddubs_epi16(x, w); }
  static __m256i join(__m256i a, __m256i b) { return _mm256_add_epi16(a, b); }
  using Sums = __m256i;
  static constexpr size_t kMost = 0;
  static Sums none() { return _mm256_setzero_si256(); }
  static void widen(Sums& sums, __m256i words) {
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
  }
  static __m256i total(Sums sums) { return sums; }
  static void spin(__m256i& sums, __m256i x) {
    __m256i a, b;
    asm volatile(
        "vpmaddubsw %3, %3, %1\n\tvpmaddubsw %3, %3, %2\n\tvpaddw %1, %2, %1\n\t"
        "vpmaddwd %3, %1, %1\n\tvpaddd %1, %0, %0"
        : "+x"(sums), "=&x"(a), "=&x"(b)
        : "x"(x));
  }

  // Attention's queries have 7 bits: 127 * 127 * 2 < 2^15.
  static constexpr int kHalf = 64;
  static constexpr int kAttentionRows = 4;
  static __m256i add_bytes(__m256i sums, __m256i x, __m256i w) {
    widen(sums, products(x, w));
    return sums;
  }
  static __m256i add_words(__m256i sums, __m256i x, __m256i w) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(x, w));
  }
};

}  // namespace
}  // namespace embedkit
