// The same as amx_emulated.cc for machines without AVX-512.
#include "kernels/emulated_tiles.h"
#include "kernels/vec_avx2.h"

namespace embedkit {

extern constinit const Kernels kAmxEmulatedAvx2Kernels = tile_kernels<EmulatedTiles, Avx2>(Isa::kAmxEmulated);

}  // namespace embedkit
