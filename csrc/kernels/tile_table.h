// The table of kernels of an instruction set with tiles.
#pragma once

#include "kernels/tile_attention.h"
#include "kernels/tile_kernels.h"
#include "kernels/vector_kernels.h"

namespace embedkit {
namespace {

/// The table of an instruction set with tiles and the vectors of `Dot`: products in int8 and bfloat16 on
/// tiles, all else on vectors; `Rounding` are those vectors, and round to bfloat16.
template <class Tiles, class Dot, class Rounding = typename Dot::V>
constexpr Kernels tile_kernels(Isa isa) {
  using V = typename Dot::V;
  constexpr Attention attention = {tile_attention_scratch, tile_attention<Rounding, Tiles>};
  Kernels kernels = row_kernels<Dot, 255>(isa);
  kernels.quantize = quantize_rows<Rounding, 255>;
  kernels.activate = activate<Rounding, 255>;
  kernels.activate_gated = activate_gated<Rounding, 255>;
  kernels.norm = norm<Rounding, 255>;
  kernels.quantized_panel = kTilePanel;
  kernels.quantized_group = kTileGroup<TileInt8>;
  kernels.packed_int8_bytes = packed_tile_bytes<TileInt8>;
  kernels.pack_int8 = pack_tiles_int8;
  kernels.packed_bf16_bytes = packed_tile_bytes<TileBf16>;
  kernels.pack_bf16 = pack_tiles_bf16;
  kernels.int8_instruction = Tiles::kInt8Instruction;
  kernels.linear_int8 = linear_tiles_int8<V, Tiles>;
  kernels.spin_int8 = spin_tiles<TileInt8, Tiles>;
  kernels.bf16 = {Tiles::kBf16Instruction, kTileGroup<TileBf16>, linear_tiles_bf16<Tiles>,
                  spin_tiles<TileBf16, Tiles>, attention};
  kernels.attention_int8 = attention;
  return kernels;
}

}  // namespace
}  // namespace embedkit
