// y = x Wᵀ + b in fp32. W is packed as [panel][k][column of the panel].
#pragma once

#include <algorithm>

#include "base/aligned.h"
#include "kernels/kernels.h"
#include "kernels/tile.h"

namespace embedkit {
namespace {

template <size_t kPanel>
size_t packed_fp32_bytes(size_t out, size_t in) {
  return round_up(out, kPanel) * in * sizeof(float);
}

template <size_t kPanel>
void pack_fp32(const float* weights, size_t out, size_t in, void* packed) {
  float* to = static_cast<float*>(packed);
  for (size_t n0 = 0; n0 < out; n0 += kPanel)
    for (size_t k = 0; k < in; ++k)
      for (size_t n = n0; n < n0 + kPanel; ++n) *to++ = n < out ? weights[n * in + k] : 0.0f;
}

/// Panels outside, tiles of rows inside: a panel stays in the first-level cache while the rows pass by.
template <class V, int kRows, int C>
void linear_fp32(const float* x, size_t ld, size_t rows, const PackedLinear& linear, size_t panel_begin,
                 size_t panel_end, float* out, size_t ld_out) {
  constexpr size_t kPanel = static_cast<size_t>(C) * V::kLanes;
  const float* weights = static_cast<const float*>(linear.weights);
  const size_t panel_floats = kPanel * linear.in_features;
  for (size_t p = panel_begin; p < panel_end; ++p) {
    const float* panel = weights + p * panel_floats;
    AheadOf<V> ahead(p + 1 < panel_end ? panel + panel_floats : panel, panel_floats * sizeof(float),
                     tiles_of(rows, kRows), linear.in_features);
    over_tiles(rows, kRows, [&](size_t row, size_t height) {
      tile_of_height<V, kRows, C>(height, x + row * ld, ld, panel, kPanel, linear.in_features,
                                  linear.bias + p * kPanel, out + row * ld_out + p * kPanel, ld_out, ahead);
      ahead.next_tile();
    });
  }
}

}  // namespace
}  // namespace embedkit
