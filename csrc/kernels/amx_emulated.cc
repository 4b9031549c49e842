// The kernels of amx.cc with its tile operations in plain C++, for tests. Never the default.
#include "kernels/emulated_tiles.h"
#include "kernels/vec_avx512.h"

namespace embedkit {

extern constinit const Kernels kAmxEmulatedKernels = tile_kernels<EmulatedTiles, Avx512>(Isa::kAmxEmulated);

}  // namespace embedkit
