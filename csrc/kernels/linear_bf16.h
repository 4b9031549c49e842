// y = x Wᵀ + b of bfloat16 rows and weights with sums in fp32, written once for every instruction set. A lane
// holds two neighbors along K. The trait `Pairs` says how they are multiplied:
//
//   Pairs::V              the vector type
//   Pairs::kParts         how many additions a pair takes
//   Pairs::operand(p,     i)   what `add` takes of a vector of pairs in part i
//   Pairs::add            sums + x * w
//   Pairs::spin           the same on one register in assembly, for the ceiling; kSpun products a lane
#pragma once

#include <utility>

#include "base/aligned.h"
#include "kernels/float16.h"
#include "kernels/kernels.h"
#include "kernels/tile.h"

namespace embedkit {
namespace {

constexpr size_t kPairBytes = 4;

/// Without an instruction for it: each half becomes a float.
template <class Vector>
struct WidenedPairs {
  using V = Vector;
  static constexpr int kParts = 2;
  static constexpr int kSpun = 1;

  static typename V::F operand(typename V::I pairs, int part) {
    return part == 0 ? V::bf16_low(pairs) : V::bf16_high(pairs);
  }
  static typename V::F add(typename V::F sums, typename V::F x, typename V::F w) {
    return V::fma(x, w, sums);
  }
  static void spin(typename V::F& sums, typename V::F x) { V::spin(sums, x); }
};

template <size_t kPanel>
size_t packed_bf16_bytes(size_t out, size_t in) {
  return round_up(out, kPanel) * round_up(in, 2) * sizeof(uint16_t);
}

template <size_t kPanel>
void pack_bf16(const float* weights, size_t out, size_t in, void* packed) {
  pack_bf16_panels(weights, out, in, kPanel, packed);
}

/// out[r][c] = start[c] + Σ_k a[r][k] b[k][c] over `steps` pairs of k, those of b `ld_bytes` apart; without
/// `start` from zero.
template <class Pairs, int C, int R, class Ahead>
__attribute__((noinline)) void bf16_tile(const uint8_t* a, size_t stride, const uint8_t* b, size_t ld_bytes,
                                         size_t steps, const float* start, float* out, size_t ld_out,
                                         Ahead ahead) {
  using V = typename Pairs::V;
  typename V::F acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = start == nullptr ? V::zero() : V::load(start + c * V::kLanes);
  for (size_t step = 0; step < steps; ++step, a += kPairBytes, b += ld_bytes) {
    ahead.step();
#pragma GCC unroll 2
    for (int part = 0; part < Pairs::kParts; ++part) {
      decltype(Pairs::operand(V::zero_int(), 0)) column[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c)
        column[c] = Pairs::operand(V::load_int(b + static_cast<size_t>(c) * V::kBytes), part);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto x = Pairs::operand(V::broadcast_four(a + static_cast<size_t>(r) * stride), part);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) acc[r][c] = Pairs::add(acc[r][c], x, column[c]);
      }
      // Loads stay in their part: hoisted above each other, they would push sums out of registers.
      if constexpr (Pairs::kParts > 1) asm volatile("" ::: "memory");
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) V::store(out + static_cast<size_t>(r) * ld_out + c * V::kLanes, acc[r][c]);
}

template <class Pairs, int C, class Ahead = NothingAhead>
constexpr auto bf16_tiles = []<int... I>(std::integer_sequence<int, I...>) {
  struct Table {
    decltype(&bf16_tile<Pairs, C, 1, Ahead>) of[sizeof...(I)];
  };
  return Table{{&bf16_tile<Pairs, C, I + 1, Ahead>...}};
}(std::make_integer_sequence<int, Pairs::V::kRows>{});

template <class Pairs>
void linear_bf16(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                 size_t panel_end, float* out, size_t ld_out) {
  using V = typename Pairs::V;
  const auto* weights = static_cast<const uint8_t*>(linear.weights);
  const size_t steps = (linear.in_features + 1) / 2;
  const size_t panel_bytes = V::kPanel * steps * kPairBytes;
  for (size_t p = panel_begin; p < panel_end; ++p) {
    const size_t column = p * V::kPanel;
    const uint8_t* panel = weights + p * panel_bytes;
    AheadOf<V> ahead(p + 1 < panel_end ? panel + panel_bytes : panel, panel_bytes, tiles_of(rows, V::kRows),
                     steps);
    over_tiles(rows, V::kRows, [&](size_t row, size_t height) {
      bf16_tiles<Pairs, V::kVectors, AheadOf<V>>.of[height - 1](
          x.data + row * x.stride, x.stride, panel, V::kVectors * V::kBytes, steps, linear.bias + column,
          out + row * ld_out + column, ld_out, ahead);
      ahead.next_tile();
    });
  }
}

template <class Pairs>
double spin_bf16(size_t iterations) {
  using V = typename Pairs::V;
  typename V::F acc[V::kSpinning];
  for (auto& a : acc) a = V::zero();
  const typename V::F x = V::set1(0.5f);
  for (size_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (auto& a : acc) Pairs::spin(a, x);
  }
  return static_cast<double>(iterations) * V::kSpinning * V::kLanes * Pairs::kSpun;
}

}  // namespace
}  // namespace embedkit
