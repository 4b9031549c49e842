// The same with the 256-bit vpdpbusd of AVX-512 VNNI, by which machines without AVX-VNNI run
// and test the same kernels.
#include "kernels/avx2_kernels.h"

namespace embedkit {
namespace {

struct Evex {
  static constexpr Isa kIsa = Isa::kAvx2Vnni;
  using Weight = int8_t;
  using Activation = uint8_t;
  static __m256i add(__m256i sums, __m256i x, __m256i w) { return _mm256_dpbusd_epi32(sums, x, w); }
  static void spin(__m256i& sums, __m256i x) { asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums) : "v"(x)); }
};

}  // namespace

extern constinit const Kernels kAvx2VnniEvexKernels = avx2_kernels<Evex>();

}  // namespace embedkit
