// A model's tensors, checked against its configuration and packed for the instruction set.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/thread_pool.h"
#include "encoder/config.h"

namespace embedkit {

/// y = x Wᵀ + b with packed weights.
class Linear {
 public:
  /// Stacks the rows of several (out_i, in) matrices, as for query, key and value. A bias without data is
  /// zero. With kInt8 each weight is an int8 tensor with one float scale per row, else float32 or bfloat16.
  struct Part {
    Tensor weight;
    Tensor scale;
    Tensor bias;
  };
  Linear(const Kernels& kernels, Precision precision, const std::vector<Part>& parts);

  /// out = x Wᵀ + b in the columns of `panels`.
  void multiply(const Kernels& kernels, const Operand& x, size_t rows, Share panels, float* out,
                size_t ld_out) const;
  size_t out_features() const { return packed_.out_features; }
  size_t panels() const { return panels_; }
  /// Of the output, padded to whole panels.
  size_t columns() const { return columns_; }
  size_t memory_bytes() const;

 private:
  Precision precision_;
  size_t panels_ = 0;
  size_t columns_ = 0;
  AlignedBuffer<uint8_t> weights_;
  AlignedBuffer<float> vectors_;  // bias, scale, row_sums
  PackedLinear packed_{};
};

/// A table of embedding rows: float32, bfloat16, or int8 with a scale per row; not copied.
class EmbeddingTable {
 public:
  EmbeddingTable() = default;  ///< of no rows
  EmbeddingTable(Tensor rows, Tensor scale) : rows_(std::move(rows)), scale_(std::move(scale)) {}

  size_t size() const { return rows_.shape[0]; }
  /// out = x + row; out may be x.
  void add(const Kernels& kernels, const float* x, size_t row, float* out) const;
  size_t memory_bytes() const;

 private:
  Tensor rows_;
  Tensor scale_;
};

/// Weight and bias of a norm; without data there is none.
struct LayerNorm {
  Tensor gamma;
  Tensor beta;

  const float* weight() const { return static_cast<const float*>(gamma.data); }
  const float* bias() const { return static_cast<const float*>(beta.data); }
};

/// The relative position bias of MPNet and T5, spread from its buckets to one value for each head and
/// distance.
class RelativeBias {
 public:
  /// No bias.
  RelativeBias() = default;
  /// `buckets`: (buckets, heads).
  RelativeBias(const Tensor& buckets, size_t positions);
  /// ALiBi to both sides: minus the distance times the slope of the head (Press et al. 2022).
  RelativeBias(size_t heads, size_t positions);

  /// bias[j - i] is added to the score of query i and key j; null without a bias.
  const float* of_head(size_t head) const {
    return table_.size() == 0 ? nullptr : table_.data() + head * stride_ + zero_;
  }
  size_t memory_bytes() const { return table_.size() * sizeof(float); }

 private:
  size_t stride_ = 0;  ///< from head to head
  size_t zero_ = 0;    ///< where distance 0 is
  AlignedBuffer<float> table_;
};

/// The row of DeBERTa's embeddings of relative positions that a distance has: up to half of `buckets` each
/// its own, then the logarithm up to `farthest` is divided evenly. Source: DeBERTa-v3's code.
class PositionBuckets {
 public:
  PositionBuckets() = default;
  PositionBuckets(size_t positions, size_t buckets, size_t farthest);

  /// `distance`: of the query's position from the key's.
  size_t of(ptrdiff_t distance) const { return rows_[static_cast<size_t>(distance + zero_)]; }
  size_t memory_bytes() const { return rows_.size() * sizeof(uint32_t); }

 private:
  std::vector<uint32_t> rows_;
  ptrdiff_t zero_ = 0;
};

/// What positions add to the scores of a layer in disentangled attention: q_i · k_δ + k_j · q_δ for query i
/// and key j, where δ is the bucket of i - j, and k_δ and q_δ are the layer's projections of its embedding.
/// In fp32 whatever the model's precision. Source: He et al. 2021 (DeBERTa), equation 4.
class PositionScores {
 public:
  /// `embeddings`: `rows` floats of hidden_size, normalized; query, key: the layer's projections.
  PositionScores(const Kernels& kernels, size_t heads, const Operand& embeddings, size_t rows,
                 const Linear::Part& query, const Linear::Part& key);

  /// Floats that `compute` needs.
  size_t scratch(size_t length) const;
  /// Floats from a query's biases to the next one's.
  static size_t stride(size_t length) { return round_up(length, kCacheLine / sizeof(float)); }
  /// The biases (length, stride(length)) of a head in `scratch`, times the scale of `task`.
  const float* compute(const Kernels& kernels, const PositionBuckets& buckets, size_t head,
                       const AttentionTask& task, float* scratch) const;
  size_t memory_bytes() const;

 private:
  std::vector<Linear> keys_, queries_;  ///< of each head: (rows, head_size)
};

/// Sines and cosines of the rotary position embedding.
class RotaryTable {
 public:
  /// No rotation.
  RotaryTable() = default;
  /// RoFormer's, with angles in double precision.
  RotaryTable(size_t positions, size_t head_size);

  /// Of what `EncoderConfig` describes: rounded to float in every step, as the models were trained with it.
  struct Speed {
    float base;
    float divisor = 1;
    float short_wave = 0;
    float long_wave = 0;
  };
  RotaryTable(size_t positions, size_t head_size, Speed speed);

  size_t positions() const { return positions_; }
  bool empty() const { return table_.size() == 0; }
  /// (positions, 2 head_size): as `Kernels::rotate` takes it.
  const float* data() const { return table_.data(); }
  size_t memory_bytes() const { return table_.size() * sizeof(float); }

 private:
  /// `angle_of(position, feature)` in radians, for the first feature of each pair.
  template <typename Angle>
  void fill(size_t head_size, const Angle& angle_of);

  size_t positions_ = 0;
  AlignedBuffer<float> table_;
};

struct Layer {
  LayerNorm attention_input_norm;
  Linear query_key_value;
  LayerNorm query_norm, key_norm;  ///< of each head
  Linear attention_output;
  LayerNorm attention_norm;
  LayerNorm intermediate_norm;
  Linear intermediate;
  Linear output;
  LayerNorm output_norm;
  std::optional<PositionScores> position_scores;

  /// Of the matrices.
  size_t memory_bytes() const;
};

struct Weights {
  EmbeddingTable words;
  std::optional<EmbeddingTable> positions;  ///< unless they are rotary
  AlignedBuffer<float> token_types;         ///< (types, columns of `words`); a row of zeros if there are none
  LayerNorm embedding_norm;
  std::optional<Linear> projection;  ///< embedding_size -> hidden_size, in fp32
  RelativeBias relative_bias;
  PositionBuckets position_buckets;
  RotaryTable rotary, local_rotary;
  std::vector<Layer> layers;
  LayerNorm final_norm;

  size_t memory_bytes() const;
};

/// Throws InvalidArgument that names the tensor which is missing or has another type or shape than `config`
/// says.
Weights load_weights(const EncoderConfig& config, const Tensors& tensors, const Kernels& kernels);

}  // namespace embedkit
