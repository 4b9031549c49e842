// Attention on tiles, of bf16 and int8 models: queries, keys, weights and values are rounded to bfloat16,
// sums and powers are fp32.
//
// Blocks of query rows, a tile each, pass through two products, panel by panel of the keys: while the vectors
// make weights of the scores of a panel, the tiles multiply the next panel's keys and the last panel's
// values. So it goes on from block to block and from head to head. The last block of a head begins early
// enough to be whole, as in tile_kernels.h.
//
// A weight is 2^score, the queries having been multiplied by log2(e) times the scale, and a row is divided
// by the sum of its weights at the end. That needs no maximum unless the sum leaves the range in which floats
// are exact enough: only then is the block done again with scores less the maximum of their row. The sum is
// that of the rounded weights: the product with a column of ones, which are zeros for the keys that fill up a
// tile, so these need no care.
#pragma once

#include <algorithm>
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
  size_t blocks;  ///< of a head
  /// Heads that are packed: those of four blocks, as a block is done when the third after it has begun; more
  /// for two blocks each, so that the memory is enough for shorter sequences too.
  size_t heads;
  size_t row;   ///< bytes of a rounded query
  size_t head;  ///< bytes of packed keys, or values
  size_t ones, rounded, mixed, totals;
  size_t block;            ///< the memory of a block: its queries, the scores of two panels, its weights
  size_t scores, weights;  ///< in that
  size_t spare;            ///< such memory for the block that is done again
  size_t k, v, bytes;

  TileAttentionLayout(size_t length, size_t head_size)
      : groups(tile_groups<TileBf16>(head_size)),
        panels(tile_groups<TileBf16>(length)),
        blocks((length + kTileRows - 1) / kTileRows),
        heads(blocks < 3 ? 4 : 2),
        row(groups * kTileRowBytes),
        head(panels * kTilePanel * row),
        ones(0),
        rounded(ones + 2 * kTileBytes),
        mixed(rounded + kTileRows * row),
        totals(mixed + 2 * groups * kScores),
        block(totals + 4 * kTileRows * sizeof(float)),
        scores(kTileRows * row),
        weights(scores + 2 * kScores),
        spare(block + weights + 2 * panels * kTileBytes),
        k(spare + weights + 2 * panels * kTileBytes),
        v(k + heads * head),
        bytes(v + heads * head) {}
};

/// Heads of one sequence.
template <class V, class Tiles>
class TileAttention {
  using Layout = TileAttentionLayout;
  using F = typename V::F;

 public:
  TileAttention(const AttentionTask* tasks, size_t heads)
      : tasks_(tasks),
        heads_(heads),
        length_(tasks->length),
        head_size_(tasks->head_size),
        factor_(kLog2E * tasks->scale),
        at_(length_, head_size_),
        height_(std::min(length_, kTileRows)),
        tiles_(height_) {
    const auto address = reinterpret_cast<uintptr_t>(tasks->scratch);
    base_ = reinterpret_cast<uint8_t*>(tasks->scratch) + (round_up(address, kCacheLine) - address);
  }

  void run() {
    write_ones();
    clear_values();
    const size_t blocks = heads_ * at_.blocks;
    Block done{}, before{}, block = begin(0), after{};
    size_t which = 0;  // of the two panels of scores
    multiply_keys(block, block.first, which);
    store_scores(block, block.first, which);
    for (size_t n = 0; n < blocks; ++n) {
      for (size_t panel = block.first; panel < block.end; ++panel, which ^= 1) {
        const bool first = panel == block.first, last = panel + 1 == block.end;
        if (last && n + 1 < blocks) after = begin(n + 1);
        const Block& next = last ? after : block;
        const size_t next_panel = last ? after.first : panel + 1;
        const bool more = !last || n + 1 < blocks;
        if (more) multiply_keys(next, next_panel, which ^ 1);
        if (!first)
          add_values(block, panel - 1);
        else if (n > 0)
          add_values(before, before.end - 1);
        weigh(block, panel, which, nullptr);
        // The products are stored when the vectors have given them time.
        if (more) store_scores(next, next_panel, which ^ 1);
        if (first && n > 0) end_products(before);
        if (first && n > 1) finish(done);
      }
      done = before;
      before = block;
      block = after;
    }
    add_values(before, before.end - 1);
    end_products(before);
    if (blocks > 1) finish(done);
    finish(before);
    tiles_.release();
  }

 private:
  static constexpr size_t kPairs = Layout::kGroup / 2;  // of keys in a tile of values

  /// Rows of a head.
  struct Block {
    const AttentionTask* task;
    size_t k, v;        ///< of the head
    size_t row;         ///< the first
    size_t first, end;  ///< the panels of keys that some row sees: all of them without limits
    size_t memory;
    size_t turn;  ///< of the two memories for results
  };

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  float* scores(const Block& block, size_t which) const {
    return at<float>(block.memory + at_.scores + which * Layout::kScores);
  }
  uint16_t* weights(const Block& block, size_t panel) const {
    return at<uint16_t>(block.memory + at_.weights + (block.turn * at_.panels + panel) * kTileBytes);
  }

  float* mixed(const Block& block, size_t feature) const {
    return at<float>(at_.mixed + block.turn * at_.groups * Layout::kScores) + feature * kTileRows;
  }
  float* totals(const Block& block) const { return at<float>(at_.totals) + block.turn * 2 * kTileRows; }

  /// The column of ones: a tile for whole panels and that of the last one.
  void write_ones() const {
    auto* to = at<int32_t>(at_.ones);
    const size_t last = length_ - (at_.panels - 1) * kTilePanel;
    for (const size_t keys : {kTilePanel, last})
      for (size_t pair = 0; pair < kPairs; ++pair) {
        const int32_t lane = 2 * pair + 1 < keys ? 0x3f803f80 : 2 * pair < keys ? 0x3f80 : 0;
        for (size_t i = 0; i < kTileColumns; i += V::kLanes, to += V::kLanes)
          V::store_int(to, V::set1_int(lane));
      }
  }

  /// The values past the last key, which no head has.
  void clear_values() const {
    for (size_t head = 0; head < std::min(heads_, at_.heads); ++head)
      for (size_t d = 0; d < at_.groups * kTilePanel; d += kTileColumns)
        for (size_t pair = (length_ + 1) / 2 % kPairs; pair % kPairs != 0; ++pair)
          for (size_t lane = 0; lane < kTileColumns; lane += V::kLanes)
            V::store_int(values(at_.v + head * at_.head, at_.panels - 1, d) + pair * kTileRowBytes +
                             lane * sizeof(float),
                         V::zero_int());
  }

  /// Block n of all heads, whose head is packed.
  Block begin(size_t n) {
    const size_t head = n / at_.blocks, buffer = head % at_.heads * at_.head;
    const AttentionTask& task = tasks_[head];
    const size_t row = std::min(n % at_.blocks * kTileRows, length_ - height_);
    const Block block{&task,
                      at_.k + buffer,
                      at_.v + buffer,
                      row,
                      seen_by(task, row).begin / kTilePanel,
                      tile_groups<TileBf16>(seen_by(task, row + height_ - 1).end),
                      at_.block,
                      n % 2};
    if (n % at_.blocks == 0) {
      pack_keys(task, block.k);
      pack_values(task, block.v);
    }
    round_queries(block);
    if (head + 1 < heads_) prefetch(tasks_[head + 1], row, std::min(row + kTileRows, length_));
    return block;
  }

  /// Rows of the next head.
  void prefetch(const AttentionTask& task, size_t begin, size_t end) const {
    constexpr size_t kLine = kCacheLine / sizeof(float);
    for (const float* rows : {task.q, task.k, task.v})
      for (size_t r = begin; r < end; ++r)
        for (size_t d = 0; d < head_size_; d += kLine) __builtin_prefetch(rows + r * task.ld + d);
  }

  /// Features d and on of a row of `size`, zeros past them.
  static F features(const float* row, size_t size, size_t d) {
    return d + V::kLanes <= size ? V::load(row + d) : d < size ? V::load_first(row + d, size - d) : V::zero();
  }

  /// Rounds rows that end with zeros; `change` is applied before.
  template <class Change>
  void round_rows(const float* from, size_t ld, size_t rows, size_t offset, Change&& change) const {
    auto* to = at<uint16_t>(offset);
    const size_t size = head_size_, padded = at_.groups * Layout::kGroup;
    const auto over_rows = [&](auto&& load) {
      for (size_t r = 0; r < rows; ++r, from += ld)
        for (size_t d = 0; d < padded; d += 2 * V::kLanes, to += 2 * V::kLanes)
          V::store_bf16(to, change(load(from, d)), change(load(from, d + V::kLanes)));
    };
    if (size == padded)
      over_rows([](const float* row, size_t d) { return V::load(row + d); });
    else
      over_rows([&](const float* row, size_t d) { return features(row, size, d); });
  }

  /// As weights: k as [panel of keys][group of features][half of the panel][pair of features][key][feature].
  void pack_keys(const AttentionTask& task, size_t packed) const {
    const size_t pairs = at_.row / sizeof(float);
    // Weights of keys past the last one are multiplied by zeros, so they must be finite: the tile is filled
    // up.
    for (size_t j = 0; j < round_up(length_, kTileColumns); j += V::kLanes) {
      const size_t rows = std::min<size_t>(std::max(length_, j) - j, V::kLanes);
      round_rows(task.k + j * task.ld, task.ld, rows, at_.rounded, [](F x) { return x; });
      for (size_t r = rows; r < V::kLanes; ++r)
        for (size_t d = 0; d < pairs; d += V::kLanes)
          V::store_int(at<float>(at_.rounded + r * at_.row) + d, V::zero_int());
      const size_t tile = j / kTilePanel * at_.groups * 2 + j % kTilePanel / kTileColumns;
      auto* to = at<float>(packed + tile * kTileBytes) + j % kTileColumns;
      for (size_t d = 0; d < pairs; d += V::kLanes)  // moves bits: no float is computed
        V::transpose(
            at<const float>(at_.rounded) + d, pairs,
            to + d / kTileColumns * 2 * (kTileBytes / sizeof(float)) + d % kTileColumns * kTileColumns,
            kTileColumns);
    }
  }

  /// v as [panel of features][panel of keys][half of the panel][pair of keys][feature][key].
  uint8_t* values(size_t packed, size_t panel, size_t feature) const {
    const size_t tile = (feature / kTilePanel * at_.panels + panel) * 2 + feature % kTilePanel / kTileColumns;
    return at<uint8_t>(packed + tile * kTileBytes);
  }

  void pack_values(const AttentionTask& task, size_t packed) const {
    for (size_t panel = 0; panel < at_.panels; ++panel)
      for (size_t d = 0; d < at_.groups * kTilePanel; d += kTileColumns)
        for (size_t lane = 0; lane < kTileColumns; lane += V::kLanes)
          pack_values(task.v + panel * kTilePanel * task.ld, task.ld,
                      std::min(length_ - panel * kTilePanel, kTilePanel), d + lane,
                      values(packed, panel, d) + lane * sizeof(float));
  }

  /// `keys` values of features d and on.
  void pack_values(const float* v, size_t ld, size_t keys, size_t d, uint8_t* to) const {
    const size_t size = head_size_;
    const auto over_pairs = [&](auto&& load) {
      for (; keys >= 2; keys -= 2, v += 2 * ld, to += kTileRowBytes)
        V::store_int(to, V::bf16_pairs(load(v), load(v + ld)));
      if (keys == 1) V::store_int(to, V::bf16_pairs(load(v), V::zero()));
    };
    if (d + V::kLanes <= size)
      over_pairs([&](const float* row) { return V::load(row + d); });
    else
      over_pairs([&](const float* row) { return features(row, size, d); });
  }

  void round_queries(const Block& block) const {
    const auto factor = V::set1(factor_);
    const AttentionTask& task = *block.task;
    round_rows(task.q + block.row * task.ld, task.ld, height_, block.memory,
               [&](F x) { return V::mul(x, factor); });
  }

  /// The number of keys of a panel, rounded up to halves.
  size_t width(size_t panel) const {
    return length_ > panel * kTilePanel + kTileColumns ? kTilePanel : kTileColumns;
  }

  /// The scores of a panel of keys; the last half is left in its tile for store_scores.
  void multiply_keys(const Block& block, size_t panel, size_t which) {
    for (size_t column = 0; column < width(panel); column += kTileColumns) {
      if (column > 0) tiles_.template store<0, 0>(scores(block, which), kTilePanel * sizeof(float));
      const uint8_t* q = at<uint8_t>(block.memory);
      const uint8_t* k = at<uint8_t>(block.k + panel * kTilePanel * at_.row) + column * kTileRowBytes;
      tiles_.template zero<0, 0>();
      for (size_t group = 0; group < at_.groups; ++group, q += kTileRowBytes, k += 2 * kTileBytes) {
        tiles_.template load_rows<0>(q, at_.row);
        tiles_.template load_columns<0>(k);
        tiles_.template add_bf16<0, 0>();
      }
    }
  }

  void store_scores(const Block& block, size_t panel, size_t which) {
    tiles_.template store<0, 0>(scores(block, which) + width(panel) - kTileColumns,
                                kTilePanel * sizeof(float));
  }

  /// The weights of a panel of keys; `shifts` of the rows, or null, are subtracted from the scores.
  void weigh(const Block& block, size_t panel, size_t which, const float* shifts) {
    const AttentionTask& task = *block.task;
    const bool changed = task.bias != nullptr || shifts != nullptr;
    if (changed) change_scores(block, panel, which, shifts);
    if (width(panel) == kTilePanel)
      powers_of_two<kTilePanel>(scores(block, which), weights(block, panel));
    else
      powers_of_two<kTileColumns>(scores(block, which), weights(block, panel));
    // Past the last key unchanged scores are 0 and the weights 1. A panel that every row sees whole hides
    // nothing.
    const bool seen = seen_by(task, block.row + height_ - 1).begin <= panel * kTilePanel &&
                      seen_by(task, block.row).end >= (panel + 1) * kTilePanel;
    if (!seen && (changed || task.before < length_ || task.after < length_)) hide_weights(block, panel);
  }

  template <size_t kKeys>
  void powers_of_two(const float* scores, uint16_t* p) const {
    const auto power = [&](size_t i) { return i < kKeys ? power_of_two<V>(V::load(scores + i)) : V::zero(); };
    for (size_t r = 0; r < height_; ++r, scores += kTilePanel, p += Layout::kGroup)
      for (size_t i = 0; i < Layout::kGroup; i += 2 * V::kLanes)
        V::store_bf16(p + i, power(i), power(i + V::kLanes));
  }

  /// Adds the bias to a panel of scores and subtracts `shifts`.
  void change_scores(const Block& block, size_t panel, size_t which, const float* shifts) const {
    const auto log2e = V::set1(kLog2E);
    const bool biased = block.task->bias != nullptr;
    float* s = scores(block, which);
    for (size_t r = 0; r < height_; ++r, s += kTilePanel) {
      const auto shift = V::set1(shifts != nullptr ? shifts[r] : 0.0f);
      const float* bias = biased ? block.task->bias_of(block.row + r) + panel * kTilePanel : nullptr;
      for (size_t i = 0; i < width(panel); i += V::kLanes) {
        auto x = V::load(s + i);
        if (biased) x = V::fma(V::load(bias + i), log2e, x);
        V::store(s + i, V::sub(x, shift));
      }
    }
  }

  /// The keys of a panel that row r of the block sees, from its first one on.
  Seen seen_in(const Block& block, size_t panel, size_t r) const {
    const auto [begin, end] = seen_by(*block.task, block.row + r);
    const auto inside = [&](size_t key) {
      return std::clamp(key, panel * kTilePanel, (panel + 1) * kTilePanel) - panel * kTilePanel;
    };
    return {inside(begin), inside(end)};
  }

  void hide_weights(const Block& block, size_t panel) const {
    uint16_t* p = weights(block, panel);
    for (size_t r = 0; r < height_; ++r, p += kTilePanel) {
      const Seen seen = seen_in(block, panel, r);
      std::fill(p, p + seen.begin, uint16_t{0});
      std::fill(p + seen.end, p + kTilePanel, uint16_t{0});
    }
  }

  /// Adds the values of a panel of keys, weighted, in the first panel of the features, and the weights.
  void add_values(const Block& block, size_t panel) {
    if (panel == block.first) {
      tiles_.template zero<0, 1>();
      tiles_.template zero<1, 0>();
      tiles_.template zero<1, 1>();
    }
    add_weighted(block, panel, 0);
    const bool last = panel + 1 == at_.panels;
    tiles_.template load_rows<0>(reinterpret_cast<const uint8_t*>(weights(block, panel)), kTileRowBytes);
    tiles_.template load_columns<1>(at<uint8_t>(at_.ones + (last ? kTileBytes : 0)));
    tiles_.template add_bf16<0, 1>();
  }

  void add_weighted(const Block& block, size_t panel, size_t feature) {
    const uint8_t* v = values(block.v, panel, feature);
    tiles_.template load_rows<1>(reinterpret_cast<const uint8_t*>(weights(block, panel)), kTileRowBytes);
    tiles_.template load_columns<0>(v);
    tiles_.template add_bf16<1, 0>();
    tiles_.template load_columns<1>(v + kTileBytes);
    tiles_.template add_bf16<1, 1>();
  }

  /// The results, when all panels of keys are in them, then those of the other features.
  void end_products(const Block& block) {
    // Each row overwrites all but the first column of the one before.
    tiles_.template store<0, 1>(totals(block), sizeof(float));
    store_mixed(block, 0);
    for (size_t d = kTilePanel; d < head_size_; d += kTilePanel) {
      tiles_.template zero<1, 0>();
      tiles_.template zero<1, 1>();
      for (size_t panel = block.first; panel < block.end; ++panel) add_weighted(block, panel, d);
      store_mixed(block, d);
    }
  }

  void store_mixed(const Block& block, size_t feature) {
    tiles_.template store<1, 0>(mixed(block, feature), kTilePanel * sizeof(float));
    tiles_.template store<1, 1>(mixed(block, feature) + kTileColumns, kTilePanel * sizeof(float));
  }

  void finish(const Block& block) {
    float* sums = totals(block);
    if (!exact(sums)) do_again(block);
    for (size_t r = 0; r < kTileRows; r += V::kLanes)
      V::store(sums + r, V::div(V::set1(1.0f), V::load(sums + r)));
    for (size_t d = 0; d < head_size_; d += kTilePanel)
      scale_rows<V>(mixed(block, d), kTilePanel, height_, std::min(kTilePanel, head_size_ - d), sums,
                    block.task->out + block.row * block.task->ld_out + d, block.task->ld_out);
  }

  /// Whether no sum of weights has overflowed, or is so low that weights may have been lost.
  static bool exact(const float* sums) {
    auto low = V::load(sums), high = low;
    for (size_t r = V::kLanes; r < kTileRows; r += V::kLanes) {
      low = V::min(low, V::load(sums + r));
      high = V::max(high, V::load(sums + r));
    }
    return V::lowest(low) > 0x1p-80f && V::highest(high) < 0x1p100f;
  }

  /// With the scores less the highest of their row.
  void do_again(Block block) {
    block.memory = at_.spare;
    round_queries(block);
    float highest[kTileRows];
    std::fill_n(highest, kTileRows, std::numeric_limits<float>::lowest());
    for (size_t panel = block.first; panel < block.end; ++panel) {
      multiply_keys(block, panel, 0);
      store_scores(block, panel, 0);
      if (block.task->bias != nullptr) change_scores(block, panel, 0, nullptr);
      for (size_t r = 0; r < height_; ++r) {
        const Seen seen = seen_in(block, panel, r);
        const float* s = scores(block, 0) + r * kTilePanel;
        for (size_t i = seen.begin; i < seen.end; ++i) highest[r] = std::max(highest[r], s[i]);
      }
    }
    for (size_t panel = block.first; panel < block.end; ++panel) {
      multiply_keys(block, panel, 0);
      store_scores(block, panel, 0);
      weigh(block, panel, 0, highest);
      add_values(block, panel);
    }
    end_products(block);
  }

  const AttentionTask* tasks_;
  size_t heads_, length_, head_size_;
  float factor_;  ///< of the queries
  Layout at_;
  size_t height_;
  Tiles tiles_;
  uint8_t* base_;
};

size_t tile_attention_scratch(size_t length, size_t head_size) {
  return (TileAttentionLayout(length, head_size).bytes + kCacheLine) / sizeof(float);
}

template <class V, class Tiles>
void tile_attention(const AttentionTask* tasks, size_t heads) {
  if (tasks->length == 0) return;  // a text without tokens: no tile has 0 rows
  TileAttention<V, Tiles>(tasks, heads).run();
}

}  // namespace
}  // namespace embedkit
