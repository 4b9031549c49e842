// Passes over rows: quantize, activation, layer norm, each fused with the quantization of its result while
// the row is in the first-level cache. Written once for every vector type.
#pragma once

#include <cstring>
#include <limits>

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
  size_t end = 0;
  over_columns<V>(
      columns,
      [&](size_t i) {
        V::store_quantized(q + i, V::mul(V::sub(V::load(x + i), shift), factor));
        end = i + V::kLanes;
      },
      [&](size_t i, size_t n) {
        uint8_t tail[V::kLanes];
        V::store_quantized(tail, V::mul(V::sub(V::first_or(V::load_first(x + i, n), n, low), shift), factor));
        std::memcpy(q + i, tail, n);
        end = i + n;
      });
  std::memset(q + end, 0, out.stride - end);
}

/// Rounds a row to bfloat16.
template <class V>
inline void round_row(const float* x, size_t columns, const QuantizedRows& out, size_t row) {
  auto* to = reinterpret_cast<uint16_t*>(out.data + row * out.stride);
  over_columns<V>(
      columns, [&](size_t i) { V::store_bf16(to + i, V::load(x + i)); },
      [&](size_t i, size_t n) {
        uint16_t tail[V::kLanes];
        V::store_bf16(tail, V::load_first(x + i, n));
        std::memcpy(to + i, tail, n * sizeof(uint16_t));
      });
  std::memset(to + columns, 0, out.stride - columns * sizeof(uint16_t));
}

template <class V, int kLevels>
void quantize_rows(const float* x, size_t ld, size_t rows, size_t columns, const QuantizedRows& out) {
  if (out.form == QuantizedRows::Form::kBf16) {
    for (size_t r = 0; r < rows; ++r) round_row<V>(x + r * ld, columns, out, r);
    return;
  }
  for (size_t r = 0; r < rows; ++r, x += ld) {
    Range<V> range;
    over_columns<V>(
        columns, [&](size_t i) { range.add(V::load(x + i)); },
        [&](size_t i, size_t n) { range.add_first(V::load_first(x + i, n), n); });
    quantize_row<V, kLevels>(x, columns, range, out, r);
  }
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
    auto* to = reinterpret_cast<uint16_t*>(quantized.data + r * quantized.stride);
    over_columns<V>(
        columns, [&](size_t i) { V::store_bf16(to + i, value(i)); },
        [&](size_t i, size_t n) {
          uint16_t tail[V::kLanes];
          V::store_bf16(tail, first(i, n));
          std::memcpy(to + i, tail, n * sizeof(uint16_t));
        });
    std::memset(to + columns, 0, quantized.stride - columns * sizeof(uint16_t));
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

/// Two passes for mean and variance: one pass would cancel.
template <class V, int kLevels>
void norm(const NormTask& task) {
  // In locals: a store of floats may change what `task` refers to, for all the compiler knows.
  const size_t columns = task.columns;
  const float *gamma = task.gamma, *beta = task.beta;
  const bool rms = task.rms;
  const float inverse_columns = 1.0f / static_cast<float>(columns);
  for (size_t r = 0; r < task.rows; ++r) {
    float* x = task.x + r * task.ld;
    float* out = task.out + r * task.ld_out;
    auto sum = V::zero();
    const float* added = task.y == nullptr ? nullptr : task.y + r * task.ld_y;
    if (added != nullptr || !rms)
      over_columns<V>(
          columns,
          [&](size_t i) {
            auto v = V::load(x + i);
            if (added != nullptr) V::store(x + i, v = V::add(v, V::load(added + i)));
            sum = V::add(sum, v);
          },
          [&](size_t i, size_t n) {
            auto v = V::load_first(x + i, n);
            if (added != nullptr) V::store_first(x + i, v = V::add(v, V::load_first(added + i, n)), n);
            sum = V::add(sum, v);
          });
    const float mean_value = rms ? 0.0f : V::sum(sum) * inverse_columns;
    const auto mean = V::set1(mean_value);
    auto squares = V::zero();
    over_columns<V>(
        columns,
        [&](size_t i) {
          const auto d = V::sub(V::load(x + i), mean);
          squares = V::fma(d, d, squares);
        },
        [&](size_t i, size_t n) {
          const auto d = V::sub(V::first_or(V::load_first(x + i, n), n, mean_value), mean);
          squares = V::fma(d, d, squares);
        });
    const auto inverse = V::set1(1.0f / __builtin_sqrtf(V::sum(squares) * inverse_columns + task.epsilon));
    Range<V> range;
    over_columns<V>(
        columns,
        [&](size_t i) {
          const auto d = V::mul(V::sub(V::load(x + i), mean), inverse);
          const auto g = V::load(gamma + i);
          const auto v = beta == nullptr ? V::mul(d, g) : V::fma(d, g, V::load(beta + i));
          V::store(out + i, v);
          range.add(v);
        },
        [&](size_t i, size_t n) {
          const auto d = V::mul(V::sub(V::load_first(x + i, n), mean), inverse);
          const auto g = V::load_first(gamma + i, n);
          const auto v = beta == nullptr ? V::mul(d, g) : V::fma(d, g, V::load_first(beta + i, n));
          V::store_first(out + i, v, n);
          range.add_first(v, n);
        });
    if (task.quantized.data == nullptr) continue;
    if (task.quantized.form == QuantizedRows::Form::kBf16) {
      round_row<V>(out, columns, task.quantized, r);
    } else {
      quantize_row<V, kLevels>(out, columns, range, task.quantized, r);
    }
  }
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

template <class V>
void add_scaled_int8(float* out, const int8_t* row, float scale, size_t columns) {
  const auto factor = V::set1(scale);
  size_t i = 0;
  for (; i + V::kLanes <= columns; i += V::kLanes)
    V::store(out + i, V::fma(V::load_int8(row + i), factor, V::load(out + i)));
  for (; i < columns; ++i) out[i] = __builtin_fmaf(static_cast<float>(row[i]), scale, out[i]);
}

}  // namespace
}  // namespace embedkit
