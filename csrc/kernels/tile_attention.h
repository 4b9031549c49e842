// Attention on tiles, of bf16 and int8 models: queries, keys, weights and values are rounded to bfloat16,
// sums and powers are fp32.
//
// Blocks of query rows, a tile each, pass through two products: the scores become weights as they leave the
// first, and the weights of a block stay in the first-level cache for the second. The last block begins early
// enough to be whole, as in tile_kernels.h.
//
// A weight is 2^score, the queries having been multiplied by log2(e) / sqrt(head_size), and a row is divided
// by the sum of its weights at the end. That needs no maximum unless the sum leaves the range in which floats
// are exact enough: only then is the block done again with scores less the maximum of their row. The sum is
// that of the rounded weights: the product with a column of ones, which are zeros for the keys that fill up a
// tile, so these need no care.
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
  static constexpr size_t kGroup = kTileGroup<TileBf16>;
  static_assert(kGroup == kTilePanel, "a step along the keys of the values is a panel of the scores");
  static constexpr size_t kScores = kTileRows * kTilePanel * sizeof(float);

  size_t groups;  ///< of features, padded to whole ones
  size_t panels;  ///< of keys, padded to whole ones
  size_t row;     ///< bytes of a rounded query
  size_t k, v, ones, block, scores, p, mixed, totals, bytes;

  TileAttentionLayout(size_t length, size_t head_size)
      : groups(tile_groups<TileBf16>(head_size)),
        panels(tile_groups<TileBf16>(length)),
        row(groups * kTileRowBytes),
        k(0),
        v(k + panels * kTilePanel * row),
        ones(v + panels * kTilePanel * row),
        block(ones + 2 * kTileBytes),
        scores(block + kTileRows * row),
        p(scores + 2 * kScores),
        mixed(p + panels * kTileBytes),
        totals(mixed + kScores),
        bytes(totals + 2 * kTileRows * sizeof(float)) {}
};

/// Heads of one sequence, one after the other, in the form that the products read.
template <class V, class Tiles>
class TileAttention {
  using Layout = TileAttentionLayout;
  using F = typename V::F;

 public:
  TileAttention(size_t length, size_t head_size, float* scratch)
      : at_(length, head_size), height_(std::min(length, kTileRows)), tiles_(height_) {
    const auto address = reinterpret_cast<uintptr_t>(scratch);
    base_ = reinterpret_cast<uint8_t*>(scratch) + (round_up(address, kCacheLine) - address);
    write_ones(length);
    clear_values(length);
  }

  void run(const AttentionTask& task) {
    pack_keys(task);
    pack_values(task);
    for (size_t row = 0; row < task.length; row += kTileRows)
      attend(task, std::min(row, task.length - height_));
  }

  void release() { tiles_.release(); }

 private:
  static constexpr float kLog2E = 1.44269504f;
  static constexpr size_t kPairs = Layout::kGroup / 2;  // of keys in a tile of values

  /// Panels of keys.
  struct Panels {
    size_t first;
    size_t count;
  };

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  float* scores(size_t panel) const { return at<float>(at_.scores + panel % 2 * Layout::kScores); }
  uint16_t* weights(size_t panel) const { return at<uint16_t>(at_.p + panel * kTileBytes); }

  /// The column of ones: a tile for whole panels and that of the last one.
  void write_ones(size_t length) const {
    auto* to = at<int32_t>(at_.ones);
    const size_t last = length - (at_.panels - 1) * kTilePanel;
    for (const size_t keys : {kTilePanel, last})
      for (size_t pair = 0; pair < kPairs; ++pair) {
        const int32_t lane = 2 * pair + 1 < keys ? 0x3f803f80 : 2 * pair < keys ? 0x3f80 : 0;
        for (size_t i = 0; i < kTileColumns; i += V::kLanes, to += V::kLanes)
          V::store_int(to, V::set1_int(lane));
      }
  }

  /// The values past the last key, which no head has.
  void clear_values(size_t length) const {
    for (size_t panel = 0; panel < at_.groups; ++panel)
      for (size_t pair = (length + 1) / 2; pair < at_.panels * kPairs; ++pair)
        for (size_t d = 0; d < kTilePanel; d += V::kLanes)
          V::store_int(values(pair, panel * kTilePanel + d), V::zero_int());
  }

  /// Features d and on of a row, zeros past them.
  static F features(const AttentionTask& task, const float* row, size_t d) {
    const size_t size = task.head_size;
    return d + V::kLanes <= size ? V::load(row + d) : d < size ? V::load_first(row + d, size - d) : V::zero();
  }

  /// `change` is applied before rounding.
  template <class Change>
  void round_row(const AttentionTask& task, const float* from, uint8_t* to, Change&& change) const {
    for (size_t d = 0; d < at_.groups * Layout::kGroup; d += 2 * V::kLanes)
      V::store_bf16(reinterpret_cast<uint16_t*>(to) + d, change(features(task, from, d)),
                    change(features(task, from, d + V::kLanes)));
  }

  /// As weights: k as [panel of keys][group of features][half of the panel][pair of features][key][feature].
  void pack_keys(const AttentionTask& task) const {
    auto* block = at<uint8_t>(at_.block);
    for (size_t j0 = 0; j0 < task.length; j0 += V::kLanes) {
      for (size_t j = j0; j < j0 + V::kLanes; ++j) {
        uint8_t* to = block + (j - j0) * at_.row;
        if (j < task.length)
          round_row(task, task.k + j * task.ld, to, [](F x) { return x; });
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

  /// v as [panel of features][panel of keys][half of the panel][pair of keys][feature][key].
  uint8_t* values(size_t pair, size_t d) const {
    const size_t tile = (d / kTilePanel * at_.panels + pair / kPairs) * 2 + d % kTilePanel / kTileColumns;
    return at<uint8_t>(at_.v + tile * kTileBytes) + pair % kPairs * kTileRowBytes +
           d % kTileColumns * sizeof(float);
  }

  void pack_values(const AttentionTask& task) const {
    for (size_t j = 0; j < task.length; j += 2) {
      const float* even = task.v + j * task.ld;
      const bool two = j + 1 < task.length;
      for (size_t d = 0; d < at_.groups * kTilePanel; d += V::kLanes)
        V::store_int(values(j / 2, d), V::bf16_pairs(features(task, even, d),
                                                     two ? features(task, even + task.ld, d) : V::zero()));
    }
  }

  /// The rows of a block.
  void attend(const AttentionTask& task, size_t row) {
    round_queries(task, row);
    // The keys that some row of the block sees: all of them without limits.
    const size_t first = seen_by(task, row).begin / kTilePanel;
    const Panels panels{first, tile_groups<TileBf16>(seen_by(task, row + height_ - 1).end) - first};
    weigh_keys(task, row, panels, nullptr);
    mix_values<true>(0, panels);
    if (!exact()) {
      alignas(kCacheLine) float highest[kTileRows];
      find_highest(task, row, panels, highest);
      weigh_keys(task, row, panels, highest);
      mix_values<true>(0, panels);
    }
    auto* totals = at<float>(at_.totals);
    for (size_t r = 0; r < kTileRows; r += V::kLanes)
      V::store(totals + r, V::div(V::set1(1.0f), V::load(totals + r)));
    for (size_t d = 0; d < task.head_size; d += kTilePanel) {
      if (d > 0) mix_values<false>(d / kTilePanel, panels);
      scale_rows<V>(at<float>(at_.mixed), kTilePanel, height_, std::min(kTilePanel, task.head_size - d),
                    totals, task.out + row * task.ld_out + d, task.ld_out);
    }
  }

  void round_queries(const AttentionTask& task, size_t row) const {
    const auto factor = V::set1(kLog2E / std::sqrt(static_cast<float>(task.head_size)));
    for (size_t r = 0; r < height_; ++r)
      round_row(task, task.q + (row + r) * task.ld, at<uint8_t>(at_.block + r * at_.row),
                [&](F x) { return V::mul(x, factor); });
  }

  void multiply_keys(size_t panel, size_t length) {
    const uint8_t* q = at<uint8_t>(at_.block);
    const uint8_t* k = at<uint8_t>(at_.k + panel * kTilePanel * at_.row);
    const bool two = length > panel * kTilePanel + kTileColumns;
    tiles_.template zero<0, 0>();
    tiles_.template zero<0, 1>();
    for (size_t group = 0; group < at_.groups; ++group, q += kTileRowBytes, k += 2 * kTileBytes) {
      tiles_.template load_rows<0>(q, at_.row);
      tiles_.template load_columns<0>(k);
      tiles_.template add_bf16<0, 0>();
      if (!two) continue;
      tiles_.template load_columns<1>(k + kTileBytes);
      tiles_.template add_bf16<0, 1>();
    }
    tiles_.template store<0, 0>(scores(panel), kTilePanel * sizeof(float));
    if (two) tiles_.template store<0, 1>(scores(panel) + kTileColumns, kTilePanel * sizeof(float));
  }

  /// The weights of the block's rows; `shifts`, or null, are subtracted from the scores.
  void weigh_keys(const AttentionTask& task, size_t row, Panels panels, const float* shifts) {
    const size_t end = panels.first + panels.count;
    multiply_keys(panels.first, task.length);
    for (size_t panel = panels.first; panel < end; ++panel) {
      // The next product runs while the vectors of this one are computed.
      if (panel + 1 < end) multiply_keys(panel + 1, task.length);
      if (task.bias != nullptr || shifts != nullptr) adjust(task, row, panel, shifts);
      if (task.length > panel * kTilePanel + kTileColumns)
        weigh<kTilePanel>(scores(panel), weights(panel - panels.first));
      else
        weigh<kTileColumns>(scores(panel), weights(panel - panels.first));
    }
    // Scores past the last key are 0 unless they were changed, and the weights are 1.
    if (task.before < task.length || task.after < task.length || task.bias != nullptr || shifts != nullptr)
      hide_weights(task, row, panels);
  }

  template <size_t kKeys>
  void weigh(const float* scores, uint16_t* p) const {
    const auto power = [&](size_t i) { return i < kKeys ? power_of_two(V::load(scores + i)) : V::zero(); };
    for (size_t r = 0; r < height_; ++r, scores += kTilePanel, p += Layout::kGroup)
      for (size_t i = 0; i < Layout::kGroup; i += 2 * V::kLanes)
        V::store_bf16(p + i, power(i), power(i + V::kLanes));
  }

  /// 2^x, relative error below 8e-5, a fiftieth of the rounding that follows.
  static F power_of_two(F x) {
    return V::scale_by_floor(
        polynomial<V>(V::fraction(x), 7.802454e-2f, 2.2606716e-1f, 6.9583354e-1f, 9.9992522e-1f), x);
  }

  /// Adds the bias to a panel of scores and subtracts the shifts of the rows.
  void adjust(const AttentionTask& task, size_t row, size_t panel, const float* shifts) const {
    const auto log2e = V::set1(kLog2E);
    float* s = scores(panel);
    for (size_t r = 0; r < height_; ++r, s += kTilePanel) {
      const auto shift = V::set1(shifts != nullptr ? shifts[r] : 0.0f);
      for (size_t i = 0; i < kTilePanel; i += V::kLanes) {
        auto x = V::load(s + i);
        if (task.bias != nullptr)
          x = V::fma(V::load(task.bias + (panel * kTilePanel + i) - (row + r)), log2e, x);
        V::store(s + i, V::sub(x, shift));
      }
    }
  }

  /// Calls hide(row of the block, panel, first key, last key + 1) for keys of the panels that a row does not
  /// see or that are past the last.
  template <class Hide>
  void over_hidden(const AttentionTask& task, size_t row, Panels panels, Hide&& hide) const {
    const size_t first = panels.first * kTilePanel;
    for (size_t r = 0; r < height_; ++r) {
      const auto [begin, end] = seen_by(task, row + r);
      for (size_t j = 0; j < begin - first; ++j) hide(r, j);
      for (size_t j = end - first; j < panels.count * kTilePanel; ++j) hide(r, j);
    }
  }

  void hide_weights(const AttentionTask& task, size_t row, Panels panels) const {
    over_hidden(task, row, panels,
                [&](size_t r, size_t j) { weights(j / kTilePanel)[r * kTilePanel + j % kTilePanel] = 0; });
  }

  /// The highest score of each row of the block.
  void find_highest(const AttentionTask& task, size_t row, Panels panels, float* highest) {
    std::fill_n(highest, height_, std::numeric_limits<float>::lowest());
    for (size_t panel = panels.first; panel < panels.first + panels.count; ++panel) {
      multiply_keys(panel, task.length);
      if (task.bias != nullptr) adjust(task, row, panel, nullptr);
      for (size_t r = 0; r < height_; ++r) {
        const auto [begin, end] = seen_by(task, row + r);
        const float* s = scores(panel) + r * kTilePanel;
        const size_t first = panel * kTilePanel;
        for (size_t j = std::max(begin, first); j < std::min(end, first + kTilePanel); ++j)
          highest[r] = std::max(highest[r], s[j - first]);
      }
    }
  }

  /// A panel of the features, and with kTotals the sums of the weights.
  template <bool kTotals>
  void mix_values(size_t features, Panels panels) {
    const uint8_t* v = values(panels.first * kPairs, features * kTilePanel);
    tiles_.template zero<1, 0>();
    tiles_.template zero<1, 1>();
    if constexpr (kTotals) tiles_.template zero<0, 0>();
    for (size_t panel = 0; panel < panels.count; ++panel, v += 2 * kTileBytes) {
      const auto* p = reinterpret_cast<const uint8_t*>(weights(panel));
      tiles_.template load_rows<1>(p, kTileRowBytes);
      tiles_.template load_columns<0>(v);
      tiles_.template add_bf16<1, 0>();
      tiles_.template load_columns<1>(v + kTileBytes);
      tiles_.template add_bf16<1, 1>();
      if constexpr (kTotals) {
        const bool last = panels.first + panel + 1 == at_.panels;
        tiles_.template load_rows<0>(p, kTileRowBytes);
        tiles_.template load_columns<0>(at<uint8_t>(at_.ones + (last ? kTileBytes : 0)));
        tiles_.template add_bf16<0, 0>();
      }
    }
    // Each row overwrites all but the first column of the one before.
    if constexpr (kTotals) tiles_.template store<0, 0>(at<float>(at_.totals), sizeof(float));
    auto* mixed = at<float>(at_.mixed);
    tiles_.template store<1, 0>(mixed, kTilePanel * sizeof(float));
    tiles_.template store<1, 1>(mixed + kTileColumns, kTilePanel * sizeof(float));
  }

  /// Whether no sum has overflowed, or is so low that weights may have been lost.
  bool exact() const {
    const auto* totals = at<float>(at_.totals);
    auto low = V::load(totals), high = low;
    for (size_t r = V::kLanes; r < kTileRows; r += V::kLanes) {
      low = V::min(low, V::load(totals + r));
      high = V::max(high, V::load(totals + r));
    }
    return V::lowest(low) > 0x1p-80f && V::highest(high) < 0x1p100f;
  }

  Layout at_;
  size_t height_;
  Tiles tiles_;
  uint8_t* base_;
};

template <class V>
size_t tile_attention_scratch(size_t length, size_t head_size) {
  return (TileAttentionLayout(length, head_size).bytes + kCacheLine) / sizeof(float);
}

template <class V, class Tiles>
void tile_attention(const AttentionTask& task) {
  TileAttention<V, Tiles> attention(task.length, task.head_size, task.scratch);
  attention.run(task);
  attention.release();
}

}  // namespace
}  // namespace embedkit
