// The same as amx_emulated.cc for machines without AVX-512.
#include "kernels/dot_avx2.h"
#include "kernels/emulated_tiles.h"
#include "kernels/tile_table.h"

namespace embedkit {

extern constinit const Kernels kAmxEmulatedAvx2Kernels =
    tile_kernels<EmulatedTiles, Paired>(Isa::kAmxEmulated);

}  // namespace embedkit
