// AVX2 for processors that multiply integers in one of their four vector units (Zen to Zen 2). There
// vpmaddwd, which widens products in avx2.cc, costs as much as vpmaddubsw; additions and shifts use the other
// units. So sums stay in 16 bits, in two halves. The results are those of avx2.cc.
#include "kernels/dot_avx2.h"
#include "kernels/vector_kernels.h"

namespace embedkit {
namespace {

struct Split : Paired {
  static constexpr int kRows = 3;  // 12 halves of sums, activations, 2 registers of products

  /// Σ w mod 2^16 and Σ floor(w / 2^8) of the products w.
  struct Sums {
    __m256i low, high;
  };
  /// So that Σ (w mod 2^8) < 2^16, and Σ floor(w / 2^8) >= -2^15.
  static constexpr size_t kMost = 256;

  static Sums none() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static void widen(Sums& sums, __m256i words) {
    sums.low = _mm256_add_epi16(sums.low, words);
    sums.high = _mm256_add_epi16(sums.high, _mm256_srai_epi16(words, 8));
  }
  /// Σ w = 2^8 Σ floor(w / 2^8) + Σ (w mod 2^8), the latter known modulo 2^16: low - 2^8 high.
  static __m256i total(const Sums& sums) {
    const __m256i rest = _mm256_sub_epi16(sums.low, _mm256_slli_epi16(sums.high, 8));
    // By shifts: constants would take registers from the sums.
    const __m256i high = _mm256_add_epi32(_mm256_srai_epi32(_mm256_slli_epi32(sums.high, 16), 16),
                                          _mm256_srai_epi32(sums.high, 16));
    const __m256i low =
        _mm256_add_epi32(_mm256_srli_epi32(_mm256_slli_epi32(rest, 16), 16), _mm256_srli_epi32(rest, 16));
    return _mm256_add_epi32(_mm256_slli_epi32(high, 8), low);
  }
  static void spin(__m256i& sums, __m256i x) {
    __m256i a, b;
    asm volatile(
        "vpmaddubsw %3, %3, %1\n\tvpmaddubsw %3, %3, %2\n\tvpaddw %1, %2, %1\n\t"
        "vpaddw %1, %0, %0\n\tvpsraw $8, %1, %1\n\tvpaddw %1, %0, %0"
        : "+x"(sums), "=&x"(a), "=&x"(b)
        : "x"(x));
  }
};

}  // namespace

extern constinit const Kernels kAvx2SplitKernels = vector_kernels<Split>(Isa::kAvx2);

}  // namespace embedkit
