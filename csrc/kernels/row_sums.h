// Sums of rows of a table, written once for every vector type.
#pragma once

#include <type_traits>

#include "kernels/float16.h"
#include "kernels/kernels.h"

namespace embedkit {
namespace {

/// How rows of a type are read: `V::kLanes` values from one place, and one value.
template <class V, RowType kType>
struct RowReader;

template <class V>
struct RowReader<V, RowType::kFloat32> {
  using Value = float;
  static typename V::F load(const Value* p) { return V::load(p); }
  static float one(Value x) { return x; }
};

template <class V>
struct RowReader<V, RowType::kFloat16> {
  using Value = uint16_t;
  static typename V::F load(const Value* p) { return V::load_half(p); }
  static float one(Value x) { return from_half(x); }
};

template <class V>
struct RowReader<V, RowType::kBfloat16> {
  using Value = uint16_t;
  static typename V::F load(const Value* p) { return V::load_bf16(p); }
  static float one(Value x) { return from_bf16(x); }
};

template <class V>
struct RowReader<V, RowType::kInt8> {
  using Value = int8_t;
  static typename V::F load(const Value* p) { return V::load_int8(p); }
  static float one(Value x) { return static_cast<float>(x); }
};

/// `kBlock` vectors of columns in registers, over all rows.
template <class V, class Reader, int kBlock>
void sum_block(const RowSum& task, size_t column) {
  typename V::F sums[kBlock];
  for (auto& sum : sums) sum = V::zero();
  const auto* table = static_cast<const typename Reader::Value*>(task.table) + column;
  for (size_t i = 0; i < task.count; ++i) {
    const auto* row = table + static_cast<size_t>(task.rows[i]) * task.columns;
    const auto factor = V::set1(task.factors == nullptr ? 1.0f : task.factors[i]);
    for (int b = 0; b < kBlock; ++b)
      sums[b] = V::fma(Reader::load(row + static_cast<size_t>(b) * V::kLanes), factor, sums[b]);
  }
  for (int b = 0; b < kBlock; ++b) V::store(task.out + column + static_cast<size_t>(b) * V::kLanes, sums[b]);
}

template <class V, RowType kType>
void sum_rows_of(const RowSum& task) {
  using Reader = RowReader<V, kType>;
  constexpr int kBlock = 8;
  constexpr size_t kColumns = size_t{kBlock} * V::kLanes;
  size_t column = 0;
  for (; column + kColumns <= task.columns; column += kColumns) sum_block<V, Reader, kBlock>(task, column);
  for (; column + V::kLanes <= task.columns; column += V::kLanes) sum_block<V, Reader, 1>(task, column);
  for (; column < task.columns; ++column) {
    float sum = 0;
    for (size_t i = 0; i < task.count; ++i) {
      const auto value = static_cast<const typename Reader::Value*>(
          task.table)[static_cast<size_t>(task.rows[i]) * task.columns + column];
      sum = __builtin_fmaf(Reader::one(value), task.factors == nullptr ? 1.0f : task.factors[i], sum);
    }
    task.out[column] = sum;
  }
}

template <class V, RowType kType>
void add_row_of(const float* x, const TableRow& row, size_t columns, float* out) {
  using Reader = RowReader<V, kType>;
  const auto* values = static_cast<const typename Reader::Value*>(row.values);
  const auto factor = V::set1(row.factor);
  size_t i = 0;
  for (; i + V::kLanes <= columns; i += V::kLanes)
    V::store(out + i, V::fma(Reader::load(values + i), factor, V::load(x + i)));
  for (; i < columns; ++i) out[i] = __builtin_fmaf(Reader::one(values[i]), row.factor, x[i]);
}

/// Calls `run` with the type as a constant.
template <class Run>
inline void with_type(RowType type, Run&& run) {
  switch (type) {
    case RowType::kFloat32:
      return run(std::integral_constant<RowType, RowType::kFloat32>{});
    case RowType::kFloat16:
      return run(std::integral_constant<RowType, RowType::kFloat16>{});
    case RowType::kBfloat16:
      return run(std::integral_constant<RowType, RowType::kBfloat16>{});
    case RowType::kInt8:
      return run(std::integral_constant<RowType, RowType::kInt8>{});
  }
}

template <class V>
void sum_rows(const RowSum& task) {
  with_type(task.type, [&](auto type) { sum_rows_of<V, type>(task); });
}

template <class V>
void add_row(const float* x, const TableRow& row, size_t columns, float* out) {
  with_type(row.type, [&](auto type) { add_row_of<V, type>(x, row, columns, out); });
}

}  // namespace
}  // namespace embedkit
