#include "base/error.h"
#include "kernels/kernels.h"

namespace embedkit {
namespace {

#if defined(__x86_64__)
const Kernels& avx512_kernels() {
  static const Kernels kernels = [] {
    Kernels table = kAvx512VnniKernels;
    if (gains_from_avx512_bf16()) table.bf16 = kAvx512Bf16Products;
    return table;
  }();
  return kernels;
}
#endif

}  // namespace

const Kernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return kReferenceKernels;
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx2Vnni:
      return has_avx_vnni() ? kAvx2VnniKernels : kAvx2VnniEvexKernels;
    case Isa::kAvx512Vnni:
      return avx512_kernels();
#elif defined(__aarch64__)
    case Isa::kNeon:
      return kNeonKernels;
#endif
    default:
      throw InternalError("no kernels were built for this instruction set");
  }
}

}  // namespace embedkit
