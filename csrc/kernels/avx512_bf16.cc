// The bfloat16 products of AVX-512 BF16, in place of those of avx512_vnni.cc: vdpbf16ps adds the two products
// of each pair to a float lane. Like it, they take subnormal numbers for zero.
#include "kernels/attention_bf16.h"
#include "kernels/vec_avx512_bf16.h"

namespace embedkit {
namespace {

struct Dpbf16 {
  using V = Avx512Bf16;
  static constexpr int kParts = 1;
  static constexpr int kSpun = 2;

  static __m512i operand(__m512i pairs, int) { return pairs; }
  static __m512 add(__m512 sums, __m512i x, __m512i w) {
    return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
  }
  static void spin(__m512& sums, __m512 x) { asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sums) : "v"(x)); }
};

}  // namespace

extern constinit const Bf16Products kAvx512Bf16Products = {
    "vdpbf16ps",
    2,
    linear_bf16<Dpbf16>,
    spin_bf16<Dpbf16>,
    {attention_bf16_scratch<Avx512Bf16>, attention_bf16<Dpbf16>}};

}  // namespace embedkit
