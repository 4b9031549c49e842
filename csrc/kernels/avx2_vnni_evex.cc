// The same as avx2_vnni.cc with AVX-512 VNNI's encoding of the 256-bit vpdpbusd, by which machines without
// AVX-VNNI run and test the same kernels.
#include "kernels/vec_avx2.h"
#include "kernels/vector_kernels.h"

namespace embedkit {
namespace {

struct Evex : ByteDot<Avx2> {
  static constexpr const char* kInstruction = "vpdpbusd";
  template <int>
  static __m256i add(__m256i sums, __m256i x, __m256i w) {
    return _mm256_dpbusd_epi32(sums, x, w);
  }
  static void spin(__m256i& sums, __m256i x) { asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums) : "v"(x)); }
};

}  // namespace

extern constinit const Kernels kAvx2VnniEvexKernels = vector_kernels<Evex>(Isa::kAvx2Vnni);

}  // namespace embedkit
