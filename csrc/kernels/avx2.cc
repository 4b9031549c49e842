// AVX2 with FMA. vpmaddubsw would saturate, so weights and activations are widened to 16 bits when they are
// packed and quantized: vpmaddwd adds two products to each of eight int32 lanes, exactly.
#include "kernels/vec_avx2.h"
#include "kernels/vector_kernels.h"

namespace embedkit {
namespace {

struct Wide : ByteDot<Avx2> {
  static constexpr const char* kInstruction = "vpmaddwd";
  using Weight = int16_t;
  using Activation = uint16_t;
  template <int>
  static __m256i add(__m256i sums, __m256i x, __m256i w) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(x, w));
  }
  static void spin(__m256i& sums, __m256i x) {
    __m256i product;
    asm volatile("vpmaddwd %2, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sums), "=&x"(product) : "x"(x));
  }
};

}  // namespace

extern constinit const Kernels kAvx2Kernels = vector_kernels<Wide>(Isa::kAvx2);

}  // namespace embedkit
