// y = x Wᵀ + b of quantized rows and int8 weights, written once for every instruction set. `Dot` is how one
// of them multiplies; each product is exact:
//
//   Dot::V           the vector type: its int32 vectors hold the sums
//   Dot::kInstruction  the instruction, for people
//   Dot::kLevels     the largest activation, 255 at most
//   Dot::kParts      a step of K takes kParts times four bytes of each row
//   Dot::load        those of a row; of one part they are in all lanes
//   Dot::kShift      what load subtracts from the activations; the sums start from kShift Σ w to make up for
//   it Dot::add<kPart>  adds the products of part kPart of a row with a vector of weights, four bytes a
//   column Dot::kRows       rows of the register tile Dot::spin        the same on one register in assembly,
//   for the ceiling; kSpun of them
//
// Where an instruction's own sums have 16 bits, `Dot` is a PairedDot (see paired_int8.h):
//
//   Dot::products    x * w in 16 bits, two sums of two a column
//   Dot::join        adds two of these
//   Dot::Sums        what keeps the sums of a vector, Dot::none() at first
//   Dot::widen       adds products or joined products to them, Dot::kMost times at most (0: any number)
//   Dot::total       the sums in int32
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/aligned.h"
#include "kernels/kernels.h"
#include "kernels/paired_int8.h"
#include "kernels/tile.h"

namespace embedkit {
namespace {

constexpr size_t kPartBytes = 4;  // of a row or a column, in each lane of a vector

/// What instructions have in common that multiply unsigned bytes of rows by signed ones of weights.
template <class Vector>
struct ByteDot {
  using V = Vector;
  static constexpr int kLevels = 255;
  static constexpr int kParts = 1;
  static constexpr int32_t kShift = 0;
  static constexpr int kRows = V::kRows;
  static constexpr int kSpun = 1;
  static constexpr int kHalf = 128;

  static typename V::I load(const uint8_t* a) { return V::broadcast_four(a); }
};

template <class Dot>
concept PairedDot = requires(typename Dot::V::I x) { Dot::join(x, x); };

/// How weights are packed unless in pairs: [panel], for each the int32 starts of its columns (if any), then
/// [k / kGroup][column of the panel][k % kGroup].
template <class Dot>
struct Int8Layout {
  static constexpr size_t kPanel = Dot::V::kPanel;
  static constexpr size_t kGroup = kPartBytes;           // of K in a lane
  static constexpr size_t kStep = kGroup * Dot::kParts;  // of K in a step
  static constexpr size_t kStartBytes = Dot::kShift == 0 ? 0 : kPanel * sizeof(int32_t);

  static size_t steps(size_t in) { return (in + kStep - 1) / kStep; }
  static size_t panel_bytes(size_t in) { return kStartBytes + steps(in) * kStep * kPanel; }
};

template <class Dot>
size_t packed_int8_bytes(size_t out, size_t in) {
  if constexpr (PairedDot<Dot>) return paired::packed_bytes(out, in);
  using Layout = Int8Layout<Dot>;
  return round_up(out, Layout::kPanel) / Layout::kPanel * Layout::panel_bytes(in);
}

template <class Dot>
void pack_int8(const int8_t* weights, size_t out, size_t in, void* packed) {
  if constexpr (PairedDot<Dot>) return paired::pack(weights, out, in, packed);
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
    auto* to = reinterpret_cast<int8_t*>(bytes + Layout::kStartBytes);
    for (size_t k0 = 0; k0 < Layout::steps(in) * Layout::kStep; k0 += kGroup)
      for (size_t n = n0; n < n0 + Layout::kPanel; ++n, to += kGroup) {
        const bool whole = n < out && k0 + kGroup <= in;
        for (size_t k = 0; k < kGroup; ++k)
          to[k] = whole || (n < out && k0 + k < in) ? weights[n * in + k0 + k] : int8_t{0};
      }
  }
}

template <class Dot>
inline const uint8_t* int8_panel(const PackedLinear& linear, size_t p) {
  const auto* packed = static_cast<const uint8_t*>(linear.weights);
  if constexpr (!PairedDot<Dot>) return packed + p * Int8Layout<Dot>::panel_bytes(linear.in_features);
  uint32_t line;
  std::memcpy(&line, packed + p * sizeof(line), sizeof(line));
  return packed + line * kCacheLine;
}

/// How many steps a tile takes; of groups in pairs at least, nearly all have a partner.
template <class Dot>
inline size_t int8_steps(size_t in) {
  return PairedDot<Dot> ? (in + 2 * paired::kGroup - 1) / (2 * paired::kGroup) : Int8Layout<Dot>::steps(in);
}

/// Sums that wait for more: of row r and the columns from n on, 32 bits each, at `at + r * ld + n`.
struct Waiting {
  float* at;  ///< in place of the results
  size_t ld;
};

/// The integer products of R rows with one panel, handed to `finish(row, vector, sums)`.
template <class Dot, int R, class Ahead, class Finish>
inline __attribute__((always_inline)) void int8_products(const uint8_t* a, size_t stride,
                                                         const uint8_t* panel, size_t in, Waiting,
                                                         Ahead ahead, Finish&& finish) {
  using V = typename Dot::V;
  const size_t steps = Int8Layout<Dot>::steps(in);
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
    ahead.step();
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

/// The same from groups of weights in pairs.
template <PairedDot Dot, int R, class Ahead, class Finish>
inline __attribute__((always_inline)) void int8_products(const uint8_t* a, size_t stride,
                                                         const uint8_t* panel, size_t, Waiting waiting,
                                                         Ahead ahead, Finish&& finish) {
  using V = typename Dot::V;
  constexpr int C = V::kVectors;
  static_assert(V::kPanel == paired::kPanel);
  typename Dot::Sums acc[R][C];
  const auto over_sums = [&](auto&& body) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) body(r, c, acc[r][c]);
  };
  const auto clear = [](int, int, typename Dot::Sums& sums)
                         __attribute__((always_inline)) { sums = Dot::none(); };
  paired::PanelHeader header;
  std::memcpy(&header, panel, sizeof(header));
  const auto* offset = reinterpret_cast<const uint16_t*>(panel + sizeof(header));
  size_t pairs = header.pairs, singles = header.singles;
  const uint8_t* b = panel + round_up(sizeof(header) + (2 * pairs + singles) * sizeof(uint16_t), kCacheLine);
  const auto multiply = [&](size_t in_pairs, size_t alone) __attribute__((always_inline)) {
    for (size_t step = 0; step < in_pairs; ++step, offset += 2, b += 2 * C * V::kBytes) {
      ahead.step();
      const uint8_t* a0 = a + offset[0];
      const uint8_t* a1 = a + offset[1];
      typename V::I column[2 * C];
#pragma GCC unroll 4
      for (int c = 0; c < 2 * C; ++c) column[c] = V::load_int(b + static_cast<size_t>(c) * V::kBytes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const typename V::I x0 = Dot::load(a0 + static_cast<size_t>(r) * stride);
        const typename V::I x1 = Dot::load(a1 + static_cast<size_t>(r) * stride);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c)
          Dot::widen(acc[r][c], Dot::join(Dot::products(x0, column[c]), Dot::products(x1, column[C + c])));
      }
    }
    for (size_t step = 0; step < alone; ++step, ++offset, b += C * V::kBytes) {
      ahead.step();
      const uint8_t* a0 = a + offset[0];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const typename V::I x = Dot::load(a0 + static_cast<size_t>(r) * stride);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c)
          Dot::widen(acc[r][c], Dot::products(x, V::load_int(b + static_cast<size_t>(c) * V::kBytes)));
      }
    }
  };
  if constexpr (Dot::kMost == 0) {
    over_sums(clear);
    multiply(pairs, singles);
    over_sums([&](int r, int c, const typename Dot::Sums& sums)
                  __attribute__((always_inline)) { finish(r, c, Dot::total(sums)); });
  } else {
    const auto place = [&](int r, int c) __attribute__((always_inline)) {
      return waiting.at + static_cast<size_t>(r) * waiting.ld + c * V::kLanes;
    };
    const auto read = [&](int r, int c) __attribute__((always_inline)) {
      typename V::I sum;
      std::memcpy(&sum, place(r, c), sizeof(sum));
      return sum;
    };
    const auto write = [&](int r, int c, typename V::I sum)
                           __attribute__((always_inline)) { std::memcpy(place(r, c), &sum, sizeof(sum)); };
    over_sums([&](int r, int c, typename Dot::Sums&)
                  __attribute__((always_inline)) { write(r, c, V::zero_int()); });
    do {
      const size_t in_pairs = std::min(pairs, Dot::kMost), alone = std::min(singles, Dot::kMost - in_pairs);
      over_sums(clear);
      multiply(in_pairs, alone);
      over_sums([&](int r, int c, const typename Dot::Sums& sums) __attribute__((always_inline)) {
        write(r, c, V::add_int(read(r, c), Dot::total(sums)));
      });
      pairs -= in_pairs;
      singles -= alone;
    } while (pairs + singles != 0);
    over_sums([&](int r, int c, typename Dot::Sums&)
                  __attribute__((always_inline)) { finish(r, c, read(r, c)); });
  }
}

/// The vectors that scale the columns of a panel.
template <class V>
struct ColumnFactors {
  typename V::F scale, row_sums, bias;
};

/// x Wᵀ = scale_m (scale_n Σ q w) + lowest_m (scale_n Σ w), plus the bias.
template <class Dot, class Ahead, int R>
__attribute__((noinline)) void int8_tile(const QuantizedRows& x, const uint8_t* panel, size_t in,
                                         const float* scale, const float* row_sums, const float* bias,
                                         float* out, size_t ld_out, Ahead ahead) {
  using V = typename Dot::V;
  const auto load = [&](int c) __attribute__((always_inline)) {
    const auto column = static_cast<size_t>(c) * V::kLanes;
    return ColumnFactors<V>{V::load(scale + column), V::load(row_sums + column), V::load(bias + column)};
  };
  // Where registers are few the vectors of the columns are loaded again for each row.
  constexpr bool kKept = R * V::kVectors + 5 <= V::kRegisters;
  ColumnFactors<V> kept{};
  int8_products<Dot, R>(x.data, x.stride, panel, in, Waiting{out, ld_out}, ahead,
                        [&](int r, int c, typename V::I sums) __attribute__((always_inline)) {
                          if (kKept && r == 0) kept = load(c);
                          const ColumnFactors<V> column = kKept ? kept : load(c);
                          const auto start = V::fma(V::set1(x.lowest[r]), column.row_sums, column.bias);
                          const auto scaled = V::mul(V::to_float(sums), V::set1(x.scale[r]));
                          V::store(out + static_cast<size_t>(r) * ld_out + c * V::kLanes,
                                   V::fma(scaled, column.scale, start));
                        });
}

template <class Dot>
void linear_int8(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                 size_t panel_end, float* out, size_t ld_out) {
  using Layout = Int8Layout<Dot>;
  using Ahead = AheadOf<typename Dot::V>;
  static constexpr auto tiles = []<int... I>(std::integer_sequence<int, I...>) {
    struct Table {
      decltype(&int8_tile<Dot, Ahead, 1>) of[sizeof...(I)];
    };
    return Table{{&int8_tile<Dot, Ahead, I + 1>...}};
  }(std::make_integer_sequence<int, Dot::kRows>{});
  for (size_t p = panel_begin; p < panel_end; ++p) {
    const size_t column = p * Layout::kPanel;
    const uint8_t* panel = int8_panel<Dot>(linear, p);
    const uint8_t* next = int8_panel<Dot>(linear, p + 1 < panel_end ? p + 1 : p);
    Ahead ahead(next, Layout::panel_bytes(linear.in_features), tiles_of(rows, Dot::kRows),
                int8_steps<Dot>(linear.in_features));
    over_tiles(rows, Dot::kRows, [&](size_t row, size_t height) {
      tiles.of[height - 1](x.from(row), panel, linear.in_features, linear.scale + column,
                           linear.row_sums + column, linear.bias + column, out + row * ld_out + column,
                           ld_out, ahead);
      ahead.next_tile();
    });
  }
}

}  // namespace
}  // namespace embedkit
