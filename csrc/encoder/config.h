// The configuration of an encoder, as plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"

namespace embedkit {

enum class Precision { kFp32, kBf16, kInt8 };

/// The shape of an encoder; names as in Hugging Face's config.json. Without the fields that have a default it
/// is a BERT, and the tensors have BERT's names whatever the architecture calls them.
struct EncoderConfig {
  size_t hidden_size = 0;
  size_t num_hidden_layers = 0;
  size_t num_attention_heads = 0;
  size_t intermediate_size = 0;
  size_t vocab_size = 0;
  size_t max_position_embeddings = 0;
  size_t type_vocab_size = 0;  ///< 0: the model has no token types
  /// The token that takes no position; the others count from the one after it, as in fairseq. -1: no such
  /// token, positions count from 0.
  int32_t padding_idx = -1;
  /// Of the relative position bias that all layers share (MPNet); 0: none.
  size_t relative_attention_num_buckets = 0;
  bool rotary = false;        ///< positions rotate query and key instead of a position table
  bool rotary_value = false;  ///< and the value
  size_t embedding_size = 0;  ///< of the embeddings where they are projected to hidden_size; 0: they are not
  float layer_norm_eps = 1e-12f;
  Activation hidden_act = Activation::kGelu;
  Precision precision = Precision::kFp32;

  /// Throws InvalidArgument for a shape that no kernel can run.
  void validate() const;
  /// Features of a token's embedding, before the projection if there is one.
  size_t embedding_width() const { return embedding_size > 0 ? embedding_size : hidden_size; }
  /// Tokens that a sequence may have.
  size_t positions() const {
    return max_position_embeddings - static_cast<size_t>(static_cast<int64_t>(padding_idx) + 1);
  }
};

/// An array of the model folder. `owner` keeps the memory alive (a mapped file).
struct Tensor {
  enum class Type { kFloat32, kInt8 };

  Type type = Type::kFloat32;
  const void* data = nullptr;
  std::vector<size_t> shape;
  std::shared_ptr<const void> owner;
};

using Tensors = std::unordered_map<std::string, Tensor>;

/// The pooling modes of sentence-transformers; several concatenate.
enum class PoolingMode { kCls, kMax, kMean, kMeanSqrtLen, kWeightedMean, kLastToken };

/// A module after the pooling: y = activation(x Wᵀ + b), or y = x / |x|.
struct HeadModule {
  enum class Type { kDense, kNormalize };

  Type type = Type::kNormalize;
  Tensor weight;  ///< (out, in)
  Tensor bias;    ///< (out) or no data
  Activation activation = Activation::kIdentity;
};

}  // namespace embedkit
