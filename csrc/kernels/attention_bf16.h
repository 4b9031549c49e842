// Attention of bf16 models where an instruction multiplies pairs of bfloat16s: queries, keys, probabilities
// and values are rounded to them, sums and the softmax are fp32. As in attention.h, blocks of query rows pass
// through two products and the softmax between them. `Pairs` is that of linear_bf16.h.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/aligned.h"
#include "kernels/attention.h"
#include "kernels/linear_bf16.h"

namespace embedkit {
namespace {

/// Where the parts of the scratch memory begin and their strides, in floats: a pair of bfloat16s is as large.
template <class V>
struct Bf16AttentionLayout {
  size_t keys;      ///< padded to whole vectors
  size_t features;  ///< likewise
  size_t row;       ///< of queries or keys in pairs of features, whole vectors of them
  size_t v, scores, p, q, mixed, block, size;

  Bf16AttentionLayout(size_t length, size_t head_size)
      : keys(round_up(length, V::kLanes)),
        features(round_up(head_size, V::kLanes)),
        row(round_up(head_size, 2 * V::kLanes) / 2),
        v(row * keys),
        scores(v + keys / 2 * features),
        p(scores + V::kRows * keys),
        q(p + V::kRows * keys / 2),
        mixed(q + V::kRows * row),
        block(mixed + V::kRows * features),
        size(block + V::kLanes * row) {}
};

template <class V>
size_t attention_bf16_scratch(size_t length, size_t head_size) {
  return Bf16AttentionLayout<V>(length, head_size).size + kCacheLine / sizeof(float);
}

/// One sequence and head in the form that the products read.
template <class Pairs>
class Bf16Attention {
  using V = typename Pairs::V;
  static constexpr size_t kRows = V::kRows;

 public:
  explicit Bf16Attention(const AttentionTask& task) : task_(task), at_(task.length, task.head_size) {
    const auto address = reinterpret_cast<uintptr_t>(task.scratch);
    base_ = task.scratch + (round_up(address, kCacheLine) - address) / sizeof(float);
  }

  void run() {
    pack_keys();
    pack_values();
    over_tiles(task_.length, kRows, [&](size_t row, size_t height) {
      // The keys that some row of the tile sees, from a whole vector on: all of them without limits.
      const size_t first = seen_by(task_, row).begin / V::kLanes * V::kLanes;
      const size_t visible = seen_by(task_, row + height - 1).end - first;
      round_rows(task_.q + row * task_.ld, height, base_ + at_.q);
      multiply(bytes(at_.q), at_.row * sizeof(float), base_ + first, at_.keys, (task_.head_size + 1) / 2,
               height, base_ + at_.scores, at_.keys, round_up(visible, V::kLanes));
      float inverse[kRows];
      for (size_t r = 0; r < height; ++r) inverse[r] = probabilities(r, row + r, first, visible);
      mix_values(row, height, first, visible, inverse);
    });
  }

 private:
  const uint8_t* bytes(size_t offset) const { return reinterpret_cast<const uint8_t*>(base_ + offset); }

  /// `rows` rows of head_size floats as pairs, zeros past them.
  void round_rows(const float* from, size_t rows, float* to) const {
    const size_t size = task_.head_size;
    for (size_t r = 0; r < rows; ++r, from += task_.ld, to += at_.row)
      for (size_t d = 0; d < 2 * at_.row; d += V::kLanes)
        V::store_bf16(reinterpret_cast<uint16_t*>(to) + d, d + V::kLanes <= size ? V::load(from + d)
                                                           : d < size ? V::load_first(from + d, size - d)
                                                                      : V::zero());
  }

  /// k as [feature / 2][key][feature % 2].
  void pack_keys() const {
    float* block = base_ + at_.block;
    for (size_t j = 0; j < at_.keys; j += V::kLanes) {
      const size_t rows = std::min<size_t>(task_.length - j, V::kLanes);
      round_rows(task_.k + j * task_.ld, rows, block);
      std::memset(block + rows * at_.row, 0, (V::kLanes - rows) * at_.row * sizeof(float));
      for (size_t d = 0; d < at_.row; d += V::kLanes)  // moves bits: no float is computed
        V::transpose(block + d, at_.row, base_ + d * at_.keys + j, at_.keys);
    }
  }

  /// v as [key / 2][feature][key % 2].
  void pack_values() const {
    float* to = base_ + at_.v;
    for (size_t j = 0; j < at_.keys; j += 2, to += at_.features) {
      const float* even = task_.v + j * task_.ld;
      for (size_t d = 0; d < at_.features; d += V::kLanes) {
        const auto of = [&](size_t key, const float* row) {
          return V::bf16_bits(key < task_.length ? V::load(row + d) : V::zero());
        };
        V::store_int(to + d, V::word_pairs(of(j, even), of(j + 1, even + task_.ld)));
      }
    }
  }

  /// out[r][c] = Σ_k a[r][k] b[k][c] over `steps` pairs of k.
  static void multiply(const uint8_t* a, size_t stride, const float* b, size_t ldb, size_t steps, size_t rows,
                       float* out, size_t ld_out, size_t columns) {
    const auto tiles = [&]<int C>(size_t c) {
      bf16_tiles<Pairs, C>.of[rows - 1](a, stride, reinterpret_cast<const uint8_t*>(b + c),
                                        ldb * sizeof(float), steps, nullptr, out + c, ld_out, {});
    };
    size_t c = 0;
    for (; c + 2 * V::kLanes <= columns; c += 2 * V::kLanes) tiles.template operator()<2>(c);
    if (c < columns) tiles.template operator()<1>(c);
  }

  /// exp(s - max s) of row r of the block in bfloat16, zero for keys that `query` does not see; returns 1 / Σ
  /// exp.
  float probabilities(size_t r, size_t query, size_t first, size_t visible) const {
    float factor = task_.scale;
    const size_t padded = round_up(visible, V::kLanes);
    const size_t whole = visible / V::kLanes * V::kLanes;
    const float lowest = std::numeric_limits<float>::lowest();
    float* scores = base_ + at_.scores + r * at_.keys;
    if (task_.bias != nullptr) {
      add_bias<V>(scores, task_.bias_of(query) + first, padded, factor);
      factor = 1.0f;
    }
    const auto [begin, end] = seen_by(task_, query);
    const Seen seen{begin - first, end - first};
    hide(scores, visible, seen, lowest);
    const float high = highest<V>(scores, visible);
    const auto scale = V::set1(factor * kLog2E);
    const auto shift = V::set1(high);
    auto sums = V::zero();
    auto* p = reinterpret_cast<uint16_t*>(base_ + at_.p) + r * at_.keys;
    // What is hidden, or past the last key, has 2^-150, which is 0.
    const auto power = [&](typename V::F s) {
      return power_of_two<V>(V::max(V::mul(V::sub(s, shift), scale), V::set1(-150.0f)));
    };
    for (size_t j = 0; j < padded; j += V::kLanes) {
      const auto s = V::load(scores + j);
      const auto e = power(j < whole ? s : V::first_or(s, visible - j, lowest));
      sums = V::add(sums, e);
      V::store_bf16(p + j, e);
    }
    return 1.0f / V::sum(sums);
  }

  void mix_values(size_t row, size_t height, size_t first, size_t visible, const float* inverse) const {
    float* mixed = base_ + at_.mixed;
    multiply(bytes(at_.p), at_.keys * sizeof(uint16_t), base_ + at_.v + first / 2 * at_.features,
             at_.features, (visible + 1) / 2, height, mixed, at_.features, at_.features);
    scale_rows<V>(mixed, at_.features, height, task_.head_size, inverse, task_.out + row * task_.ld_out,
                  task_.ld_out);
  }

  const AttentionTask& task_;
  Bf16AttentionLayout<V> at_;
  float* base_;
};

template <class Pairs>
void attention_bf16(const AttentionTask* tasks, size_t heads) {
  for (size_t head = 0; head < heads; ++head) Bf16Attention<Pairs>(tasks[head]).run();
}

}  // namespace
}  // namespace embedkit
