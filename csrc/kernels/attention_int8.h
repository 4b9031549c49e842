// Attention of int8 models: scores of 8-bit queries and keys, probabilities of 15 bits times values of 11
// bits, with exact sums in int32; softmax in fixed point. Written once for every instruction set that
// multiplies bytes.
//
//   q_i ≈ s_i (q8_i - kHalf)   k - mean k ≈ s_k k8   v ≈ s_v v16
//   softmax(q kᵀ / √d)_ij ≈ p_ij / Σ_j p_ij,  p_ij = round(2^14 exp(s_i s_k (t_ij - max_j t_ij) / √d)),
//   t_ij = Σ_d (q8_id - kHalf) k8_jd
//
// The mean of the keys adds the same to all scores of a query, which changes no probability; without it the
// bytes are finer, much finer where keys share a large bias, as in Qwen2.
//
// As in attention.h, blocks of query rows pass through two products and the softmax between them, so the
// memory grows with the length, not with its square. `Dot` is that of linear_int8.h and, for attention,
//
//   Dot::kHalf            queries are 0..2 kHalf - 1, so that no product saturates
//   Dot::add_bytes        sums += x * w, four unsigned bytes by four signed ones in each lane
//   Dot::add_words        sums += x * w, two pairs of int16 in each lane
//   Dot::kAttentionRows   query rows of a register tile
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/aligned.h"
#include "kernels/attention.h"
#include "kernels/fixed_power.h"
#include "kernels/kernels.h"
#include "kernels/tile.h"

namespace embedkit {
namespace {

// Σ p v of a block fits an int32: 2^14 * 1023 * 128 < 2^31.
constexpr float kLargestValue = 1023.0f;
constexpr size_t kBlockOfKeys = 128;
constexpr size_t kFewKeys = size_t{1} << 17;  // whose probabilities, of 2^14 at most, have a sum of 32 bits
// Below every score, and far enough from the smallest int32 that a difference of scores fits one.
constexpr int32_t kHidden = -(1 << 29);

/// out[r][c] = start[c] + Σ_k q[r][k] keys[k][c], four bytes of k a step.
template <class Dot, int R, int C>
__attribute__((noinline)) void score_tile(const uint8_t* q, size_t stride, const uint8_t* keys,
                                          size_t ld_bytes, size_t steps, const int32_t* start, int32_t* out,
                                          size_t ld_out) {
  using V = typename Dot::V;
  typename V::I acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = V::load_int(start + c * V::kLanes);
  for (size_t step = 0; step < steps; ++step, q += 4, keys += ld_bytes) {
    typename V::I column[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) column[c] = V::load_int(keys + static_cast<size_t>(c) * V::kBytes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename V::I x = V::broadcast_four(q + static_cast<size_t>(r) * stride);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = Dot::add_bytes(acc[r][c], x, column[c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
      V::store_int(out + static_cast<size_t>(r) * ld_out + c * V::kLanes, acc[r][c]);
}

/// out[r][c] = (first ? 0 : out[r][c]) + factor[r] Σ_k p[r][k] values[k][c], two keys a step.
template <class Dot, int R, int C>
__attribute__((noinline)) void mix_tile(const int16_t* p, size_t ld_p, const int32_t* values,
                                        size_t ld_values, size_t steps, const float* factor, bool first,
                                        float* out, size_t ld_out) {
  using V = typename Dot::V;
  typename V::I acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = V::zero_int();
  for (size_t step = 0; step < steps; ++step, p += 2, values += ld_values) {
    typename V::I column[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) column[c] = V::load_int(values + c * V::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename V::I x = V::broadcast_four(p + static_cast<size_t>(r) * ld_p);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = Dot::add_words(acc[r][c], x, column[c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const auto scale = V::set1(factor[r]);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      float* to = out + static_cast<size_t>(r) * ld_out + c * V::kLanes;
      const auto scaled = V::mul(V::to_float(acc[r][c]), scale);
      V::store(to, first ? scaled : V::add(V::load(to), scaled));
    }
  }
}

template <class Function, template <int> class At, int... I>
constexpr auto table_of_tiles(std::integer_sequence<int, I...>) {
  struct Table {
    Function of[sizeof...(I)];
  };
  return Table{{At<I + 1>::value...}};
}

template <class Dot, int C>
struct Int8Tiles {
  template <int R>
  struct Score {
    static constexpr auto value = &score_tile<Dot, R, C>;
  };
  template <int R>
  struct Mix {
    static constexpr auto value = &mix_tile<Dot, R, C>;
  };
  using Rows = std::make_integer_sequence<int, Dot::kAttentionRows>;
  static constexpr auto score = table_of_tiles<decltype(&score_tile<Dot, 1, C>), Score>(Rows{});
  static constexpr auto mix = table_of_tiles<decltype(&mix_tile<Dot, 1, C>), Mix>(Rows{});
};

/// The largest |x| of (rows, columns).
template <class V>
inline float largest(const float* x, size_t ld, size_t rows, size_t columns) {
  auto high = V::zero();
  for (size_t r = 0; r < rows; ++r, x += ld)
    over_columns<V>(
        columns, [&](size_t i) { high = V::max(high, V::magnitude(V::load(x + i))); },
        [&](size_t i, size_t n) { high = V::max(high, V::magnitude(V::load_first(x + i, n))); });
  return V::highest(high);
}

/// Where the parts of the scratch memory begin, in bytes from its first cache line, and their sizes.
template <class Dot>
struct Int8AttentionLayout {
  using V = typename Dot::V;
  static constexpr size_t kRows = Dot::kAttentionRows;

  size_t keys;      ///< padded to whole vectors
  size_t row_keys;  ///< of a row of scores: from a whole vector on, whole vectors of 16-bit lanes
  size_t features;  ///< likewise
  size_t row;       ///< bytes of a quantized row: whole vectors of four features a lane
  size_t q_scale, k, start, v, scores, p, mixed, block, bytes;

  Int8AttentionLayout(size_t length, size_t head_size)
      : keys(round_up(length, V::kLanes)),
        row_keys(round_up(length + V::kLanes, 2 * V::kLanes)),
        features(round_up(head_size, V::kLanes)),
        row(round_up(head_size, 4 * V::kLanes)) {
    const auto after = [](size_t begin, size_t size) { return begin + round_up(size, kCacheLine); };
    q_scale = after(0, length * row);
    k = after(q_scale, length * sizeof(float));
    start = after(k, keys * row);
    v = after(start, keys * sizeof(int32_t));
    scores = after(v, keys / 2 * features * sizeof(int32_t));
    p = after(scores, kRows * row_keys * sizeof(int32_t));
    mixed = after(p, kRows * row_keys * sizeof(int16_t));
    block = after(mixed, kRows * features * sizeof(float));
    bytes = after(block, V::kLanes * row);
  }
};

/// What the queries of several heads share: keys and values in the form that the products read.
struct PackedKeys {
  float s_k, s_v;
};

/// One sequence and head in the form that the products read.
template <class Dot>
class Int8Attention {
  using V = typename Dot::V;
  using Layout = Int8AttentionLayout<Dot>;
  static constexpr int kRows = Dot::kAttentionRows;

 public:
  explicit Int8Attention(const AttentionTask& task) : task_(task), at_(task.length, task.head_size) {
    const auto address = reinterpret_cast<uintptr_t>(task.scratch);
    base_ = reinterpret_cast<uint8_t*>(task.scratch) + (round_up(address, kCacheLine) - address);
  }

  PackedKeys pack() { return {pack_keys(), pack_values()}; }

  void run(PackedKeys packed) {
    pack_queries();
    const float* s_q = at<float>(at_.q_scale);
    const float shared = packed.s_k * task_.scale;
    over_tiles(task_.length, kRows, [&](size_t row, size_t height) {
      // The keys that some row of the tile sees, from a whole vector on: all of them without limits.
      const Seen keys{seen_by(task_, row).begin / V::kLanes * V::kLanes,
                      seen_by(task_, row + height - 1).end};
      multiply_keys(row, height, keys);
      float factor[kRows];
      for (size_t r = 0; r < height; ++r) {
        const Seen seen = seen_by(task_, row + r);
        const float scale = s_q[row + r] * shared;
        factor[r] =
            packed.s_v / (task_.bias == nullptr ? softmax(r, keys, seen, FixedScale<V>(scale * kLog2E))
                                                : softmax_biased(r, row + r, keys, seen, scale));
      }
      mix_values(row, height, keys, factor);
    });
  }

 private:
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  static float inverse(float largest, float bound) { return largest > 0 ? bound / largest : 0.0f; }

  /// q8 + kHalf as bytes, and the scale of each query: a large one does not coarsen the others.
  void pack_queries() {
    constexpr float kBound = Dot::kHalf - 1;
    const auto half = V::set1(static_cast<float>(Dot::kHalf));
    const float* q = task_.q;
    for (size_t i = 0; i < task_.length; ++i, q += task_.ld) {
      const float high = largest<V>(q, task_.ld, 1, task_.head_size);
      const auto factor = V::set1(inverse(high, kBound));
      at<float>(at_.q_scale)[i] = high / kBound;
      for (size_t d = 0; d < at_.features; d += V::kLanes)  // past head_size keys are zero
        V::store_quantized(at<uint8_t>(i * at_.row + d), V::fma(V::load(q + d), factor, half));
    }
  }

  /// Calls run(d, load), load(row) the features of a row from d on, for all of them.
  template <class Run>
  void over_features(Run&& run) const {
    over_columns<V>(
        task_.head_size, [&](size_t d) { run(d, [=](const float* row) { return V::load(row + d); }); },
        [&](size_t d, size_t n) { run(d, [=](const float* row) { return V::load_first(row + d, n); }); });
  }

  /// The mean key at `mean`, whole vectors of it; returns the largest |k - mean|.
  float center_keys(float* mean) const {
    const auto share = V::set1(1.0f / static_cast<float>(task_.length));
    auto high = V::zero();
    over_features([&](size_t d, auto&& load) {
      auto sum = V::zero();
      for (size_t j = 0; j < task_.length; ++j) sum = V::add(sum, load(task_.k + j * task_.ld));
      const auto middle = V::mul(sum, share);
      V::store(mean + d, middle);
      for (size_t j = 0; j < task_.length; ++j)
        high = V::max(high, V::magnitude(V::sub(load(task_.k + j * task_.ld), middle)));
    });
    return V::highest(high);
  }

  /// k8 as [feature / 4][key][feature % 4] and -kHalf Σ k8; returns s_k.
  float pack_keys() {
    constexpr float kBound = 127;
    auto* mean = at<float>(at_.mixed);  // which is free until values are mixed
    const float high = center_keys(mean);
    const auto factor = V::set1(inverse(high, kBound));
    auto* block = at<uint8_t>(at_.block);
    for (size_t j0 = 0; j0 < at_.keys; j0 += V::kLanes) {
      std::memset(block, 0, V::kLanes * at_.row);
      for (size_t j = j0; j < std::min(task_.length, j0 + V::kLanes); ++j) {
        const float* from = task_.k + j * task_.ld;
        auto* to = reinterpret_cast<int8_t*>(block + (j - j0) * at_.row);
        over_features([&](size_t d, auto&& load) {
          V::store_bytes(to + d, V::mul(V::sub(load(from), V::load(mean + d)), factor));
        });
      }
      auto* keys = at<float>(at_.k) + j0;
      const size_t ld = at_.row / sizeof(float);
      for (size_t d = 0; d < ld; d += V::kLanes)  // moves bits: no float is computed
        V::transpose(reinterpret_cast<const float*>(block) + d, ld, keys + d * at_.keys, at_.keys);
      auto sums = V::zero_int();
      const auto halves = V::set1_int(static_cast<int32_t>(0x01010101u * Dot::kHalf));
      for (size_t d = 0; d < steps(); ++d)
        sums = Dot::add_bytes(sums, halves, V::load_int(keys + d * at_.keys));
      V::store_int(at<int32_t>(at_.start) + j0, V::sub_int(V::zero_int(), sums));
    }
    return high / kBound;
  }

  /// v16 as [key / 2][feature][key % 2]; returns s_v.
  float pack_values() {
    const float high = largest<V>(task_.v, task_.ld, task_.length, task_.head_size);
    const auto factor = V::set1(inverse(high, kLargestValue));
    auto* to = at<int32_t>(at_.v);
    for (size_t j = 0; j < at_.keys; j += 2, to += at_.features) {
      const float* even = task_.v + j * task_.ld;
      const float* odd = even + task_.ld;
      for (size_t d = 0; d < at_.features; d += V::kLanes) {
        const auto of = [&](size_t key, const float* row) {
          return key < task_.length ? V::to_int(V::mul(V::load(row + d), factor)) : V::zero_int();
        };
        V::store_int(to + d, V::word_pairs(of(j, even), of(j + 1, odd)));
      }
    }
    return high / kLargestValue;
  }

  size_t steps() const { return (task_.head_size + 3) / 4; }

  void multiply_keys(size_t row, size_t height, Seen seen) {
    const uint8_t* q = at<uint8_t>(row * at_.row);
    const auto* start = at<int32_t>(at_.start);
    auto* out = at<int32_t>(at_.scores);
    const size_t ld_bytes = at_.keys * sizeof(int32_t);
    const size_t end = round_up(seen.end, V::kLanes);
    size_t j = seen.begin;
    for (; j + 2 * V::kLanes <= end; j += 2 * V::kLanes)
      Int8Tiles<Dot, 2>::score.of[height - 1](q, at_.row, at<uint8_t>(at_.k + j * sizeof(int32_t)), ld_bytes,
                                              steps(), start + j, out + j, at_.row_keys);
    if (j < end)
      Int8Tiles<Dot, 1>::score.of[height - 1](q, at_.row, at<uint8_t>(at_.k + j * sizeof(int32_t)), ld_bytes,
                                              steps(), start + j, out + j, at_.row_keys);
  }

  /// Calls whole(j) for the vectors of `keys`, and last(j, n) for the n keys of one that is not full.
  template <class Whole, class Last>
  static void over_keys(Seen keys, Whole&& whole, Last&& last) {
    size_t j = keys.begin;
    for (; j + V::kLanes <= keys.end; j += V::kLanes) whole(j);
    if (j < keys.end) last(j, keys.end - j);
  }

  /// Calls hide(j) for the keys outside `seen`.
  template <class Hide>
  static void over_hidden(Seen keys, Seen seen, Hide&& hide) {
    for (size_t j = keys.begin; j < seen.begin; ++j) hide(j);
    for (size_t j = seen.end; j < keys.end; ++j) hide(j);
  }

  /// p = round(2^14 exp(factor (t - max))) of row r of the block, zero outside `seen`; returns Σ p.
  float softmax(size_t r, Seen keys, Seen seen, const FixedScale<V>& scale) {
    auto* t = at<int32_t>(at_.scores) + r * at_.row_keys;
    over_hidden(keys, seen, [&](size_t j) { t[j] = kHidden; });
    auto high = V::set1_int(kHidden);
    over_keys(
        keys, [&](size_t j) { high = V::max_int(high, V::load_int(t + j)); },
        [&](size_t j, size_t n) {
          high = V::max_int(high, V::first_or_int(V::load_int(t + j), n, kHidden));
        });
    const auto shift = V::set1_int(V::highest_int(high));
    return powers(r, keys, seen, [&](size_t j) {
      return scale.of(V::sub_int(shift, V::load_int(t + j)),
                      V::sub_int(shift, V::load_int(t + j + V::kLanes)));
    });
  }

  /// Likewise of factor t + bias.
  float softmax_biased(size_t r, size_t query, Seen keys, Seen seen, float factor) {
    const auto* t = at<int32_t>(at_.scores) + r * at_.row_keys;
    auto* biased = at<float>(at_.scores) + r * at_.row_keys;
    const auto scale = V::set1(factor);
    const float lowest = std::numeric_limits<float>::lowest();
    for (size_t j = keys.begin; j < keys.end; j += V::kLanes)
      V::store(biased + j, V::fma(V::to_float(V::load_int(t + j)), scale, V::load(task_.bias_of(query) + j)));
    over_hidden(keys, seen, [&](size_t j) { biased[j] = lowest; });
    auto high = V::set1(lowest);
    over_keys(
        keys, [&](size_t j) { high = V::max(high, V::load(biased + j)); },
        [&](size_t j, size_t n) { high = V::max(high, V::first_or(V::load(biased + j), n, lowest)); });
    const auto shift = V::set1(V::highest(high));
    const auto units = V::set1(kLog2E * (1 << kFraction));
    const auto largest = V::set1(kLargestWord);
    const auto below = [&](size_t j) {
      return V::to_int(V::min(V::mul(V::sub(shift, V::load(biased + j)), units), largest));
    };
    return powers(r, keys, seen, [&](size_t j) { return V::pack_words(below(j), below(j + V::kLanes)); });
  }

  /// Σ p of more keys than fit 32 bits; those of one lane do, with up to 2^20 keys.
  static int64_t wide_sum(typename V::I sums) {
    alignas(V::kBytes) std::array<int32_t, V::kLanes> lanes;
    V::store_int(lanes.data(), sums);
    return std::accumulate(lanes.begin(), lanes.end(), int64_t{0});
  }

  /// p_j = round(2^14 2^-x), x(j) that of the keys from j on, two vectors of them; zero outside `seen` and
  /// past the last key. Returns Σ p.
  template <class Exponents>
  float powers(size_t r, Seen keys, Seen seen, Exponents&& x) {
    auto* p = at<int16_t>(at_.p) + r * at_.row_keys;
    auto sums = V::zero_int();
    const auto ones = V::set1_words(1);
    const auto write = [&](size_t j, typename V::I power) {
      sums = Dot::add_words(sums, power, ones);
      V::store_words(p + j, power);
    };
    size_t j = keys.begin;
    for (; j + 2 * V::kLanes <= keys.end; j += 2 * V::kLanes) write(j, fixed_power<V>(x(j)));
    if (j < keys.end) write(j, V::first_words(fixed_power<V>(x(j)), keys.end - j));
    int64_t sum = keys.end - keys.begin < kFewKeys ? V::sum_int(sums) : wide_sum(sums);
    over_hidden(keys, seen, [&](size_t hidden) {
      sum -= p[hidden];
      p[hidden] = 0;
    });
    return static_cast<float>(sum);
  }

  void mix_values(size_t row, size_t height, Seen keys, const float* factor) {
    const bool whole =
        at_.features == task_.head_size;  // whole vectors: the tile can write the result itself
    float* out = whole ? task_.out + row * task_.ld_out : at<float>(at_.mixed);
    const size_t ld_out = whole ? task_.ld_out : at_.features;
    for (size_t j = keys.begin; j < keys.end; j += kBlockOfKeys) {
      const size_t pairs = (std::min(keys.end, j + kBlockOfKeys) - j + 1) / 2;
      const auto* p = at<int16_t>(at_.p) + j;
      const auto* v = at<int32_t>(at_.v) + j / 2 * at_.features;
      size_t d = 0;
      for (; d + 2 * V::kLanes <= at_.features; d += 2 * V::kLanes)
        Int8Tiles<Dot, 2>::mix.of[height - 1](p, at_.row_keys, v + d, at_.features, pairs, factor,
                                              j == keys.begin, out + d, ld_out);
      if (d < at_.features)
        Int8Tiles<Dot, 1>::mix.of[height - 1](p, at_.row_keys, v + d, at_.features, pairs, factor,
                                              j == keys.begin, out + d, ld_out);
    }
    if (whole) return;
    for (size_t r = 0; r < height; ++r)
      std::memcpy(task_.out + (row + r) * task_.ld_out, out + r * ld_out, task_.head_size * sizeof(float));
  }

  const AttentionTask& task_;
  Layout at_;
  uint8_t* base_;
};

template <class Dot>
size_t attention_int8_scratch(size_t length, size_t head_size) {
  return (Int8AttentionLayout<Dot>(length, head_size).bytes + kCacheLine) / sizeof(float);
}

template <class Dot>
void attention_int8(const AttentionTask* tasks, size_t heads) {
  PackedKeys packed{};
  for (size_t head = 0; head < heads; ++head) {
    Int8Attention<Dot> attention(tasks[head]);
    // Grouped heads, one after the other, read the same keys and values, and leave them as they are.
    if (head == 0 || tasks[head].k != tasks[head - 1].k) packed = attention.pack();
    attention.run(packed);
  }
}

}  // namespace
}  // namespace embedkit
