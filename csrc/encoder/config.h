// The configuration of an encoder, as plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"

namespace embedkit {

enum class Precision { kFp32, kBf16, kInt8 };

/// What the feed-forward layer does with its inner features: all pass the activation, or one half of them
/// does and the product of the halves goes on.
enum class Gate { kNone, kFirstActivated, kSecondActivated };

/// Where a layer normalizes: after each sum (BERT), before each of its two parts, or before and after them.
enum class NormPlace { kPost, kPre, kAround };

/// What it divides by: the spread around the mean, or the root of the mean square, the weight as it is or
/// plus one.
enum class NormKind { kLayerNorm, kRms, kRmsPlusOne };

/// The shape of an encoder; names as in Hugging Face's config.json. Without the fields that have a default it
/// is a BERT, and the tensors have BERT's names whatever the architecture calls them.
struct EncoderConfig {
  size_t hidden_size = 0;
  size_t num_hidden_layers = 0;
  size_t num_attention_heads = 0;
  size_t intermediate_size = 0;
  size_t vocab_size = 0;
  size_t max_position_embeddings = 0;
  size_t type_vocab_size = 0;       ///< 0: the model has no token types
  size_t task_type_vocab_size = 0;  ///< of ERNIE's tasks, of which texts have the first; 0: none
  /// The token that takes no position; the others count from the one after it, as in fairseq. -1: no such
  /// token, positions count from 0.
  int32_t padding_idx = -1;
  /// Of the relative position bias that all layers share (MPNet, T5); 0: none.
  size_t relative_attention_num_buckets = 0;
  bool position_table = true;   ///< positions are added to the embeddings, unless they are rotary or ALiBi's
  size_t score_terms = 1;       ///< scores are divided by the root of this many head sizes; 0: by nothing
  size_t position_buckets = 0;  ///< of each sign, of DeBERTa's relative positions; 0: none
  size_t max_relative_positions = 0;  ///< the distance that the last bucket ends with
  bool rotary = false;                ///< positions rotate query and key instead of a position table
  bool rotary_value = false;          ///< and the value
  size_t embedding_size = 0;  ///< of the embeddings where they are projected to hidden_size; 0: they are not
  size_t head_size = 0;       ///< 0: hidden_size / num_attention_heads
  size_t num_key_value_heads = 0;  ///< that groups of query heads share; 0: each has its own
  /// Positions rotate features i and i + head_size / 2 of query and key by position / base^(2i / head_size) /
  /// divisor. A base of 0: they do not.
  float rotary_base = 0;
  float rotary_local_base = 0;  ///< of the layers with a window
  float rotary_divisor = 1;
  /// Llama 3: features that turn once in fewer than `rotary_short_wave` positions are not divided, those that
  /// take more than `rotary_long_wave` are, and the speeds between pass from one to the other. 0: all are
  /// divided.
  float rotary_short_wave = 0;
  float rotary_long_wave = 0;
  /// Texts of more tokens than `rotary_trained` (0: none) stretch the base to their length, times this
  /// factor.
  float rotary_stretch = 1;
  size_t rotary_trained = 0;
  bool alibi = false;  ///< a bias that falls with the distance in place of positions
  bool causal = false;
  size_t window = 0;              ///< keys that a local layer sees to each side
  std::string local_layers = {};  ///< "1" for each layer that is local, "0" for the others; empty: none is
  size_t num_hidden_groups = 0;   ///< layers with weights of their own, each used for equally many; 0: all
  NormPlace norm_place = NormPlace::kPost;
  NormKind norm_kind = NormKind::kLayerNorm;
  bool embedding_norm = true;
  bool query_key_norm = false;
  Gate gate = Gate::kNone;
  bool biases = true;         ///< of every linear layer and norm; else those that there is a tensor for
  float embedding_scale = 1;  ///< of the word embeddings
  float layer_norm_eps = 1e-12f;
  Activation hidden_act = Activation::kGelu;
  /// A static model: no layers; a text's vector is the mean of a row of `static_rows` for each of its tokens.
  size_t static_rows = 0;
  int32_t ignored_id = -1;  ///< a token that the mean of a static model leaves out; -1: none
  Precision precision = Precision::kFp32;

  /// Throws InvalidArgument for a shape that no kernel can run.
  void validate() const;
  /// Features of a token's embedding, before the projection if there is one.
  size_t embedding_width() const { return embedding_size > 0 ? embedding_size : hidden_size; }
  size_t head_width() const { return head_size > 0 ? head_size : hidden_size / num_attention_heads; }
  size_t key_value_heads() const {
    return num_key_value_heads > 0 ? num_key_value_heads : num_attention_heads;
  }
  /// Features of what attention gives, all heads.
  size_t context_width() const { return head_width() * num_attention_heads; }
  bool is_local(size_t layer) const { return layer < local_layers.size() && local_layers[layer] == '1'; }
  bool normalizes_before() const { return norm_place != NormPlace::kPost; }
  size_t stored_layers() const { return num_hidden_groups > 0 ? num_hidden_groups : num_hidden_layers; }
  /// Tokens that a sequence may have.
  size_t positions() const {
    return max_position_embeddings - static_cast<size_t>(static_cast<int64_t>(padding_idx) + 1);
  }
};

/// An array of the model folder. `owner` keeps the memory alive (a mapped file).
struct Tensor {
  /// Those of 16 bits are matrices and tables, kInt32 and kFloat16 are of static models alone.
  enum class Type { kFloat32, kInt8, kFloat16, kBfloat16, kInt32 };

  Type type = Type::kFloat32;
  const void* data = nullptr;
  std::vector<size_t> shape;
  std::shared_ptr<const void> owner;
};

/// Bytes of a value.
inline size_t tensor_item_size(Tensor::Type type) {
  return type == Tensor::Type::kInt8                                         ? 1
         : type == Tensor::Type::kFloat16 || type == Tensor::Type::kBfloat16 ? 2
                                                                             : 4;
}

/// As rows of a table; null of int32.
inline std::optional<RowType> row_type(Tensor::Type type) {
  switch (type) {
    case Tensor::Type::kFloat32:
      return RowType::kFloat32;
    case Tensor::Type::kFloat16:
      return RowType::kFloat16;
    case Tensor::Type::kBfloat16:
      return RowType::kBfloat16;
    case Tensor::Type::kInt8:
      return RowType::kInt8;
    case Tensor::Type::kInt32:
      break;
  }
  return std::nullopt;
}

using Tensors = std::unordered_map<std::string, Tensor>;

/// The pooling modes of sentence-transformers; several concatenate.
enum class PoolingMode { kCls, kMax, kMean, kMeanSqrtLen, kWeightedMean, kLastToken };

/// A module after the pooling: y = activation(x Wᵀ + b), y = x / |x|, or a layer norm with the model's
/// epsilon.
struct HeadModule {
  enum class Type { kDense, kNormalize, kLayerNorm };

  Type type = Type::kNormalize;
  Tensor weight;  ///< (out, in); (features) of a norm, which has no bias
  Tensor bias;    ///< (out) or no data
  Activation activation = Activation::kIdentity;
};

}  // namespace embedkit
