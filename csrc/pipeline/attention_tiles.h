// Which tokens one program of the GPU's attention kernel takes. The readable form, with the reasons, is
// `attention_tiles` in kernels/attention_tiles.py; the two give the same integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace embedkit {

/// Columns of a tile before the starts of its tokens' sequences: first token, end token, first key, end key.
constexpr size_t kTileHeader = 4;

/// Memory of the caller for the tiles of a batch: (rows, kTileHeader + block) row-major.
struct TileTarget {
  std::span<int32_t> values;
  size_t block = 0;  ///< most tokens of a tile

  size_t columns() const { return kTileHeader + block; }
};

/// Cuts the sequences of a packed batch of `tokens` tokens into tiles; rows that are left over are zero.
/// Sequence i begins at bounds[i * step] and ends at bounds[(i + 1) * step]; the tokens after the last one
/// get tiles without keys. Throws InvalidArgument for more tiles than there is room for.
void attention_tiles(std::span<const int32_t> bounds, size_t step, size_t tokens, const TileTarget& target);

}  // namespace embedkit
