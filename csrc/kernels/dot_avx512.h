// How AVX-512 with VNNI multiplies in int8; see avx512_vnni.cc.
#pragma once

#include "kernels/linear_int8.h"
#include "kernels/vec_avx512.h"

namespace embedkit {
namespace {

struct Vnni : ByteDot<Avx512> {
  static constexpr const char* kInstruction = "vpdpbusd";
  template <int>
  static __m512i add(__m512i sums, __m512i x, __m512i w) {
    return _mm512_dpbusd_epi32(sums, x, w);
  }
  static constexpr int kAttentionRows = 12;
  static __m512i add_bytes(__m512i sums, __m512i x, __m512i w) { return _mm512_dpbusd_epi32(sums, x, w); }
  static __m512i add_words(__m512i sums, __m512i x, __m512i w) { return _mm512_dpwssd_epi32(sums, x, w); }
  static void spin(__m512i& sums, __m512i x) { asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums) : "v"(x)); }
};

}  // namespace
}  // namespace embedkit
