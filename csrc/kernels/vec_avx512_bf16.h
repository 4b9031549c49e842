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
};

}  // namespace
}  // namespace embedkit
