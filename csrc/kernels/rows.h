// Passes over rows: quantize, activation, layer norm, each fused with the quantization of its result while
// the row is in the first-level cache. Written once for every vector type.
#pragma once

#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/elementwise.h"
#include "kernels/tile.h"

namespace embedkit {
namespace {

template <class V>
struct Range {
  typename V::F low = V::set1(std::numeric_limits<float>::max());
  typename V::F high = V::set1(std::numeric_limits<float>::lowest());

  void add(typename V::F x) {
    low = V::min(low, x);
    high = V::max(high, x);
  }
  void add_first(typename V::F x, size_t n) {
    low = V::min(low, V::first_or(x, n, std::numeric_limits<float>::max()));
    high = V::max(high, V::first_or(x, n, std::numeric_limits<float>::lowest()));
  }
};

/// Zeros from byte `end` of a row to its stride: few bytes, for which a call of memset takes longer.
template <class V>
inline void fill_rest(uint8_t* row, size_t end, size_t stride) {
  for (; end + V::kBytes <= stride; end += V::kBytes) V::store_zero(row + end);
  if (end < stride) std::memset(row + end, 0, stride - end);
}

/// q = round((x - low) * kLevels / (high - low)); a constant row is all zeros with scale 0.
template <class V, int kLevels>
inline void quantize_row(const float* x, size_t columns, const Range<V>& range, const QuantizedRows& out,
                         size_t row) {
  const float low = V::lowest(range.low);
  const float width = V::highest(range.high) - low;
  constexpr float kLargest = kLevels;
  const float inverse = width > 0 ? kLargest / width : 0.0f;
  out.scale[row] = width > 0 ? width / kLargest : 0.0f;
  out.lowest[row] = low;
  uint8_t* q = out.data + row * out.stride;
  const typename V::F shift = V::set1(low);
  const typename V::F factor = V::set1(inverse);
  const auto level = [&](typename V::F v) { return V::mul(V::sub(v, shift), factor); };
  constexpr size_t kBlock = 4 * size_t{V::kLanes};
  size_t i = 0;
  for (; i + kBlock <= columns; i += kBlock) {
    const float* from = x + i;
    V::store_quantized(q + i, level(V::load(from)), level(V::load(from + V::kLanes)),
                       level(V::load(from + 2 * V::kLanes)), level(V::load(from + 3 * V::kLanes)));
  }
  over_columns<V>(
      columns - i, [&](size_t j) { V::store_quantized(q + i + j, level(V::load(x + i + j))); },
      [&](size_t j, size_t n) {
        uint8_t tail[V::kLanes];
        V::store_quantized(tail, level(V::first_or(V::load_first(x + i + j, n), n, low)));
        std::memcpy(q + i + j, tail, n);
      });
  fill_rest<V>(q, columns, out.stride);
}

/// The first n < kLanes of x as bfloat16.
template <class V>
inline void store_first_bf16(uint16_t* to, typename V::F x, size_t n) {
  uint16_t tail[V::kLanes];
  V::store_bf16(tail, x);
  std::memcpy(to, tail, n * sizeof(uint16_t));
}

/// Rounds a row to bfloat16.
template <class V>
inline void round_row(const float* x, size_t columns, const QuantizedRows& out, size_t row) {
  auto* to = reinterpret_cast<uint16_t*>(out.data + row * out.stride);
  over_columns<V>(
      columns, [&](size_t i) { V::store_bf16(to + i, V::load(x + i)); },
      [&](size_t i, size_t n) { store_first_bf16<V>(to + i, V::load_first(x + i, n), n); });
  fill_rest<V>(out.data + row * out.stride, columns * sizeof(uint16_t), out.stride);
}

/// Calls body(first row, number of rows) with numbers known when compiling. Each sum over a row waits for the
/// one before it, those of several rows do not wait for one another.
template <class Body>
inline void side_by_side(size_t rows, Body&& body) {
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) body(r, std::integral_constant<int, 4>{});
  for (; r < rows; ++r) body(r, std::integral_constant<int, 1>{});
}

template <class V, int kLevels>
void quantize_rows(const float* x, size_t ld, size_t rows, size_t columns, const QuantizedRows& out) {
  if (out.form == QuantizedRows::Form::kBf16) {
    for (size_t r = 0; r < rows; ++r) round_row<V>(x + r * ld, columns, out, r);
    return;
  }
  side_by_side(rows, [&](size_t first, auto together) {
    constexpr int R = together;
    const float* from = x + first * ld;
    Range<V> ranges[R];
    over_columns<V>(
        columns,
        [&](size_t i) {
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) ranges[r].add(V::load(from + static_cast<size_t>(r) * ld + i));
        },
        [&](size_t i, size_t n) {
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r)
            ranges[r].add_first(V::load_first(from + static_cast<size_t>(r) * ld + i, n), n);
        });
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
      quantize_row<V, kLevels>(from + static_cast<size_t>(r) * ld, columns, ranges[r], out,
                               first + static_cast<size_t>(r));
  });
}

/// What rows of results become.
enum class Form { kFloats, kInt8, kBf16 };

inline Form form_of(const QuantizedRows& quantized) {
  if (quantized.data == nullptr) return Form::kFloats;
  return quantized.form == QuantizedRows::Form::kInt8 ? Form::kInt8 : Form::kBf16;
}

/// Row r of `columns` results, value(i) of those from i on and first(i, n) of the last n. Quantized, the
/// floats in x are scratch.
template <class V, int kLevels, Form kForm, class Value, class First>
inline void write_row(float* x, size_t columns, const QuantizedRows& quantized, size_t r, Value&& value,
                      First&& first) {
  if constexpr (kForm == Form::kBf16) {
    uint8_t* row = quantized.data + r * quantized.stride;
    auto* to = reinterpret_cast<uint16_t*>(row);
    over_columns<V>(
        columns, [&](size_t i) { V::store_bf16(to + i, value(i)); },
        [&](size_t i, size_t n) { store_first_bf16<V>(to + i, first(i, n), n); });
    fill_rest<V>(row, columns * sizeof(uint16_t), quantized.stride);
  } else {
    Range<V> range;
    over_columns<V>(
        columns,
        [&](size_t i) {
          const auto y = value(i);
          V::store(x + i, y);
          if constexpr (kForm == Form::kInt8) range.add(y);
        },
        [&](size_t i, size_t n) {
          const auto y = first(i, n);
          V::store_first(x + i, y, n);
          if constexpr (kForm == Form::kInt8) range.add_first(y, n);
        });
    if constexpr (kForm == Form::kInt8) quantize_row<V, kLevels>(x, columns, range, quantized, r);
  }
}

template <class V, int kLevels, Activation kActivation, Form kForm>
void activate_rows(float* x, size_t ld, size_t rows, size_t columns, const QuantizedRows& quantized) {
  constexpr bool kCoarse = kForm != Form::kFloats;
  for (size_t r = 0; r < rows; ++r, x += ld)
    write_row<V, kLevels, kForm>(
        x, columns, quantized, r,
        [&](size_t i) { return activation<V, kActivation, kCoarse>(V::load(x + i)); },
        [&](size_t i, size_t n) { return activation<V, kActivation, kCoarse>(V::load_first(x + i, n)); });
}

template <class V, int kLevels, Activation kActivation>
void activate_as(float* x, size_t ld, size_t rows, size_t columns, const QuantizedRows& quantized) {
  switch (form_of(quantized)) {
    case Form::kFloats:
      return activate_rows<V, kLevels, kActivation, Form::kFloats>(x, ld, rows, columns, quantized);
    case Form::kInt8:
      return activate_rows<V, kLevels, kActivation, Form::kInt8>(x, ld, rows, columns, quantized);
    case Form::kBf16:
      return activate_rows<V, kLevels, kActivation, Form::kBf16>(x, ld, rows, columns, quantized);
  }
}

template <class V, int kLevels>
void activate(Activation activation, float* x, size_t ld, size_t rows, size_t columns,
              const QuantizedRows& quantized) {
  switch (activation) {
    case Activation::kIdentity:
      return activate_as<V, kLevels, Activation::kIdentity>(x, ld, rows, columns, quantized);
    case Activation::kGelu:
      return activate_as<V, kLevels, Activation::kGelu>(x, ld, rows, columns, quantized);
    case Activation::kGeluTanh:
      return activate_as<V, kLevels, Activation::kGeluTanh>(x, ld, rows, columns, quantized);
    case Activation::kRelu:
      return activate_as<V, kLevels, Activation::kRelu>(x, ld, rows, columns, quantized);
    case Activation::kTanh:
      return activate_as<V, kLevels, Activation::kTanh>(x, ld, rows, columns, quantized);
    case Activation::kSigmoid:
      return activate_as<V, kLevels, Activation::kSigmoid>(x, ld, rows, columns, quantized);
    case Activation::kSilu:
      return activate_as<V, kLevels, Activation::kSilu>(x, ld, rows, columns, quantized);
  }
}

template <class V, int kLevels, Activation kActivation, Form kForm>
void gate_rows(float* x, size_t ld, size_t rows, size_t columns, size_t activated, size_t factor,
               const QuantizedRows& quantized) {
  constexpr bool kCoarse = kForm != Form::kFloats;
  for (size_t r = 0; r < rows; ++r, x += ld)
    write_row<V, kLevels, kForm>(
        x, columns, quantized, r,
        [&](size_t i) {
          return V::mul(activation<V, kActivation, kCoarse>(V::load(x + activated + i)),
                        V::load(x + factor + i));
        },
        [&](size_t i, size_t n) {
          return V::mul(activation<V, kActivation, kCoarse>(V::load_first(x + activated + i, n)),
                        V::load_first(x + factor + i, n));
        });
}

template <class V, int kLevels, Activation kActivation>
void gate_as(float* x, size_t ld, size_t rows, size_t columns, size_t activated, size_t factor,
             const QuantizedRows& quantized) {
  switch (form_of(quantized)) {
    case Form::kFloats:
      return gate_rows<V, kLevels, kActivation, Form::kFloats>(x, ld, rows, columns, activated, factor,
                                                               quantized);
    case Form::kInt8:
      return gate_rows<V, kLevels, kActivation, Form::kInt8>(x, ld, rows, columns, activated, factor,
                                                             quantized);
    case Form::kBf16:
      return gate_rows<V, kLevels, kActivation, Form::kBf16>(x, ld, rows, columns, activated, factor,
                                                             quantized);
  }
}

template <class V, int kLevels>
void activate_gated(Activation activation, float* x, size_t ld, size_t rows, size_t columns, size_t activated,
                    size_t factor, const QuantizedRows& quantized) {
  const auto run = [&](auto gate) { gate(x, ld, rows, columns, activated, factor, quantized); };
  switch (activation) {
    case Activation::kGelu:
      return run(gate_as<V, kLevels, Activation::kGelu>);
    case Activation::kGeluTanh:
      return run(gate_as<V, kLevels, Activation::kGeluTanh>);
    case Activation::kRelu:
      return run(gate_as<V, kLevels, Activation::kRelu>);
    case Activation::kTanh:
      return run(gate_as<V, kLevels, Activation::kTanh>);
    case Activation::kSigmoid:
      return run(gate_as<V, kLevels, Activation::kSigmoid>);
    case Activation::kSilu:
      return run(gate_as<V, kLevels, Activation::kSilu>);
    case Activation::kIdentity:
      return run(gate_as<V, kLevels, Activation::kIdentity>);
  }
}

/// R rows.
template <class T, int R>
struct RowGroup {
  T* rows[R];

  RowGroup(T* first, size_t ld) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) rows[r] = first + static_cast<size_t>(r) * ld;
  }
  T* operator[](int r) const { return rows[r]; }
};

/// x += y, and the sum of each row.
template <class V, int R>
inline void add_and_sum(RowGroup<float, R> x, RowGroup<const float, R> y, size_t columns,
                        typename V::F (&sum)[R]) {
  over_columns<V>(
      columns,
      [&](size_t i) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const auto v = V::add(V::load(x[r] + i), V::load(y[r] + i));
          V::store(x[r] + i, v);
          sum[r] = V::add(sum[r], v);
        }
      },
      [&](size_t i, size_t n) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const auto v = V::add(V::load_first(x[r] + i, n), V::load_first(y[r] + i, n));
          V::store_first(x[r] + i, v, n);
          sum[r] = V::add(sum[r], v);
        }
      });
}

template <class V, int R>
inline void sum_of_rows(RowGroup<float, R> x, size_t columns, typename V::F (&sum)[R]) {
  over_columns<V>(
      columns,
      [&](size_t i) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sum[r] = V::add(sum[r], V::load(x[r] + i));
      },
      [&](size_t i, size_t n) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sum[r] = V::add(sum[r], V::load_first(x[r] + i, n));
      });
}

/// out = x - mean, and the sum of its squares.
template <class V, int R>
inline void center(RowGroup<float, R> x, const float (&mean)[R], size_t columns, RowGroup<float, R> out,
                   typename V::F (&squares)[R]) {
  over_columns<V>(
      columns,
      [&](size_t i) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const auto d = V::sub(V::load(x[r] + i), V::set1(mean[r]));
          V::store(out[r] + i, d);
          squares[r] = V::fma(d, d, squares[r]);
        }
      },
      [&](size_t i, size_t n) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const auto d = V::sub(V::first_or(V::load_first(x[r] + i, n), n, mean[r]), V::set1(mean[r]));
          V::store_first(out[r] + i, d, n);
          squares[r] = V::fma(d, d, squares[r]);
        }
      });
}

/// What a norm makes besides floats.
enum class Beside { kNothing, kInt8, kBf16 };

/// out = out * inverse * gamma + beta, and its form beside it.
template <class V, int kLevels, Beside kBeside, int R>
inline void scale_rows(RowGroup<float, R> out, const float (&inverse)[R], const float* gamma,
                       const float* beta, size_t columns, const QuantizedRows& quantized) {
  Range<V> ranges[R];
  const RowGroup<uint8_t, R> beside(quantized.data, quantized.stride);
  const auto bf16 = [&](int r) { return reinterpret_cast<uint16_t*>(beside[r]); };
  over_columns<V>(
      columns,
      [&](size_t i) {
        const auto g = V::load(gamma + i);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const auto d = V::mul(V::load(out[r] + i), V::set1(inverse[r]));
          const auto v = beta == nullptr ? V::mul(d, g) : V::fma(d, g, V::load(beta + i));
          V::store(out[r] + i, v);
          if constexpr (kBeside == Beside::kInt8) ranges[r].add(v);
          if constexpr (kBeside == Beside::kBf16) V::store_bf16(bf16(r) + i, v);
        }
      },
      [&](size_t i, size_t n) {
        const auto g = V::load_first(gamma + i, n);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const auto d = V::mul(V::load_first(out[r] + i, n), V::set1(inverse[r]));
          const auto v = beta == nullptr ? V::mul(d, g) : V::fma(d, g, V::load_first(beta + i, n));
          V::store_first(out[r] + i, v, n);
          if constexpr (kBeside == Beside::kInt8) ranges[r].add_first(v, n);
          if constexpr (kBeside == Beside::kBf16) store_first_bf16<V>(bf16(r) + i, v, n);
        }
      });
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    if constexpr (kBeside == Beside::kInt8)
      quantize_row<V, kLevels>(out[r], columns, ranges[r], quantized, static_cast<size_t>(r));
    if constexpr (kBeside == Beside::kBf16)
      fill_rest<V>(beside[r], columns * sizeof(uint16_t), quantized.stride);
  }
}

/// R rows from `first` on. Two passes for mean and variance: one pass would cancel.
template <class V, int kLevels, Beside kBeside, int R>
void norm_together(const NormTask& task, size_t first) {
  const size_t columns = task.columns;
  const float inverse_columns = 1.0f / static_cast<float>(columns);
  const RowGroup<float, R> x(task.x + first * task.ld, task.ld);
  const RowGroup<float, R> out(task.out + first * task.ld_out, task.ld_out);
  typename V::F sum[R], squares[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) sum[r] = squares[r] = V::zero();
  if (task.y != nullptr) {
    add_and_sum<V, R>(x, {task.y + first * task.ld_y, task.ld_y}, columns, sum);
  } else if (!task.rms) {
    sum_of_rows<V, R>(x, columns, sum);
  }
  float mean[R], inverse[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) mean[r] = task.rms ? 0.0f : V::sum(sum[r]) * inverse_columns;
  center<V, R>(x, mean, columns, out, squares);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
    inverse[r] = 1.0f / __builtin_sqrtf(V::sum(squares[r]) * inverse_columns + task.epsilon);
  const QuantizedRows quantized = kBeside == Beside::kNothing ? QuantizedRows{} : task.quantized.from(first);
  scale_rows<V, kLevels, kBeside, R>(out, inverse, task.gamma, task.beta, columns, quantized);
}

template <class V, int kLevels>
void norm(const NormTask& task) {
  side_by_side(task.rows, [&](size_t first, auto together) {
    if (task.quantized.data == nullptr) {
      norm_together<V, kLevels, Beside::kNothing, together>(task, first);
    } else if (task.quantized.form == QuantizedRows::Form::kBf16) {
      norm_together<V, kLevels, Beside::kBf16, together>(task, first);
    } else {
      norm_together<V, kLevels, Beside::kInt8, together>(task, first);
    }
  });
}

template <class V>
void rotate(float* x, size_t ld, size_t rows, size_t head_size, const float* table) {
  for (size_t r = 0; r < rows; ++r, x += ld, table += 2 * head_size) {
    const float* sine = table + head_size;
    over_columns<V>(
        head_size,
        [&](size_t i) {
          const auto v = V::load(x + i);
          const auto turned = V::mul(V::swap_pairs(v), V::load(sine + i));
          V::store(x + i, V::fma(v, V::load(table + i), turned));
        },
        [&](size_t i, size_t n) {
          const auto v = V::load_first(x + i, n);
          const auto turned = V::mul(V::swap_pairs(v), V::load_first(sine + i, n));
          V::store_first(x + i, V::fma(v, V::load_first(table + i, n), turned), n);
        });
  }
}

}  // namespace
}  // namespace embedkit
