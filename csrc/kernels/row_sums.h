// Sums of rows of a table, written once for every vector type.
#pragma once

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

template <class V>
void sum_rows(const RowSum& task) {
  switch (task.type) {
    case RowType::kFloat32:
      return sum_rows_of<V, RowType::kFloat32>(task);
    case RowType::kFloat16:
      return sum_rows_of<V, RowType::kFloat16>(task);
    case RowType::kBfloat16:
      return sum_rows_of<V, RowType::kBfloat16>(task);
    case RowType::kInt8:
      return sum_rows_of<V, RowType::kInt8>(task);
  }
}

}  // namespace
}  // namespace embedkit
