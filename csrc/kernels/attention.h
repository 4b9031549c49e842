// softmax(scale q kᵀ + bias) v for one sequence and one head, written once for every vector type.
//
// kᵀ is laid out once per task with the keys along the vector lanes; then blocks of query rows go through the
// register tile, the softmax and the tile again while their scores stay in the first-level cache. Keys past
// the end of the sequence (lanes that fill up the last vector) get probability zero.
#pragma once

#include <algorithm>
#include <limits>

#include "base/aligned.h"
#include "kernels/elementwise.h"
#include "kernels/tile.h"

namespace embedkit {
namespace {

/// out[rows][columns] = a[rows][k] b[k][columns], columns a multiple of the vector length.
template <class V, int kRows>
inline void product(const float* a, size_t lda, size_t rows, const float* b, size_t ldb, size_t k, float* out,
                    size_t ld_out, size_t columns) {
  size_t c = 0;
  for (; c + 2 * V::kLanes <= columns; c += 2 * V::kLanes)
    tile_of_height<V, kRows, 2>(rows, a, lda, b + c, ldb, k, nullptr, out + c, ld_out);
  if (c < columns) tile_of_height<V, kRows, 1>(rows, a, lda, b + c, ldb, k, nullptr, out + c, ld_out);
}

/// The largest of `length` scores, of which whole vectors can be read.
template <class V>
inline float highest(const float* scores, size_t length) {
  const float lowest = std::numeric_limits<float>::lowest();
  const size_t whole = length / V::kLanes * V::kLanes;
  auto high = V::set1(lowest);
  for (size_t i = 0; i < whole; i += V::kLanes) high = V::max(high, V::load(scores + i));
  if (whole < length) high = V::max(high, V::first_or(V::load(scores + whole), length - whole, lowest));
  return V::highest(high);
}

/// scores = exp(factor * (scores - highest)) of `length` scores, zero up to `padded`; returns 1 / their sum.
template <class V>
inline float softmax(float* scores, size_t length, size_t padded, float factor) {
  const size_t whole = length / V::kLanes * V::kLanes;
  const auto shift = V::set1(highest<V>(scores, length));
  const auto scale = V::set1(factor);
  auto sum = V::zero();
  for (size_t i = 0; i < whole; i += V::kLanes) {
    const auto e = exponential<V>(V::mul(V::sub(V::load(scores + i), shift), scale));
    V::store(scores + i, e);
    sum = V::add(sum, e);
  }
  if (whole < padded) {
    auto e = exponential<V>(V::mul(V::sub(V::load(scores + whole), shift), scale));
    e = V::first_or(e, length - whole, 0.0f);
    V::store(scores + whole, e);
    sum = V::add(sum, e);
  }
  return 1.0f / V::sum(sum);
}

/// scores = factor * scores + bias.
template <class V>
inline void add_bias(float* scores, const float* bias, size_t padded, float factor) {
  const auto scale = V::set1(factor);
  for (size_t i = 0; i < padded; i += V::kLanes)
    V::store(scores + i, V::fma(V::load(scores + i), scale, V::load(bias + i)));
}

struct Seen {
  size_t begin;
  size_t end;
};

/// The keys that query i sees.
inline Seen seen_by(const AttentionTask& task, size_t i) {
  return {i > task.before ? i - task.before : 0,
          task.after < task.length - i ? i + task.after + 1 : task.length};
}

/// Sets the scores of the keys outside `seen`.
inline void hide(float* scores, size_t length, Seen seen, float value) {
  for (size_t i = 0; i < seen.begin; ++i) scores[i] = value;
  for (size_t i = seen.end; i < length; ++i) scores[i] = value;
}

/// out[r] = factors[r] * from[r], which may be the same: a sum divides the few features of a row rather than
/// its many scores.
template <class V>
inline void scale_rows(const float* from, size_t ld, size_t rows, size_t columns, const float* factors,
                       float* out, size_t ld_out) {
  for (size_t r = 0; r < rows; ++r, from += ld, out += ld_out) {
    const auto factor = V::set1(factors[r]);
    over_columns<V>(
        columns, [&](size_t i) { V::store(out + i, V::mul(V::load(from + i), factor)); },
        [&](size_t i, size_t n) { V::store_first(out + i, V::mul(V::load(from + i), factor), n); });
  }
}

template <class V, int kRows>
size_t attention_scratch(size_t length, size_t head_size) {
  const size_t keys = round_up(length, V::kLanes);
  const size_t features = round_up(head_size, V::kLanes);
  return features * keys + kRows * keys + kRows * features;
}

template <class V, int kRows>
void attend(const AttentionTask& task) {
  const size_t keys = round_up(task.length, V::kLanes);
  const size_t features = round_up(task.head_size, V::kLanes);
  float* transposed = task.scratch;
  float* scores = transposed + features * keys;
  float* block = scores + kRows * keys;
  for (size_t j = 0; j < keys; j += V::kLanes)
    for (size_t d = 0; d < features; d += V::kLanes)
      V::transpose(task.k + j * task.ld + d, task.ld, transposed + d * keys + j, keys);
  const bool whole = features == task.head_size;  // whole vectors: the tile can write the result itself
  over_tiles(task.length, kRows, [&](size_t row, size_t height) {
    // The keys that some row of the tile sees, from a whole vector on: all of them without limits.
    const size_t first = seen_by(task, row).begin / V::kLanes * V::kLanes;
    const size_t visible = seen_by(task, row + height - 1).end - first;
    const size_t padded = round_up(visible, V::kLanes);
    product<V, kRows>(task.q + row * task.ld, task.ld, height, transposed + first, keys, task.head_size,
                      scores, keys, padded);
    float inverse[kRows];
    for (size_t r = 0; r < height; ++r) {
      float* line = scores + r * keys;
      if (task.bias != nullptr) add_bias<V>(line, task.bias_of(row + r) + first, padded, task.scale);
      const auto [begin, end] = seen_by(task, row + r);
      const Seen seen{begin - first, end - first};
      hide(line, visible, seen, std::numeric_limits<float>::lowest());
      inverse[r] = softmax<V>(line, visible, padded, task.bias != nullptr ? 1.0f : task.scale);
      hide(line, visible, seen, 0.0f);
    }
    float* out = task.out + row * task.ld_out;
    product<V, kRows>(scores, keys, height, task.v + first * task.ld, task.ld, visible, whole ? out : block,
                      whole ? task.ld_out : features, features);
    scale_rows<V>(whole ? out : block, whole ? task.ld_out : features, height, task.head_size, inverse, out,
                  task.ld_out);
  });
}

template <class V, int kRows>
void attention(const AttentionTask* tasks, size_t heads) {
  for (size_t head = 0; head < heads; ++head) attend<V, kRows>(tasks[head]);
}

}  // namespace
}  // namespace embedkit
