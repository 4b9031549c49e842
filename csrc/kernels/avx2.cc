// AVX2 with FMA. vpmaddubsw multiplies unsigned bytes (activations) by signed bytes (weights) and adds two
// products in 16 bits. Weights are packed so that these sums, and those of two such, do not saturate.
#include "kernels/dot_avx2.h"
#include "kernels/vector_kernels.h"

namespace embedkit {

extern constinit const Kernels kAvx2Kernels = vector_kernels<Paired>(Isa::kAvx2);

}  // namespace embedkit
