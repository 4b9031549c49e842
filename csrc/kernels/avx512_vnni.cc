// AVX-512 with VNNI: vpdpbusd multiplies unsigned bytes (activations) by signed bytes (weights) and adds four
// products to each of sixteen int32 lanes, without saturation.
#include "kernels/vec_avx512.h"
#include "kernels/vector_kernels.h"

namespace embedkit {
namespace {

struct Vnni : ByteDot<Avx512> {
  static constexpr const char* kInstruction = "vpdpbusd";
  template <int>
  static __m512i add(__m512i sums, __m512i x, __m512i w) {
    return _mm512_dpbusd_epi32(sums, x, w);
  }
  static void spin(__m512i& sums, __m512i x) { asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums) : "v"(x)); }
};

}  // namespace

extern constinit const Kernels kAvx512VnniKernels = vector_kernels<Vnni>(Isa::kAvx512Vnni);

}  // namespace embedkit
