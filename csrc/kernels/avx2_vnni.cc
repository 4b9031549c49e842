// AVX2 with AVX-VNNI, whose vpdpbusd is VEX-encoded: four products of unsigned by signed bytes added to each
// lane, without saturation.
#include "kernels/vec_avx2.h"
#include "kernels/vector_kernels.h"

namespace embedkit {
namespace {

struct Vex : ByteDot<Avx2> {
  static constexpr const char* kInstruction = "vpdpbusd";
  template <int>
  static __m256i add(__m256i sums, __m256i x, __m256i w) {
    return _mm256_dpbusd_avx_epi32(sums, x, w);
  }
  static void spin(__m256i& sums, __m256i x) {
    asm volatile("%{vex%} vpdpbusd %1, %1, %0" : "+x"(sums) : "x"(x));
  }
};

}  // namespace

extern constinit const Kernels kAvx2VnniKernels = vector_kernels<Vex>(Isa::kAvx2Vnni);

}  // namespace embedkit
