#include "encoder/encoder.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/stage_clock.h"
#include "encoder/pooling.h"

namespace embedkit {
namespace {

constexpr size_t kNever = ~size_t{0};

/// Waits for the other workers, as every stage ends.
void end_stage(Stage stage, const Worker& worker) {
  StageClock::lap(stage);
  if (worker.count == 1) return;
  worker.sync();
  StageClock::lap(Stage::kWait);
}

size_t odd_lines(size_t bytes) {
  const size_t lines = (bytes + kCacheLine - 1) / kCacheLine;
  return (lines | 1) * kCacheLine;
}

}  // namespace

void Rows::shape(size_t rows, size_t columns) {
  ld = odd_lines(columns * sizeof(float)) / sizeof(float);
  data.reserve(rows * ld + Kernels::kSlack);
}

void Activations::shape(const Kernels& kernels, Precision precision, size_t rows, size_t columns,
                        size_t padded) {
  floats_.shape(rows, padded);
  precision_ = precision;
  switch (precision) {
    case Precision::kFp32:
      return;
    case Precision::kBf16:
      stride_ = odd_lines(round_up(columns, kernels.bf16.group) * sizeof(uint16_t));
      break;
    case Precision::kInt8:
      stride_ = odd_lines(round_up(columns, kernels.quantized_group) * kernels.quantized_bytes);
      scale_.reserve(rows);
      lowest_.reserve(rows);
      break;
  }
  data_.reserve(rows * stride_);
}

QuantizedRows Activations::quantized(size_t first) {
  if (precision_ == Precision::kFp32) return {};
  const auto form = precision_ == Precision::kBf16 ? QuantizedRows::Form::kBf16 : QuantizedRows::Form::kInt8;
  return QuantizedRows{data_.data(), stride_, scale_.data(), lowest_.data(), form}.from(first);
}

Encoder::Encoder(EncoderConfig config, const Tensors& tensors, std::vector<PoolingMode> pooling,
                 std::vector<HeadModule> head, const Kernels& kernels)
    : config_(config),
      kernels_(kernels),
      weights_(load_weights(config, tensors, kernels)),
      pooling_(std::move(pooling)) {
  require(!pooling_.empty(), "the pooling has no mode; give at least one");
  dimension_ = pooling_.size() * config_.hidden_size;
  for (HeadModule& module : head) {
    modules_.push_back({module.type, dense_.size(), module.activation});
    if (module.type == HeadModule::Type::kNormalize) continue;
    const std::vector<size_t>& shape = module.weight.shape;
    require(shape.size() == 2 && shape[1] == dimension_ && shape[0] > 0, "a dense module takes ",
            shape.size() == 2 ? shape[1] : 0, " features, the module before it gives ", dimension_);
    dense_.emplace_back(kernels_, Precision::kFp32,
                        std::vector<Linear::Part>{{module.weight, Tensor{}, module.bias}});
    dimension_ = shape[0];
  }
}

size_t Encoder::memory_bytes() const {
  size_t bytes = weights_.memory_bytes();
  for (const Linear& linear : dense_) bytes += linear.memory_bytes();
  return bytes;
}

void Encoder::prepare(const PackedBatch& batch, Workspace& w, int workers) const {
  for (int32_t id : batch.ids)
    require(id >= 0 && static_cast<size_t>(id) < weights_.words.size(), "token id ", id,
            " is outside the model's table of ", weights_.words.size(),
            " tokens; the tokenizer is another model's");
  for (int32_t type : batch.token_types)
    require(type >= 0 && static_cast<size_t>(type) < std::max<size_t>(config_.type_vocab_size, 1),
            "token type ", type, " is outside the model's table of ", config_.type_vocab_size,
            " types; the tokenizer is another model's");
  size_t longest = 0;
  for (size_t s = 0; s < batch.sequences(); ++s) longest = std::max(longest, batch.length(s));
  require(longest <= config_.positions(), "a sequence of ", longest, " tokens is longer than the model's ",
          config_.positions(), " positions; set max_length");

  const size_t tokens = batch.tokens();
  const size_t hidden = config_.hidden_size;
  const Layer& layer = weights_.layers.front();
  w.hidden_.shape(kernels_, config_.precision, tokens, hidden,
                  weights_.projection ? weights_.projection->columns() : hidden);
  if (weights_.projection) w.embedded_.shape(tokens, config_.embedding_size);
  // Attention reads whole vectors and blocks of keys: past the last row there must be memory, whatever is in
  // it.
  w.query_key_value_.shape(tokens + Kernels::kSlackRows, layer.query_key_value.columns());
  w.context_.shape(kernels_, config_.precision, tokens, hidden, hidden);
  w.projected_.shape(tokens, std::max(layer.attention_output.columns(), layer.output.columns()));
  w.inner_.shape(kernels_, config_.precision, std::min(tokens, kernels_.feed_forward_rows),
                 config_.intermediate_size, layer.intermediate.columns());
  if (w.scratch_.size() < static_cast<size_t>(workers)) w.scratch_.resize(static_cast<size_t>(workers));
  const size_t scratch =
      kernels_.attention_scratch(longest, hidden / config_.num_attention_heads) + Kernels::kSlack;
  for (int m = 0; m < workers; ++m) w.scratch_[static_cast<size_t>(m)].reserve(scratch);
  w.stop_step_.store(kNever, std::memory_order_relaxed);
}

void Encoder::add_embeddings(const PackedBatch& batch, Rows& out, Share tokens) const {
  const auto [begin, end] = tokens;
  const size_t width = config_.embedding_width();
  size_t sequence =
      static_cast<size_t>(std::upper_bound(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), begin) -
                          batch.cu_seqlens.begin() - 1);
  const int32_t padding = config_.padding_idx;
  int32_t position = padding;  // of the last token that has one
  if (begin < end)
    for (size_t t = batch.cu_seqlens[sequence]; t < begin; ++t) position += batch.ids[t] != padding;
  for (size_t t = begin; t < end; ++t) {
    for (; t >= batch.cu_seqlens[sequence + 1]; ++sequence) position = padding;
    const int32_t id = batch.ids[t];
    float* row = out.row(t);
    const size_t type = batch.token_types.empty() ? 0 : static_cast<size_t>(batch.token_types[t]);
    std::copy_n(weights_.token_types.data() + type * width, width, row);
    weights_.words.add(kernels_, static_cast<size_t>(id), row);
    if (weights_.positions)
      weights_.positions->add(kernels_, static_cast<size_t>(id == padding ? padding : ++position), row);
  }
}

void Encoder::linear(const Linear& weights, const Operand& x, size_t rows, Rows& out, size_t out_row,
                     const Worker& worker) const {
  weights.multiply(kernels_, x, rows, worker.share(weights.panels()), out.row(out_row), out.ld);
  end_stage(Stage::kProducts, worker);
}

void Encoder::quantize(Activations& x, Share rows, const Worker& worker) const {
  const QuantizedRows quantized = x.quantized(rows.begin);
  if (quantized.data == nullptr) return;
  const Rows& floats = x.floats();
  kernels_.quantize(floats.row(rows.begin), floats.ld, rows.size(), config_.hidden_size, quantized);
  end_stage(Stage::kQuantize, worker);
}

void Encoder::add_and_normalize(const LayerNorm& norm, Activations& x, const Rows& y, Share rows) const {
  kernels_.add_layer_norm(x.floats().row(rows.begin), x.floats().ld, y.row(rows.begin), y.ld, rows.size(),
                          config_.hidden_size, norm.weight(), norm.bias(), config_.layer_norm_eps,
                          x.quantized(rows.begin));
}

void Encoder::embed(const PackedBatch& batch, Workspace& w, const Worker& worker) const {
  const Share own = worker.share(batch.tokens());
  const bool projected = weights_.projection.has_value();
  Rows& embedded = projected ? w.embedded_ : w.hidden_.floats();
  add_embeddings(batch, embedded, own);
  kernels_.add_layer_norm(embedded.row(own.begin), embedded.ld, nullptr, 0, own.size(),
                          config_.embedding_width(), weights_.embedding_norm.weight(),
                          weights_.embedding_norm.bias(), config_.layer_norm_eps,
                          projected ? QuantizedRows{} : w.hidden_.quantized(own.begin));
  end_stage(Stage::kElementWise, worker);
  if (!projected) return;
  linear(*weights_.projection, embedded.operand(0), batch.tokens(), w.hidden_.floats(), 0, worker);
  quantize(w.hidden_, own, worker);
}

void Encoder::attend(const PackedBatch& batch, Workspace& w, const Worker& worker) const {
  const size_t heads = config_.num_attention_heads;
  const size_t head_size = config_.hidden_size / heads;
  const auto [begin, end] = worker.share(batch.sequences() * heads);
  for (size_t item = begin; item < end; ++item) {
    const size_t sequence = item / heads;
    const size_t row = batch.cu_seqlens[sequence];
    const size_t column = item % heads * head_size;
    float* q = w.query_key_value_.row(row) + column;
    // These columns of these rows are this item's alone.
    if (!weights_.rotary.empty())
      for (size_t part = 0; part < (config_.rotary_value ? 3 : 2); ++part)
        kernels_.rotate(q + part * config_.hidden_size, w.query_key_value_.ld, batch.length(sequence),
                        head_size, weights_.rotary.data());
    kernels_.attention({
        .q = q,
        .k = q + config_.hidden_size,
        .v = q + 2 * config_.hidden_size,
        .ld = w.query_key_value_.ld,
        .length = batch.length(sequence),
        .head_size = head_size,
        .out = w.context_.floats().row(row) + column,
        .ld_out = w.context_.floats().ld,
        .scratch = w.scratch_[static_cast<size_t>(worker.index)].data(),
        .bias = weights_.relative_bias.of_head(item % heads),
    });
  }
}

bool Encoder::feed_forward(const Layer& layer, Workspace& w, size_t tokens, const Worker& worker,
                           StopToken& stop, size_t& step) const {
  const size_t most = kernels_.feed_forward_rows;
  for (size_t first = 0; first < tokens; first += most) {
    const size_t rows = std::min(most, tokens - first);
    const Share own = worker.share(rows);
    Rows& inner = w.inner_.floats();
    w.ask(++step, worker, stop);
    linear(layer.intermediate, w.hidden_.operand(first), rows, inner, 0, worker);
    if (w.stopped_at(step)) return false;
    kernels_.activate(config_.hidden_act, inner.row(own.begin), inner.ld, own.size(),
                      config_.intermediate_size, w.inner_.quantized(own.begin));
    end_stage(Stage::kElementWise, worker);
    linear(layer.output, w.inner_.operand(0), rows, w.projected_, first, worker);
    add_and_normalize(layer.output_norm, w.hidden_, w.projected_, own.shifted(first));
    end_stage(Stage::kElementWise, worker);
  }
  return true;
}

bool Encoder::forward(const PackedBatch& batch, Workspace& w, const Worker& worker,
                      StopToken& stop) const noexcept {
  const size_t tokens = batch.tokens();
  const Share own = worker.share(tokens);
  embed(batch, w, worker);
  size_t step = 0;
  for (const Layer& layer : weights_.layers) {
    w.ask(++step, worker, stop);
    linear(layer.query_key_value, w.hidden_.operand(0), tokens, w.query_key_value_, 0, worker);
    if (w.stopped_at(step)) return false;
    attend(batch, w, worker);
    end_stage(Stage::kAttention, worker);
    quantize(w.context_, own, worker);
    linear(layer.attention_output, w.context_.operand(0), tokens, w.projected_, 0, worker);
    add_and_normalize(layer.attention_norm, w.hidden_, w.projected_, own);
    end_stage(Stage::kElementWise, worker);
    if (!feed_forward(layer, w, tokens, worker, stop, step)) return false;
  }
  return true;
}

const Rows& Encoder::pool(const PackedBatch& batch, Workspace& w) const {
  const size_t sequences = batch.sequences();
  const size_t hidden = config_.hidden_size;
  Rows* current = &w.pooled_;
  Rows* next = &w.head_;
  current->shape(sequences, pooling_.size() * hidden);
  for (size_t s = 0; s < sequences; ++s)
    for (size_t m = 0; m < pooling_.size(); ++m)
      pool_sequence(pooling_[m], w.hidden().row(batch.cu_seqlens[s]), w.hidden().ld, batch.length(s),
                    batch.pool_skip[s], hidden, current->row(s) + m * hidden);
  size_t width = pooling_.size() * hidden;
  for (const Module& module : modules_) {
    if (module.type == HeadModule::Type::kNormalize) {
      for (size_t s = 0; s < sequences; ++s) normalize(current->row(s), width);
      continue;
    }
    const Linear& dense = dense_[module.dense];
    next->shape(sequences, dense.columns());
    dense.multiply(kernels_, current->operand(0), sequences, {0, dense.panels()}, next->row(0), next->ld);
    width = dense.out_features();
    if (module.activation != Activation::kIdentity)
      kernels_.activate(module.activation, next->row(0), next->ld, sequences, width, {});
    std::swap(current, next);
  }
  return *current;
}

}  // namespace embedkit
