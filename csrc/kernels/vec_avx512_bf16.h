// The vectors of AVX-512 where AVX-512 BF16 rounds to bfloat16 by an instruction, which takes subnormal
// numbers for zero.
#pragma once

#include "kernels/vec_avx512.h"

namespace embedkit {
namespace {

struct Avx512Bf16 : Avx512 {
  static __m256i to_bf16(__m512 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
  static __m512i bf16_bits(__m512 x) { return _mm512_cvtepu16_epi32(to_bf16(x)); }
  static void store_bf16(uint16_t* p, __m512 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(x));
  }
  static __m512i to_bf16(__m512 first, __m512 second) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  }
  static void store_bf16(uint16_t* p, __m512 first, __m512 second) {
    _mm512_storeu_si512(p, to_bf16(first, second));
  }
  static __m512i bf16_pairs(__m512 low, __m512 high) {
    // word 2i is number i of the first half, word 2i + 1 that of the second
    const __m512i even = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i order =
        _mm512_or_si512(even, _mm512_slli_epi32(_mm512_add_epi32(even, _mm512_set1_epi32(16)), 16));
    return _mm512_permutexvar_epi16(order, to_bf16(low, high));
  }
};

}  // namespace
}  // namespace embedkit
