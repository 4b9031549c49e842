#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "encoder/weights.h"

namespace embedkit {
namespace {

/// Of queries or keys that are multiplied at a time.
constexpr size_t kRows = 32;

Tensor owned(std::vector<float> values, size_t rows, size_t columns) {
  auto memory = std::make_shared<std::vector<float>>(std::move(values));
  return {Tensor::Type::kFloat32, memory->data(), {rows, columns}, memory};
}

/// The part with its int8 weights multiplied out.
Linear::Part in_floats(const Linear::Part& part) {
  if (part.weight.type != Tensor::Type::kInt8) return part;
  const size_t rows = part.weight.shape[0], columns = part.weight.shape[1];
  const auto* integers = static_cast<const int8_t*>(part.weight.data);
  const auto* scale = static_cast<const float*>(part.scale.data);
  std::vector<float> values(rows * columns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = scale[i / columns] * static_cast<float>(integers[i]);
  return {owned(std::move(values), rows, columns), {}, part.bias};
}

}  // namespace

PositionBuckets::PositionBuckets(size_t positions, size_t buckets, size_t farthest)
    : rows_(2 * positions - 1), zero_(static_cast<ptrdiff_t>(positions) - 1) {
  const auto middle = static_cast<ptrdiff_t>(buckets / 2), span = static_cast<ptrdiff_t>(buckets);
  // In floats, as the models were trained: log(farthest / middle) is divided into what is left of the
  // buckets.
  const auto part = [&](ptrdiff_t distance) {
    return std::log(static_cast<float>(distance) / static_cast<float>(middle));
  };
  const float whole = part(static_cast<ptrdiff_t>(farthest) - 1);
  for (ptrdiff_t distance = -zero_; distance <= zero_; ++distance) {
    const ptrdiff_t size = std::abs(distance);
    ptrdiff_t bucket = distance;
    if (size > middle) {
      const auto steps =
          static_cast<ptrdiff_t>(std::ceil(part(size) / whole * static_cast<float>(middle - 1)));
      bucket = distance < 0 ? -middle - steps : middle + steps;
    }
    const ptrdiff_t row = std::clamp<ptrdiff_t>(bucket + span, 0, 2 * span - 1);
    rows_[static_cast<size_t>(distance + zero_)] = static_cast<uint32_t>(row);
  }
}

PositionScores::PositionScores(const Kernels& kernels, size_t heads, const Operand& embeddings, size_t rows,
                               const Linear::Part& query, const Linear::Part& key) {
  const auto projected = [&](const Linear::Part& part, std::vector<Linear>& of_heads) {
    const Linear linear(kernels, Precision::kFp32, {in_floats(part)});
    const size_t ld = linear.columns(), width = linear.out_features() / heads;
    AlignedBuffer<float> all(rows * ld + Kernels::kSlack);
    linear.multiply(kernels, embeddings, rows, {0, linear.panels()}, all.data(), ld);
    for (size_t head = 0; head < heads; ++head) {
      std::vector<float> own(rows * width);
      for (size_t r = 0; r < rows; ++r)
        std::copy_n(all.data() + r * ld + head * width, width,
                    own.begin() + static_cast<ptrdiff_t>(r * width));
      of_heads.emplace_back(kernels, Precision::kFp32,
                            std::vector<Linear::Part>{{owned(std::move(own), rows, width), {}, {}}});
    }
  };
  projected(key, keys_);
  projected(query, queries_);
}

size_t PositionScores::scratch(size_t length) const {
  return 2 * length * keys_.front().columns() + length * stride(length) + Kernels::kSlack;
}

const float* PositionScores::compute(const Kernels& kernels, const PositionBuckets& buckets, size_t head,
                                     const AttentionTask& task, float* scratch) const {
  const Linear &keys = keys_[head], &queries = queries_[head];
  const size_t length = task.length, columns = keys.columns();
  const auto farthest = static_cast<ptrdiff_t>(length) - 1;
  const size_t panel = columns / keys.panels();
  const auto panels = [&](ptrdiff_t low, ptrdiff_t high) {
    return Share{buckets.of(low) / panel, buckets.of(high) / panel + 1};
  };
  float* of_queries = scratch;
  float* of_keys = of_queries + length * columns;
  float* sums = of_keys + length * columns;
  // A few rows at a time, since each needs half of the distances.
  for (size_t row = 0; row < length; row += kRows) {
    const size_t rows = std::min(kRows, length - row);
    const auto first = static_cast<ptrdiff_t>(row), last = static_cast<ptrdiff_t>(row + rows) - 1;
    keys.multiply(kernels, {task.q + row * task.ld, task.ld, {}}, rows, panels(first - farthest, last),
                  of_queries + row * columns, columns);
    queries.multiply(kernels, {task.k + row * task.ld, task.ld, {}}, rows, panels(-last, farthest - first),
                     of_keys + row * columns, columns);
  }
  float* out = sums;
  for (size_t i = 0; i < length; ++i, of_queries += columns) {
    for (size_t j = 0; j < length; ++j) {
      const size_t row = buckets.of(static_cast<ptrdiff_t>(i) - static_cast<ptrdiff_t>(j));
      *out++ = task.scale * (of_queries[row] + of_keys[j * columns + row]);
    }
    out = std::fill_n(out, stride(length) - length, 0.0f);
  }
  std::fill_n(out, Kernels::kSlack, 0.0f);
  return sums;
}

size_t PositionScores::memory_bytes() const {
  size_t bytes = 0;
  for (const std::vector<Linear>* linears : {&keys_, &queries_})
    for (const Linear& linear : *linears) bytes += linear.memory_bytes();
  return bytes;
}

}  // namespace embedkit
