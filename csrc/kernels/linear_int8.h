// y = x Wᵀ + b of quantized rows and int8 weights, written once for every instruction set. `Dot` is how one
// of them multiplies; each product is exact:
//
//   Dot::V           the vector type: its int32 vectors hold the sums
//   Dot::kInstruction  the instruction, for people
//   Dot::Weight      of packed weights: int8_t or int16_t
//   Dot::Activation  of quantized rows: uint8_t or uint16_t
//   Dot::kParts      a step of K takes kParts times four bytes of each row
//   Dot::load        those of a row; of one part they are in all lanes
//   Dot::kShift      what load subtracts from the activations; the sums start from kShift Σ w to make up for
//   it Dot::add<kPart>  adds the products of part kPart of a row with a vector of weights, four bytes a
//   column Dot::spin        the same on one register in assembly, for the ceiling
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/aligned.h"
#include "kernels/kernels.h"
#include "kernels/tile.h"

namespace embedkit {
namespace {

constexpr size_t kPartBytes = 4;  // of a row or a column, in each lane of a vector

/// What instructions have in common that multiply unsigned bytes of rows by signed ones of weights.
template <class Vector>
struct ByteDot {
  using V = Vector;
  using Weight = int8_t;
  using Activation = uint8_t;
  static constexpr int kParts = 1;
  static constexpr int32_t kShift = 0;

  static typename V::I load(const uint8_t* a) { return V::broadcast_four(a); }
};

/// How weights are packed: [panel], for each the int32 starts of its columns (if any), then
/// [k / kGroup][column of the panel][k % kGroup].
template <class Dot>
struct Int8Layout {
  using Weight = typename Dot::Weight;
  static constexpr size_t kPanel = Dot::V::kPanel;
  static constexpr size_t kGroup = kPartBytes / sizeof(typename Dot::Activation);  // of K in a lane
  static constexpr size_t kStep = kGroup * Dot::kParts;                            // of K in a step
  static constexpr size_t kStartBytes = Dot::kShift == 0 ? 0 : kPanel * sizeof(int32_t);

  static size_t steps(size_t in) { return (in + kStep - 1) / kStep; }
  static size_t panel_bytes(size_t in) { return kStartBytes + steps(in) * kStep * kPanel * sizeof(Weight); }
};

template <class Dot>
size_t packed_int8_bytes(size_t out, size_t in) {
  using Layout = Int8Layout<Dot>;
  return round_up(out, Layout::kPanel) / Layout::kPanel * Layout::panel_bytes(in);
}

template <class Dot>
void pack_int8(const int8_t* weights, size_t out, size_t in, void* packed) {
  using Layout = Int8Layout<Dot>;
  constexpr size_t kGroup = Layout::kGroup;
  auto* bytes = static_cast<uint8_t*>(packed);
  for (size_t n0 = 0; n0 < out; n0 += Layout::kPanel, bytes += Layout::panel_bytes(in)) {
    if constexpr (Dot::kShift != 0) {
      int32_t start[Layout::kPanel] = {};
      for (size_t n = n0; n < std::min(out, n0 + Layout::kPanel); ++n)
        for (size_t k = 0; k < in; ++k) start[n - n0] += Dot::kShift * weights[n * in + k];
      std::memcpy(bytes, start, sizeof(start));
    }
    auto* to = reinterpret_cast<typename Layout::Weight*>(bytes + Layout::kStartBytes);
    for (size_t k0 = 0; k0 < Layout::steps(in) * Layout::kStep; k0 += kGroup)
      for (size_t n = n0; n < n0 + Layout::kPanel; ++n, to += kGroup) {
        const bool whole = n < out && k0 + kGroup <= in;
        for (size_t k = 0; k < kGroup; ++k)
          to[k] = whole || (n < out && k0 + k < in) ? weights[n * in + k0 + k] : int8_t{0};
      }
  }
}

/// The integer products of R rows with one panel, handed to `finish(row, vector, sums)`.
template <class Dot, int R, class Finish>
inline __attribute__((always_inline)) void int8_products(const uint8_t* a, size_t stride,
                                                         const uint8_t* panel, size_t steps,
                                                         Finish&& finish) {
  using V = typename Dot::V;
  constexpr int C = V::kVectors;
  typename V::I acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
      acc[r][c] = Dot::kShift == 0 ? V::zero_int() : V::load_int(panel + static_cast<size_t>(c) * V::kBytes);
  const uint8_t* b = panel + Int8Layout<Dot>::kStartBytes;
  for (size_t step = 0; step < steps;
       ++step, a += Dot::kParts * kPartBytes, b += Dot::kParts * C * V::kBytes) {
    const auto load = [&](int r) __attribute__((always_inline)) {
      return Dot::load(a + static_cast<size_t>(r) * stride);
    };
    typename V::I kept[Dot::kParts > 1 ? R : 1];
    if constexpr (Dot::kParts > 1) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) kept[r] = load(r);
    }
    const auto add = [&]<int kPart>(std::integral_constant<int, kPart>) __attribute__((always_inline)) {
      typename V::I column[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) column[c] = V::load_int(b + static_cast<size_t>(kPart * C + c) * V::kBytes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const typename V::I x = Dot::kParts > 1 ? kept[r] : load(r);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) acc[r][c] = Dot::template add<kPart>(acc[r][c], x, column[c]);
      }
      // Loads of weights stay in their part: hoisted above each other, they would push sums out of registers.
      if constexpr (Dot::kParts > 1) asm volatile("" ::: "memory");
    };
    [&]<int... kPart>(std::integer_sequence<int, kPart...>) __attribute__((always_inline)) {
      (add(std::integral_constant<int, kPart>{}), ...);
    }(std::make_integer_sequence<int, Dot::kParts>{});
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c)
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) finish(r, c, acc[r][c]);
}

/// The vectors that scale the columns of a panel.
template <class V>
struct ColumnFactors {
  typename V::F scale, row_sums, bias;
};

/// x Wᵀ = scale_m (scale_n Σ q w) + lowest_m (scale_n Σ w), plus the bias.
template <class Dot, int R>
__attribute__((noinline)) void int8_tile(const QuantizedRows& x, const uint8_t* panel, size_t steps,
                                         const float* scale, const float* row_sums, const float* bias,
                                         float* out, size_t ld_out) {
  using V = typename Dot::V;
  const auto load = [&](int c) __attribute__((always_inline)) {
    const auto column = static_cast<size_t>(c) * V::kLanes;
    return ColumnFactors<V>{V::load(scale + column), V::load(row_sums + column), V::load(bias + column)};
  };
  // Where registers are few the vectors of the columns are loaded again for each row.
  constexpr bool kKept = R * V::kVectors + 5 <= V::kRegisters;
  ColumnFactors<V> kept{};
  int8_products<Dot, R>(
      x.data, x.stride, panel, steps, [&](int r, int c, typename V::I sums) __attribute__((always_inline)) {
        if (kKept && r == 0) kept = load(c);
        const ColumnFactors<V> column = kKept ? kept : load(c);
        const auto start = V::fma(V::set1(x.lowest[r]), column.row_sums, column.bias);
        const auto scaled = V::mul(V::to_float(sums), V::set1(x.scale[r]));
        V::store(out + static_cast<size_t>(r) * ld_out + c * V::kLanes, V::fma(scaled, column.scale, start));
      });
}

template <class Dot>
void linear_int8(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                 size_t panel_end, float* out, size_t ld_out) {
  using Layout = Int8Layout<Dot>;
  static constexpr auto tiles = []<int... I>(std::integer_sequence<int, I...>) {
    struct Table {
      decltype(&int8_tile<Dot, 1>) of[sizeof...(I)];
    };
    return Table{{&int8_tile<Dot, I + 1>...}};
  }(std::make_integer_sequence<int, Dot::V::kRows>{});
  const auto* weights = static_cast<const uint8_t*>(linear.weights);
  for (size_t p = panel_begin; p < panel_end; ++p) {
    const size_t column = p * Layout::kPanel;
    over_tiles(rows, Dot::V::kRows, [&](size_t row, size_t height) {
      tiles.of[height - 1](x.from(row), weights + p * Layout::panel_bytes(linear.in_features),
                           Layout::steps(linear.in_features), linear.scale + column, linear.row_sums + column,
                           linear.bias + column, out + row * ld_out + column, ld_out);
    });
  }
}

template <class Dot>
void products_int8(const QuantizedRows& x, size_t rows, const PackedLinear& linear, int32_t* out,
                   size_t ld_out) {
  using V = typename Dot::V;
  using Layout = Int8Layout<Dot>;
  const auto* panel = static_cast<const uint8_t*>(linear.weights);
  for (size_t column = 0; column < linear.out_features;
       column += Layout::kPanel, panel += Layout::panel_bytes(linear.in_features))
    for (size_t row = 0; row < rows; ++row)
      int8_products<Dot, 1>(x.data + row * x.stride, x.stride, panel, Layout::steps(linear.in_features),
                            [&](int, int c, typename V::I sums) {
                              int32_t lanes[V::kLanes];
                              std::memcpy(lanes, &sums, sizeof(lanes));
                              const size_t first = column + static_cast<size_t>(c) * V::kLanes;
                              for (size_t n = first; n < std::min(first + V::kLanes, linear.out_features);
                                   ++n)
                                out[row * ld_out + n] = lanes[n - first];
                            });
}

}  // namespace
}  // namespace embedkit
