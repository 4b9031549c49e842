// The kernels of amx.cc with its tile operations in plain C++, for tests. Never the default.
#include "kernels/dot_avx512.h"
#include "kernels/emulated_tiles.h"
#include "kernels/tile_table.h"

namespace embedkit {

extern constinit const Kernels kAmxEmulatedKernels = tile_kernels<EmulatedTiles, Vnni>(Isa::kAmxEmulated);

}  // namespace embedkit
