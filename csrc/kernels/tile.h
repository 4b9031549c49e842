// The fp32 register tile: R rows x C vectors of columns, accumulated over K in order, in registers.
//
//   out[r][c] = start[c] + Σ_k a[r][k] b[k][c]
//
// Every tile shape adds in the same order, so a row's result does not depend on the shape it was computed
// with. gcc 12 keeps the accumulators in registers only without -ftree-pre (see CMakeLists.txt);
// tests/cpp/kernels/codegen_test.sh disassembles the kernels to hold it.
#pragma once

#include <cstddef>
#include <utility>

#include "kernels/ahead.h"

namespace embedkit {
namespace {

template <class V, int R, int C, class Ahead>
__attribute__((noinline)) void tile(const float* a, size_t lda, const float* b, size_t ldb, size_t k,
                                    const float* start, float* out, size_t ld_out, Ahead ahead) {
  typename V::F acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = start == nullptr ? V::zero() : V::load(start + c * V::kLanes);
  for (size_t i = 0; i < k; ++i, b += ldb) {
    ahead.step();
    typename V::F column[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) column[c] = V::load(b + c * V::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename V::F x = V::set1(a[static_cast<size_t>(r) * lda + i]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = V::fma(x, column[c], acc[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) V::store(out + static_cast<size_t>(r) * ld_out + c * V::kLanes, acc[r][c]);
}

/// The fewest tiles of at most `most` rows.
inline size_t tiles_of(size_t rows, size_t most) { return (rows + most - 1) / most; }

/// Calls `body(first row, tile height)` for `rows` cut into these tiles, of equal height but for one row.
template <class Body>
inline void over_tiles(size_t rows, size_t most, Body&& body) {
  const size_t tiles = tiles_of(rows, most);
  for (size_t t = 0, row = 0; t < tiles; ++t) {
    const size_t height = (rows - row + tiles - t - 1) / (tiles - t);
    body(row, height);
    row += height;
  }
}

/// Cuts `columns` into vectors: full(first column) for each whole one, tail(first column, length) for the
/// rest.
template <class V, class Full, class Tail>
inline void over_columns(size_t columns, Full&& full, Tail&& tail) {
  size_t i = 0;
  for (; i + V::kLanes <= columns; i += V::kLanes) full(i);
  if (i < columns) tail(i, columns - i);
}

template <class V, int kRows, int C, class Ahead = NothingAhead>
inline void tile_of_height(size_t height, const float* a, size_t lda, const float* b, size_t ldb, size_t k,
                           const float* start, float* out, size_t ld_out, Ahead ahead = {}) {
  using Function = decltype(&tile<V, 1, C, Ahead>);
  static constexpr auto table = []<int... I>(std::integer_sequence<int, I...>) {
    struct Table {
      Function of[kRows];
    };
    return Table{{&tile<V, I + 1, C, Ahead>...}};
  }(std::make_integer_sequence<int, kRows>{});
  table.of[height - 1](a, lda, b, ldb, k, start, out, ld_out, ahead);
}

}  // namespace
}  // namespace embedkit
