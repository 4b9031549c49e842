// Attention on tiles, of bf16 and int8 models: queries, keys, probabilities and values are rounded to
// bfloat16, sums and the softmax are fp32. As in attention.h, blocks of query rows pass through two products
// and the softmax between them; here a block is two tiles of rows, and the second tile of an odd number of
// rows begins early enough to be whole, as in tile_kernels.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/aligned.h"
#include "kernels/attention.h"
#include "kernels/tile_kernels.h"

namespace embedkit {
namespace {

/// Where the parts of the scratch memory begin, in bytes from its first cache line.
struct TileAttentionLayout {
  static constexpr size_t kRows = 2 * kTileRows;
  static constexpr size_t kGroup = kTileGroup<TileBf16>;
  static_assert(kGroup == kTilePanel, "a step along the keys of the values is a panel of the scores");

  size_t groups;  ///< of features, padded to whole ones
  size_t keys;    ///< padded to whole panels
  size_t row;     ///< bytes of a rounded query
  size_t k, v, scores, p, mixed, block, bytes;

  TileAttentionLayout(size_t length, size_t head_size)
      : groups(tile_groups<TileBf16>(head_size)),
        keys(round_up(length, kTilePanel)),
        row(groups * kTileRowBytes),
        k(length * row),
        v(k + keys * row),
        scores(v + keys * row),
        p(scores + kRows * keys * sizeof(float)),
        mixed(p + kRows * keys * sizeof(uint16_t)),
        block(mixed + kRows * kTilePanel * sizeof(float)),
        bytes(block + kTileRows * row) {}
};

/// One sequence and head in the form that the products read.
template <class V, class Tiles>
class TileAttention {
  using Layout = TileAttentionLayout;

 public:
  explicit TileAttention(const AttentionTask& task)
      : task_(task), at_(task.length, task.head_size), tiles_(std::min(task.length, kTileRows)) {
    const auto address = reinterpret_cast<uintptr_t>(task.scratch);
    base_ = reinterpret_cast<uint8_t*>(task.scratch) + (round_up(address, kCacheLine) - address);
  }

  void run() {
    pack_queries();
    pack_keys();
    pack_values();
    const float factor = 1.0f / std::sqrt(static_cast<float>(task_.head_size));
    over_tiles(task_.length, Layout::kRows, [&](size_t row, size_t height) {
      // The keys that some row of the block sees, from a whole panel on: all of them without limits.
      const size_t first = seen_by(task_, row).begin / kTilePanel * kTilePanel;
      const size_t visible = seen_by(task_, row + height - 1).end - first;
      multiply_keys(row, height, first, visible);
      float inverse[Layout::kRows];
      for (size_t r = 0; r < height; ++r) inverse[r] = probabilities(r, row + r, first, visible, factor);
      mix_values(row, height, first, visible, inverse);
    });
    tiles_.release();
  }

 private:
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  /// Features d and on of a row, zeros past them.
  typename V::F features(const float* row, size_t d) const {
    const size_t size = task_.head_size;
    return d + V::kLanes <= size ? V::load(row + d) : d < size ? V::load_first(row + d, size - d) : V::zero();
  }

  void round_row(const float* from, uint8_t* to) const {
    for (size_t d = 0; d < at_.groups * Layout::kGroup; d += V::kLanes)
      V::store_bf16(reinterpret_cast<uint16_t*>(to) + d, features(from, d));
  }

  void pack_queries() const {
    for (size_t i = 0; i < task_.length; ++i) round_row(task_.q + i * task_.ld, at<uint8_t>(i * at_.row));
  }

  /// As weights: k as [panel of keys][group of features][half of the panel][pair of features][key][feature].
  void pack_keys() const {
    auto* block = at<uint8_t>(at_.block);
    for (size_t j0 = 0; j0 < at_.keys; j0 += V::kLanes) {
      for (size_t j = j0; j < j0 + V::kLanes; ++j) {
        uint8_t* to = block + (j - j0) * at_.row;
        if (j < task_.length)
          round_row(task_.k + j * task_.ld, to);
        else
          std::fill_n(to, at_.row, uint8_t{0});
      }
      const size_t pairs = at_.row / sizeof(float);
      for (size_t d = 0; d < pairs; d += V::kLanes) {  // moves bits: no float is computed
        const size_t tile =
            (j0 / kTilePanel * at_.groups + d / kTileColumns) * 2 + j0 % kTilePanel / kTileColumns;
        V::transpose(
            reinterpret_cast<const float*>(block) + d, pairs,
            at<float>(at_.k + tile * kTileBytes) + d % kTileColumns * kTileColumns + j0 % kTileColumns,
            kTileColumns);
      }
    }
  }

  /// v as [panel of features][group of keys][half of the panel][pair of keys][feature][key].
  void pack_values() const {
    for (size_t j = 0; j < at_.keys; j += 2) {
      const float* even = task_.v + j * task_.ld;
      for (size_t d = 0; d < at_.groups * kTilePanel; d += V::kLanes) {
        const auto of = [&](size_t key, const float* row) {
          return V::bf16_bits(key < task_.length ? features(row, d) : V::zero());
        };
        const size_t tile = (d / kTilePanel * (at_.keys / Layout::kGroup) + j / Layout::kGroup) * 2 +
                            d % kTilePanel / kTileColumns;
        V::store_int(
            at<float>(at_.v + tile * kTileBytes) + j % Layout::kGroup / 2 * kTileColumns + d % kTileColumns,
            V::word_pairs(of(j, even), of(j + 1, even + task_.ld)));
      }
    }
  }

  /// out[height][32] = a b of `groups` steps along K; rows of a tile are those from its place in the block
  /// on.
  void multiply(const uint8_t* a, size_t stride, size_t height, const uint8_t* b, size_t groups, float* out,
                size_t ld_out) {
    const size_t second = height - std::min(height, kTileRows);  // the first row of the second tile
    if (second > 0)
      tile_sums<TileBf16, 2>(tiles_, a, a + second * stride, stride, b, groups);
    else
      tile_sums<TileBf16, 1>(tiles_, a, nullptr, stride, b, groups);
    const size_t bytes = ld_out * sizeof(float);
    tiles_.template store<0, 0>(out, bytes);
    tiles_.template store<0, 1>(out + kTileColumns, bytes);
    if (second == 0) return;
    tiles_.template store<1, 0>(out + second * ld_out, bytes);
    tiles_.template store<1, 1>(out + second * ld_out + kTileColumns, bytes);
  }

  void multiply_keys(size_t row, size_t height, size_t first, size_t visible) {
    for (size_t j = 0; j < visible; j += kTilePanel)
      multiply(at<uint8_t>(row * at_.row), at_.row, height, at<uint8_t>(at_.k + (first + j) * at_.row),
               at_.groups, at<float>(at_.scores) + j, at_.keys);
  }

  /// exp(s - max s) of row r of the block in bfloat16, zero for keys that `query` does not see; returns 1 / Σ
  /// exp.
  float probabilities(size_t r, size_t query, size_t first, size_t visible, float factor) const {
    constexpr float kLog2E = 1.44269504f;
    const float lowest = std::numeric_limits<float>::lowest();
    auto* scores = at<float>(at_.scores) + r * at_.keys;
    auto* p = at<uint16_t>(at_.p) + r * at_.keys;
    if (task_.bias != nullptr) {
      add_bias<V>(scores, task_.bias + first - query, round_up(visible, V::kLanes), factor);
      factor = 1.0f;
    }
    const auto [begin, end] = seen_by(task_, query);
    const Seen seen{begin - first, end - first};
    hide(scores, visible, seen, lowest);
    const size_t whole = visible / V::kLanes * V::kLanes;
    auto high = V::set1(lowest);
    for (size_t j = 0; j < whole; j += V::kLanes) high = V::max(high, V::load(scores + j));
    if (whole < visible) high = V::max(high, V::first_or(V::load(scores + whole), visible - whole, lowest));
    const auto shift = V::set1(V::highest(high));
    const auto scale = V::set1(factor * kLog2E);
    auto sum = V::zero();
    for (size_t j = 0; j < whole; j += V::kLanes) {
      const auto e = power_of_two(V::mul(V::sub(V::load(scores + j), shift), scale));
      sum = V::add(sum, e);
      V::store_bf16(p + j, e);
    }
    size_t j = whole;
    if (whole < visible) {
      const auto e =
          V::first_or(power_of_two(V::mul(V::sub(V::load(scores + j), shift), scale)), visible - j, 0.0f);
      sum = V::add(sum, e);
      V::store_bf16(p + j, e);
      j += V::kLanes;
    }
    for (; j < round_up(visible, Layout::kGroup); j += V::kLanes) V::store_bf16(p + j, V::zero());
    for (size_t i = 0; i < seen.begin; ++i) p[i] = 0;
    for (size_t i = seen.end; i < visible; ++i) p[i] = 0;
    return 1.0f / V::sum(sum);
  }

  /// 2^x for x <= 0, relative error below 4e-6, a hundredth of the rounding that follows; not below 2^-125.
  static typename V::F power_of_two(typename V::F x) {
    x = V::max(x, V::set1(-125.0f));
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const auto magic = V::set1(12582912.0f);
    const auto shifted = V::add(x, magic);
    const auto f = V::sub(x, V::sub(shifted, magic));
    return V::add_exponent(polynomial<V>(f, 9.67589e-3f, 5.592078e-2f, 2.4022109e-1f, 6.9312114e-1f, 1.0f),
                           shifted);
  }

  void mix_values(size_t row, size_t height, size_t first, size_t visible, const float* inverse) {
    auto* mixed = at<float>(at_.mixed);
    for (size_t d = 0; d < task_.head_size; d += kTilePanel) {
      const size_t tile = d / kTilePanel * (at_.keys / Layout::kGroup) + first / Layout::kGroup;
      multiply(at<uint8_t>(at_.p), at_.keys * sizeof(uint16_t), height,
               at<uint8_t>(at_.v + tile * 2 * kTileBytes), (visible + Layout::kGroup - 1) / Layout::kGroup,
               mixed, kTilePanel);
      scale_rows<V>(mixed, kTilePanel, height, std::min(kTilePanel, task_.head_size - d), inverse,
                    task_.out + row * task_.ld_out + d, task_.ld_out);
    }
  }

  const AttentionTask& task_;
  Layout at_;
  Tiles tiles_;
  uint8_t* base_;
};

/// Up to this length packing takes longer than the tiles save: attention is that of fp32.
constexpr size_t kTooShortForTiles = TileAttentionLayout::kRows - 1;

/// Enough for shorter sequences too.
template <class V>
size_t tile_attention_scratch(size_t length, size_t head_size) {
  const size_t floats = attention_scratch<V, V::kRows>(std::min(length, kTooShortForTiles), head_size);
  if (length <= kTooShortForTiles) return floats;
  return std::max(floats, (TileAttentionLayout(length, head_size).bytes + kCacheLine) / sizeof(float));
}

template <class V, class Tiles>
void tile_attention(const AttentionTask& task) {
  if (task.length <= kTooShortForTiles)
    attention<V, V::kRows>(task);
  else
    TileAttention<V, Tiles>(task).run();
}

}  // namespace
}  // namespace embedkit
