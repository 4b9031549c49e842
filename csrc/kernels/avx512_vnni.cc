// AVX-512 with VNNI: vpdpbusd multiplies unsigned bytes (activations) by signed bytes (weights) and adds four
// products to each of sixteen int32 lanes, without saturation.
#include "kernels/dot_avx512.h"
#include "kernels/vector_kernels.h"

namespace embedkit {

extern constinit const Kernels kAvx512VnniKernels = vector_kernels<Vnni>(Isa::kAvx512Vnni);

}  // namespace embedkit
