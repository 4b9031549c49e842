// The padding-free encoder of BERT and its kin: packed token ids -> hidden states -> pooled, projected
// vectors.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "base/aligned.h"
#include "base/stop.h"
#include "base/thread_pool.h"
#include "encoder/batch.h"
#include "encoder/config.h"
#include "encoder/static_table.h"
#include "encoder/weights.h"

namespace embedkit {

/// Rows of floats; the stride is an odd number of cache lines, so that equal columns of neighboring rows do
/// not compete for the same cache set.
struct Rows {
  AlignedBuffer<float> data;
  size_t ld = 0;

  void shape(size_t rows, size_t columns);
  float* row(size_t r) { return data.data() + r * ld; }
  const float* row(size_t r) const { return data.data() + r * ld; }
  /// The rows from `first` on, for an fp32 product.
  Operand operand(size_t first) const { return {row(first), ld, {}}; }
};

/// Rows that the products of a model read: floats, and beside them what its precision makes of them.
class Activations {
 public:
  /// `columns` of them are read; the floats have room for `padded` ones.
  void shape(const Kernels& kernels, Precision precision, size_t rows, size_t columns, size_t padded);

  size_t columns() const { return columns_; }
  size_t bytes() const { return floats_.data.bytes() + data_.bytes() + scale_.bytes() + lowest_.bytes(); }
  Rows& floats() { return floats_; }
  const Rows& floats() const { return floats_; }
  /// The quantized rows from `first` on; without data in a model that does not quantize.
  QuantizedRows quantized(size_t first);
  Operand operand(size_t first) { return {floats_.row(first), floats_.ld, quantized(first)}; }

 private:
  Rows floats_;
  Precision precision_ = Precision::kFp32;
  size_t columns_ = 0;
  AlignedBuffer<uint8_t> data_;
  AlignedBuffer<float> scale_, lowest_;
  size_t stride_ = 0;
};

/// The buffers of one forward pass, reused from batch to batch. For one call at a time.
class Workspace {
 public:
  /// (tokens, hidden_size), after the last norm.
  const Rows& hidden() const { return separate_ ? normed_.floats() : hidden_.floats(); }
  /// What its buffers take, those of a row for each token.
  size_t bytes() const;

 private:
  friend class Encoder;

  // One worker asks whether to stop and names the step; after the next sync all workers read the same answer.
  // A plain flag would not do: a fast worker could set it for a later step while a slow one still reads it
  // for this one.
  void ask(size_t step, const Worker& worker, StopToken& stop) {
    if (worker.index == 0 && stop.poll()) stop_step_.store(step, std::memory_order_relaxed);
  }
  bool stopped_at(size_t step) const { return stop_step_.load(std::memory_order_relaxed) <= step; }

  Rows embedded_, query_key_value_, projected_;
  Activations hidden_, context_, inner_;
  Activations normed_;               ///< what the products read where it is not `hidden_`
  bool separate_ = false;            ///< whether the model has `normed_`
  std::vector<RotaryTable> rotary_;  ///< for each sequence that the model's tables are too short for
  std::vector<size_t> rotary_of_;    ///< (sequences) its place in rotary_, two tables each; or none
  Rows pooled_, head_;
  StaticTable::Buffers static_;
  std::vector<AlignedBuffer<float>> scratch_;  // one per worker
  std::atomic<size_t> stop_step_{0};
};

/// Immutable after construction and safe to share; each call brings its own Workspace.
class Encoder {
 public:
  /// Throws InvalidArgument that names what does not fit: a tensor, a module, a pooling without modes.
  Encoder(EncoderConfig config, const Tensors& tensors, std::vector<PoolingMode> pooling,
          std::vector<HeadModule> head, const Kernels& kernels);

  const EncoderConfig& config() const { return config_; }
  const Kernels& kernels() const { return kernels_; }
  /// Of the vectors, after the head.
  size_t dimension() const { return dimension_; }
  /// Whether the last module of the head is Normalize.
  bool ends_normalized() const {
    return !modules_.empty() && modules_.back().type == HeadModule::Type::kNormalize;
  }
  size_t memory_bytes() const;
  const Batching& batching() const { return batching_; }
  /// Whether it has tokens' vectors before the pooling: a static model has none.
  bool has_hidden() const { return !static_; }

  /// Sizes the buffers; to be called by one thread before `forward`. Throws InvalidArgument for an id outside
  /// the embedding table or a sequence longer than the positions.
  void prepare(const PackedBatch& batch, Workspace& workspace, int workers) const;

  /// Runs all layers; every worker calls it. Afterwards workspace.hidden() is (tokens,
  /// hidden_size). Returns false, to all workers alike, if stopped on the way.
  bool forward(const PackedBatch& batch, Workspace& workspace, const Worker& worker,
               StopToken& stop) const noexcept;

  /// How many tokens of a sequence its vector is of.
  size_t pooled_tokens(const PackedBatch& batch, size_t sequence) const;

  /// Pooling and head: vectors of (sequences, dimension). For one thread, after `forward`.
  const Rows& pool(const PackedBatch& batch, Workspace& workspace) const;

 private:
  struct Module {
    HeadModule::Type type;
    size_t dense;             ///< position in dense_
    std::vector<float> norm;  ///< weights of kLayerNorm
    Activation activation;
  };

  /// out[out_row:] = x Wᵀ + b, the panels that are this worker's.
  void linear(const Linear& weights, const Operand& x, size_t rows, Rows& out, size_t out_row,
              const Worker& worker) const;
  const Attention& attention() const;
  /// Floats that it needs.
  size_t attention_scratch(size_t length) const;
  /// x = norm(x), in floats, for `Kernels::norm`.
  NormTask norm_task(const LayerNorm& norm, float* x, size_t ld, size_t rows, size_t columns) const;
  /// The sum of the hidden states and a part's result in `rows`, and what the next part reads: normalized
  /// after the sum with `post`, or the result with `post` and the sum with `pre`.
  void end_part(const LayerNorm& post, const LayerNorm& pre, Workspace& workspace, Share rows) const;
  /// x += y (unless null), out = norm(x), quantized where the model does; out may hold x.
  void normalize_into(const LayerNorm& norm, Rows& x, const Rows* y, Activations& out, Share rows) const;
  Activations& inputs(Workspace& workspace) const {
    return workspace.separate_ ? workspace.normed_ : workspace.hidden_;
  }
  const Layer& layer(size_t index) const {
    return weights_.layers[index * weights_.layers.size() / config_.num_hidden_layers];
  }
  void prepare_rotary(const PackedBatch& batch, Workspace& workspace) const;
  const float* rotary_table(const Workspace& workspace, size_t sequence, bool local) const;
  /// Norm and rotation of heads `first` up to `end` of one sequence, counted over queries, keys and values.
  void norm_and_rotate(const PackedBatch& batch, Workspace& workspace, size_t index, size_t sequence,
                       Share heads) const;
  /// Quantizes `rows` of x where the model does.
  void quantize(Activations& x, Share rows, const Worker& worker) const;
  void add_embeddings(const PackedBatch& batch, Rows& out, Share tokens) const;
  void embed(const PackedBatch& batch, Workspace& workspace, const Worker& worker) const;
  void attend(const PackedBatch& batch, Workspace& workspace, size_t index, const Worker& worker,
              StopToken& stop) const;
  bool feed_forward(size_t index, Workspace& workspace, size_t tokens, const Worker& worker, StopToken& stop,
                    size_t& step) const;

  EncoderConfig config_;
  const Kernels& kernels_;
  std::optional<StaticTable> static_;  ///< of a static model, whose weights_ are empty
  Weights weights_;
  Batching batching_;
  std::vector<PoolingMode> pooling_;
  std::vector<Module> modules_;
  std::vector<Linear> dense_;
  size_t dimension_ = 0;
};

}  // namespace embedkit
