// y = x Wᵀ + b in int8 and bfloat16 on tiles, the two-dimensional registers of Intel AMX: 16 rows of 64
// bytes. Everything but the tile operations themselves is written here once. `Tiles` is how they are done, by
// instructions (amx.cc) or in plain C++ (emulated_tiles.h). Four tiles hold sums, 2 x 2 of 16 x 16; two hold
// rows r of x, and two columns c of W:
//
// - Tiles(height) configures the tiles for `height` rows of x in each, all zero.
// - release() frees them. Not a destructor: the compiler would prepare for exceptions, which nothing here
//   throws, by a symbol that a file for one instruction set must not define.
// - zero<r, c>() clears sums, fill<r, c>() sets each row of them, store<r, c>() writes them.
// - load_rows<r>() loads `height` rows of 64 bytes of x.
// - load_columns<c>() loads a packed tile of weights: each lane holds four bytes along K of one column.
// - add_int8<r, c>() adds the products of unsigned bytes of rows r and signed ones of columns c to the sums.
// - add_bf16<r, c>() does the same with pairs of bfloat16s.
// - kSpinOnce: for how many iterations of the loop that measures the ceiling one is run.
//
// A call configures the tiles once and frees them before it returns: nothing of them is left in the caller's
// thread, and a thread that does not multiply does not carry them through every context switch.
#pragma once

#include <algorithm>

#include "base/aligned.h"
#include "kernels/float16.h"
#include "kernels/kernels.h"

namespace embedkit {
namespace {

constexpr size_t kTileRows = 16;
constexpr size_t kTileRowBytes = 64;  // of a row of a tile: the step along K
constexpr size_t kTileBytes = kTileRows * kTileRowBytes;
constexpr size_t kTileColumns = 16;  // of sums, four bytes each
constexpr size_t kTilePanel = 2 * kTileColumns;

struct TileInt8 {
  using Sum = int32_t;
  using Element = int8_t;
  template <int r, int c, class Tiles>
  static __attribute__((always_inline)) void add(Tiles& tiles) {
    tiles.template add_int8<r, c>();
  }
};

struct TileBf16 {
  using Sum = float;
  using Element = uint16_t;
  template <int r, int c, class Tiles>
  static __attribute__((always_inline)) void add(Tiles& tiles) {
    tiles.template add_bf16<r, c>();
  }
};

/// Values along K in a row of a tile.
template <class Product>
constexpr size_t kTileGroup = kTileRowBytes / sizeof(typename Product::Element);

template <class Product>
size_t tile_groups(size_t in) {
  return (in + kTileGroup<Product> - 1) / kTileGroup<Product>;
}

template <class Product>
size_t packed_tile_bytes(size_t out, size_t in) {
  return round_up(out, kTilePanel) / kTileColumns * tile_groups<Product>(in) * kTileBytes;
}

/// weights (out, in) as [panel][step of K][half of the panel][four bytes of K][column][value], zeros beyond
/// both. `convert` makes a packed value of a given one.
template <class Product, typename Given, class Convert>
inline void pack_tiles(const Given* weights, size_t out, size_t in, void* packed, Convert&& convert) {
  using Element = typename Product::Element;
  constexpr size_t kLane = sizeof(int32_t) / sizeof(Element);
  auto* to = static_cast<Element*>(packed);
  for (size_t n0 = 0; n0 < out; n0 += kTilePanel)
    for (size_t k0 = 0; k0 < in; k0 += kTileGroup<Product>)
      for (size_t first = n0; first < n0 + kTilePanel; first += kTileColumns)
        for (size_t lane = k0; lane < k0 + kTileGroup<Product>; lane += kLane)
          for (size_t n = first; n < first + kTileColumns; ++n)
            for (size_t k = lane; k < lane + kLane; ++k)
              *to++ = n < out && k < in ? convert(weights[n * in + k]) : Element{0};
}

void pack_tiles_int8(const int8_t* weights, size_t out, size_t in, void* packed) {
  pack_tiles<TileInt8>(weights, out, in, packed, [](int8_t w) { return w; });
}

void pack_tiles_bf16(const float* weights, size_t out, size_t in, void* packed) {
  pack_tiles<TileBf16>(weights, out, in, packed, [](float w) { return to_bf16(w); });
}

/// One or two tiles of rows `a0` and `a1` times both halves of a panel.
struct TileRun {
  const uint8_t* a0;
  const uint8_t* a1;
  size_t stride;         ///< from row to row
  const uint8_t* b;      ///< a packed panel
  size_t groups;         ///< steps along K
  const float* start;    ///< what the sums begin with, a value a column; or null for zero
  const uint8_t* ahead;  ///< memory that is fetched meanwhile,
  size_t lines;          ///< as many cache lines in each step
};

/// The sums of a run. Never inlined: the test of the machine code looks at these loops.
template <class Product, int kRowTiles, class Tiles>
__attribute__((noinline)) void tile_sums(Tiles& tiles, const TileRun& run) {
  const uint8_t *a0 = run.a0, *a1 = run.a1, *b = run.b, *ahead = run.ahead;
  const size_t stride = run.stride, groups = run.groups, lines = run.lines;
  const float* start = run.start;
  if (start == nullptr) {
    tiles.template zero<0, 0>();
    tiles.template zero<0, 1>();
    if constexpr (kRowTiles == 2) {
      tiles.template zero<1, 0>();
      tiles.template zero<1, 1>();
    }
  } else {
    tiles.template fill<0, 0>(start);
    tiles.template fill<0, 1>(start + kTileColumns);
    if constexpr (kRowTiles == 2) {
      tiles.template fill<1, 0>(start);
      tiles.template fill<1, 1>(start + kTileColumns);
    }
  }
  for (size_t group = 0; group < groups; ++group) {
    tiles.template load_columns<0>(b);
    tiles.template load_rows<0>(a0, stride);
    Product::template add<0, 0>(tiles);
    tiles.template load_columns<1>(b + kTileBytes);
    Product::template add<0, 1>(tiles);
    for (size_t line = 0; line < lines; ++line, ahead += kCacheLine) __builtin_prefetch(ahead, 0, 2);
    if constexpr (kRowTiles == 2) {
      tiles.template load_rows<1>(a1, stride);
      Product::template add<1, 0>(tiles);
      Product::template add<1, 1>(tiles);
      a1 += kTileRowBytes;
    }
    a0 += kTileRowBytes;
    b += 2 * kTileBytes;
  }
}

/// One or two tiles of rows and a panel of columns.
struct TileBlock {
  size_t tiles = 0;
  size_t rows[2] = {};  ///< the first of each tile
  size_t height = 0;    ///< rows of a tile
  size_t column = 0;    ///< the first
};

/// Writes the sums of a block's tiles, each from its own place on.
template <class Tiles>
inline __attribute__((always_inline)) void store_block(const Tiles& tiles, const TileBlock& block,
                                                       void* first, void* second, size_t stride) {
  constexpr size_t kHalf = kTileColumns * sizeof(int32_t);
  tiles.template store<0, 0>(first, stride);
  tiles.template store<0, 1>(static_cast<uint8_t*>(first) + kHalf, stride);
  if (block.tiles == 1) return;
  tiles.template store<1, 0>(second, stride);
  tiles.template store<1, 1>(static_cast<uint8_t*>(second) + kHalf, stride);
}

/// Calls take(tiles, block) for all tiles of rows and all panels of the range, when the tiles hold the
/// block's sums; start(first column) as in tile_sums.
///
/// There are no tiles of fewer rows at the end: the last tile starts early enough to be whole and computes
/// some rows again, to the same bits. Only fewer than 16 rows in all take lower tiles. So the configuration
/// never changes within a call.
template <class Product, class Tiles, class Start, class Take>
inline __attribute__((always_inline)) void over_tile_blocks(const QuantizedRows& x, size_t rows,
                                                            const PackedLinear& linear, size_t panel_begin,
                                                            size_t panel_end, Start&& start, Take&& take) {
  if (rows == 0 || panel_begin >= panel_end) return;
  const size_t height = std::min(rows, kTileRows);
  const size_t row_tiles = (rows + kTileRows - 1) / kTileRows;
  const auto first_row = [&](size_t tile) { return std::min(tile * kTileRows, rows - height); };
  const size_t groups = tile_groups<Product>(linear.in_features);
  const size_t panel_bytes = groups * 2 * kTileBytes;
  // While a panel multiplies the next one comes from the third-level cache, a part with each block; a lone
  // block would only wait for it.
  const size_t blocks = (row_tiles + 1) / 2;
  const size_t lines = blocks == 1 ? 0 : (2 * kTileRows + blocks - 1) / blocks;
  Tiles tiles(height);
  for (size_t p = panel_begin; p < panel_end; ++p) {
    const uint8_t* weights = static_cast<const uint8_t*>(linear.weights) + p * panel_bytes;
    const uint8_t* ahead = weights + panel_bytes;
    const float* from = start(p * kTilePanel);
    for (size_t t = 0; t < row_tiles; t += 2, ahead += groups * lines * kCacheLine) {
      const TileBlock block{
          std::min<size_t>(row_tiles - t, 2), {first_row(t), first_row(t + 1)}, height, p * kTilePanel};
      const TileRun run{x.data + block.rows[0] * x.stride,
                        x.data + block.rows[1] * x.stride,
                        x.stride,
                        weights,
                        groups,
                        from,
                        ahead,
                        lines};
      if (block.tiles == 2)
        tile_sums<Product, 2>(tiles, run);
      else
        tile_sums<Product, 1>(tiles, run);
      take(tiles, block);
    }
  }
  tiles.release();
}

/// Calls finish(first row, height, first column, sums) for all tiles of rows and all panels of the range;
/// `sums` has kTilePanel columns. The vectors of a block are finished while the tiles of the next one
/// multiply.
template <class Tiles, class Finish>
inline __attribute__((always_inline)) void over_int8_sums(const QuantizedRows& x, size_t rows,
                                                          const PackedLinear& linear, size_t panel_begin,
                                                          size_t panel_end, Finish&& finish) {
  constexpr size_t kTileSums = kTileRows * kTilePanel;
  alignas(kCacheLine) int32_t buffers[2][2 * kTileSums];
  TileBlock last;
  int which = 0;
  const auto finish_last = [&]() __attribute__((always_inline)) {
    for (size_t t = 0; t < last.tiles; ++t)
      finish(last.rows[t], last.height, last.column, buffers[which ^ 1] + t * kTileSums);
  };
  over_tile_blocks<TileInt8, Tiles>(
      x, rows, linear, panel_begin, panel_end, [](size_t) -> const float* { return nullptr; },
      [&](const Tiles& tiles, const TileBlock& block) __attribute__((always_inline)) {
        finish_last();
        store_block(tiles, block, buffers[which], buffers[which] + kTileSums, kTilePanel * sizeof(int32_t));
        which ^= 1;
        last = block;
      });
  finish_last();
}

/// In the order of operations of int8_tile: from the same integers the same bits.
template <class V, class Tiles>
void linear_tiles_int8(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                       size_t panel_end, float* out, size_t ld_out) {
  constexpr int C = kTilePanel / V::kLanes;
  over_int8_sums<Tiles>(
      x, rows, linear, panel_begin, panel_end,
      [&](size_t row, size_t height, size_t column, const int32_t* sums) __attribute__((always_inline)) {
        for (int c = 0; c < C; ++c) {
          const size_t lane = static_cast<size_t>(c) * V::kLanes;
          const auto scale = V::load(linear.scale + column + lane);
          const auto row_sums = V::load(linear.row_sums + column + lane);
          const auto bias = V::load(linear.bias + column + lane);
          for (size_t r = 0; r < height; ++r) {
            const auto start = V::fma(V::set1(x.lowest[row + r]), row_sums, bias);
            const auto integers = V::load_int(sums + r * kTilePanel + lane);
            const auto scaled = V::mul(V::to_float(integers), V::set1(x.scale[row + r]));
            V::store(out + (row + r) * ld_out + column + lane, V::fma(scaled, scale, start));
          }
        }
      });
}

/// The sums begin with the bias and go from the tiles to `out`.
template <class Tiles>
void linear_tiles_bf16(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                       size_t panel_end, float* out, size_t ld_out) {
  over_tile_blocks<TileBf16, Tiles>(
      x, rows, linear, panel_begin, panel_end, [&](size_t column) { return linear.bias + column; },
      [&](const Tiles& tiles, const TileBlock& block) __attribute__((always_inline)) {
        float* to = out + block.column;
        store_block(tiles, block, to + block.rows[0] * ld_out, to + block.rows[1] * ld_out,
                    ld_out * sizeof(float));
      });
}

template <class Product, class Tiles>
double spin_tiles(size_t iterations) {
  Tiles tiles(kTileRows);
  const size_t run = iterations / Tiles::kSpinOnce;
  for (size_t i = 0; i < run; ++i) {
    Product::template add<0, 0>(tiles);
    Product::template add<0, 1>(tiles);
    Product::template add<1, 0>(tiles);
    Product::template add<1, 1>(tiles);
  }
  tiles.release();
  return static_cast<double>(run) * 4 * kTileRows * kTileColumns * kTileGroup<Product>;
}

}  // namespace
}  // namespace embedkit
