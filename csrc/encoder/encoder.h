// The padding-free encoder of BERT and its kin: packed token ids -> hidden states -> pooled, projected
// vectors.
#pragma once

#include <atomic>
#include <vector>

#include "base/aligned.h"
#include "base/stop.h"
#include "base/thread_pool.h"
#include "encoder/batch.h"
#include "encoder/config.h"
#include "encoder/weights.h"

namespace embedkit {

/// Rows of floats; the stride is an odd number of cache lines, so that equal columns of neighbouring rows do
/// not compete for the same cache set.
struct Rows {
  AlignedBuffer<float> data;
  size_t ld = 0;

  void shape(size_t rows, size_t columns);
  float* row(size_t r) { return data.data() + r * ld; }
  const float* row(size_t r) const { return data.data() + r * ld; }
};

/// The buffers of one forward pass, reused from batch to batch. One gang at a time.
class Workspace {
 public:
  const Rows& hidden() const { return hidden_; }

 private:
  friend class Encoder;

  struct Quantized {
    AlignedBuffer<uint8_t> data;
    AlignedBuffer<float> scale;
    AlignedBuffer<float> lowest;
    size_t stride = 0;

    void shape(const Kernels& kernels, size_t rows, size_t columns);
    QuantizedRows from(size_t row);
  };

  // One member asks whether to stop and names the step; after the next sync all members read the same answer.
  // A plain flag would not do: a fast member could set it for a later step while a slow one still reads it
  // for this one.
  void ask(size_t step, const Member& member, StopToken& stop) {
    if (member.index == 0 && stop.poll()) stop_step_.store(step, std::memory_order_relaxed);
  }
  bool stopped_at(size_t step) const { return stop_step_.load(std::memory_order_relaxed) <= step; }

  Rows embedded_, hidden_, query_key_value_, context_, projected_, inner_;
  Rows pooled_, head_;
  Quantized quantized_hidden_, quantized_context_, quantized_inner_;
  std::vector<AlignedBuffer<float>> scratch_;  // one per member
  std::atomic<size_t> stop_step_{0};
};

/// Immutable after construction and safe to share; each gang brings its own Workspace.
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

  /// Sizes the buffers; to be called by one thread before `forward`. Throws InvalidArgument for an id outside
  /// the embedding table or a sequence longer than the positions.
  void prepare(const PackedBatch& batch, Workspace& workspace, int members) const;

  /// Runs all layers; every member of the gang calls it. Afterwards workspace.hidden() is (tokens,
  /// hidden_size). Returns false, to all members alike, if stopped on the way.
  bool forward(const PackedBatch& batch, Workspace& workspace, const Member& member,
               StopToken& stop) const noexcept;

  /// Pooling and head: vectors of (sequences, dimension). For one thread, after `forward`.
  const Rows& pool(const PackedBatch& batch, Workspace& workspace) const;

 private:
  struct Module {
    HeadModule::Type type;
    size_t dense;  ///< position in dense_
    Activation activation;
  };

  void add_embeddings(const PackedBatch& batch, Rows& out, size_t begin, size_t end) const;
  void embed(const PackedBatch& batch, Workspace& workspace, const Member& member) const;
  void attend(const PackedBatch& batch, Workspace& workspace, const Member& member) const;
  bool feed_forward(const Layer& layer, Workspace& workspace, size_t tokens, const Member& member,
                    StopToken& stop, size_t& step) const;

  EncoderConfig config_;
  const Kernels& kernels_;
  Weights weights_;
  std::vector<PoolingMode> pooling_;
  std::vector<Module> modules_;
  std::vector<Linear> dense_;
  size_t dimension_ = 0;
};

}  // namespace embedkit
