#include "base/error.h"
#include "kernels/kernels.h"

namespace embedkit {

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
      return kAvx512VnniKernels;
#elif defined(__aarch64__)
    case Isa::kNeon:
      return kNeonKernels;
#endif
    default:
      throw InternalError("no kernels were built for this instruction set");
  }
}

}  // namespace embedkit
