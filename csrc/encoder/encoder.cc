#include "encoder/encoder.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/stage_clock.h"
#include "encoder/pooling.h"

namespace embedkit {
namespace {

/// Rows that go through the feed-forward layer together: their inner activations stay in the second-level
/// cache.
constexpr size_t kPanelRows = 48;
constexpr size_t kNever = ~size_t{0};

struct Share {
  size_t begin;
  size_t end;
};

/// A member's part of `items`.
Share share(size_t items, const Member& member) {
  const auto index = static_cast<size_t>(member.index);
  const auto count = static_cast<size_t>(member.count);
  return {items * index / count, items * (index + 1) / count};
}

/// Waits for the gang, as every stage ends.
void end_stage(Stage stage, const Member& member) {
  StageClock::lap(stage);
  if (member.count == 1) return;
  member.sync();
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

void Workspace::Quantized::shape(const Kernels& kernels, size_t rows, size_t columns) {
  stride = odd_lines(round_up(columns, kernels.quantized_group) * kernels.quantized_bytes);
  data.reserve(rows * stride);
  scale.reserve(rows);
  lowest.reserve(rows);
}

QuantizedRows Workspace::Quantized::from(size_t row) {
  return QuantizedRows{data.data(), stride, scale.data(), lowest.data()}.from(row);
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

void Encoder::prepare(const PackedBatch& batch, Workspace& w, int members) const {
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
  const bool int8 = config_.precision == Precision::kInt8;
  const auto columns = [&](const Linear& linear) { return linear.panels() * kernels_.panel; };
  const Layer& layer = weights_.layers.front();
  w.hidden_.shape(tokens, weights_.projection ? columns(*weights_.projection) : config_.hidden_size);
  if (weights_.projection) w.embedded_.shape(tokens, config_.embedding_size);
  // Attention reads whole vectors and blocks of keys: past the last row there must be memory, whatever is in
  // it.
  w.query_key_value_.shape(tokens + Kernels::kSlackRows, columns(layer.query_key_value));
  w.context_.shape(tokens, config_.hidden_size);
  w.projected_.shape(tokens, std::max(columns(layer.attention_output), columns(layer.output)));
  w.inner_.shape(std::min(tokens, kPanelRows), columns(layer.intermediate));
  if (int8) {
    w.quantized_hidden_.shape(kernels_, tokens, config_.hidden_size);
    w.quantized_context_.shape(kernels_, tokens, config_.hidden_size);
    w.quantized_inner_.shape(kernels_, std::min(tokens, kPanelRows), config_.intermediate_size);
  }
  if (w.scratch_.size() < static_cast<size_t>(members)) w.scratch_.resize(static_cast<size_t>(members));
  const size_t scratch =
      kernels_.attention_scratch(longest, config_.hidden_size / config_.num_attention_heads) +
      Kernels::kSlack;
  for (int m = 0; m < members; ++m) w.scratch_[static_cast<size_t>(m)].reserve(scratch);
  w.stop_step_.store(kNever, std::memory_order_relaxed);
}

void Encoder::add_embeddings(const PackedBatch& batch, Rows& out, size_t begin, size_t end) const {
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

void Encoder::embed(const PackedBatch& batch, Workspace& w, const Member& member) const {
  const size_t tokens = batch.tokens();
  const auto [begin, end] = share(tokens, member);
  const bool projected = weights_.projection.has_value();
  const bool int8 = config_.precision == Precision::kInt8;
  const QuantizedRows quantized = int8 ? w.quantized_hidden_.from(begin) : QuantizedRows{};
  Rows& embedded = projected ? w.embedded_ : w.hidden_;
  add_embeddings(batch, embedded, begin, end);
  kernels_.add_layer_norm(embedded.row(begin), embedded.ld, nullptr, 0, end - begin,
                          config_.embedding_width(), weights_.embedding_norm.weight(),
                          weights_.embedding_norm.bias(), config_.layer_norm_eps,
                          int8 && !projected ? &quantized : nullptr);
  end_stage(Stage::kElementWise, member);
  if (!projected) return;
  const Linear& projection = *weights_.projection;
  const Share panels = share(projection.panels(), member);
  kernels_.linear_fp32(embedded.row(0), embedded.ld, tokens, projection.packed(), panels.begin, panels.end,
                       w.hidden_.row(0), w.hidden_.ld);
  end_stage(Stage::kProducts, member);
  if (!int8) return;
  kernels_.quantize(w.hidden_.row(begin), w.hidden_.ld, end - begin, config_.hidden_size, quantized);
  end_stage(Stage::kQuantize, member);
}

void Encoder::attend(const PackedBatch& batch, Workspace& w, const Member& member) const {
  const size_t heads = config_.num_attention_heads;
  const size_t head_size = config_.hidden_size / heads;
  const auto [begin, end] = share(batch.sequences() * heads, member);
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
        .out = w.context_.row(row) + column,
        .ld_out = w.context_.ld,
        .scratch = w.scratch_[static_cast<size_t>(member.index)].data(),
        .bias = weights_.relative_bias.of_head(item % heads),
    });
  }
}

bool Encoder::feed_forward(const Layer& layer, Workspace& w, size_t tokens, const Member& member,
                           StopToken& stop, size_t& step) const {
  const bool int8 = config_.precision == Precision::kInt8;
  const size_t hidden = config_.hidden_size;
  const Share in_panels = share(layer.intermediate.panels(), member);
  const Share out_panels = share(layer.output.panels(), member);
  for (size_t first = 0; first < tokens; first += kPanelRows) {
    const size_t rows = std::min(kPanelRows, tokens - first);
    const Share own = share(rows, member);
    float* inner = w.inner_.row(0);
    w.ask(++step, member, stop);
    if (int8) {
      kernels_.linear_int8(w.quantized_hidden_.from(first), rows, layer.intermediate.packed(),
                           in_panels.begin, in_panels.end, inner, w.inner_.ld);
    } else {
      kernels_.linear_fp32(w.hidden_.row(first), w.hidden_.ld, rows, layer.intermediate.packed(),
                           in_panels.begin, in_panels.end, inner, w.inner_.ld);
    }
    end_stage(Stage::kProducts, member);
    if (w.stopped_at(step)) return false;
    const QuantizedRows quantized_inner = int8 ? w.quantized_inner_.from(own.begin) : QuantizedRows{};
    kernels_.activate(config_.hidden_act, w.inner_.row(own.begin), w.inner_.ld, own.end - own.begin,
                      config_.intermediate_size, int8 ? &quantized_inner : nullptr);
    end_stage(Stage::kElementWise, member);
    if (int8) {
      kernels_.linear_int8(w.quantized_inner_.from(0), rows, layer.output.packed(), out_panels.begin,
                           out_panels.end, w.projected_.row(first), w.projected_.ld);
    } else {
      kernels_.linear_fp32(inner, w.inner_.ld, rows, layer.output.packed(), out_panels.begin, out_panels.end,
                           w.projected_.row(first), w.projected_.ld);
    }
    end_stage(Stage::kProducts, member);
    const QuantizedRows quantized_hidden =
        int8 ? w.quantized_hidden_.from(first + own.begin) : QuantizedRows{};
    kernels_.add_layer_norm(w.hidden_.row(first + own.begin), w.hidden_.ld,
                            w.projected_.row(first + own.begin), w.projected_.ld, own.end - own.begin, hidden,
                            layer.output_norm.weight(), layer.output_norm.bias(), config_.layer_norm_eps,
                            int8 ? &quantized_hidden : nullptr);
    end_stage(Stage::kElementWise, member);
  }
  return true;
}

bool Encoder::forward(const PackedBatch& batch, Workspace& w, const Member& member,
                      StopToken& stop) const noexcept {
  const size_t tokens = batch.tokens();
  const size_t hidden = config_.hidden_size;
  const bool int8 = config_.precision == Precision::kInt8;
  const Share own = share(tokens, member);
  const QuantizedRows own_hidden = int8 ? w.quantized_hidden_.from(own.begin) : QuantizedRows{};
  const QuantizedRows* quantized_hidden = int8 ? &own_hidden : nullptr;
  const auto linear = [&](const Linear& weights, const Rows& x, Workspace::Quantized& quantized, Rows& out) {
    const Share panels = share(weights.panels(), member);
    if (int8) {
      kernels_.linear_int8(quantized.from(0), tokens, weights.packed(), panels.begin, panels.end, out.row(0),
                           out.ld);
    } else {
      kernels_.linear_fp32(x.row(0), x.ld, tokens, weights.packed(), panels.begin, panels.end, out.row(0),
                           out.ld);
    }
  };

  embed(batch, w, member);
  size_t step = 0;
  for (const Layer& layer : weights_.layers) {
    w.ask(++step, member, stop);
    linear(layer.query_key_value, w.hidden_, w.quantized_hidden_, w.query_key_value_);
    end_stage(Stage::kProducts, member);
    if (w.stopped_at(step)) return false;
    attend(batch, w, member);
    end_stage(Stage::kAttention, member);
    if (int8) {
      kernels_.quantize(w.context_.row(own.begin), w.context_.ld, own.end - own.begin, hidden,
                        w.quantized_context_.from(own.begin));
      end_stage(Stage::kQuantize, member);
    }
    linear(layer.attention_output, w.context_, w.quantized_context_, w.projected_);
    end_stage(Stage::kProducts, member);
    kernels_.add_layer_norm(w.hidden_.row(own.begin), w.hidden_.ld, w.projected_.row(own.begin),
                            w.projected_.ld, own.end - own.begin, hidden, layer.attention_norm.weight(),
                            layer.attention_norm.bias(), config_.layer_norm_eps, quantized_hidden);
    end_stage(Stage::kElementWise, member);
    if (!feed_forward(layer, w, tokens, member, stop, step)) return false;
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
      pool_sequence(pooling_[m], w.hidden_.row(batch.cu_seqlens[s]), w.hidden_.ld, batch.length(s),
                    batch.pool_skip[s], hidden, current->row(s) + m * hidden);
  size_t width = pooling_.size() * hidden;
  for (const Module& module : modules_) {
    if (module.type == HeadModule::Type::kNormalize) {
      for (size_t s = 0; s < sequences; ++s) normalize(current->row(s), width);
      continue;
    }
    const Linear& dense = dense_[module.dense];
    next->shape(sequences, dense.panels() * kernels_.panel);
    kernels_.linear_fp32(current->row(0), current->ld, sequences, dense.packed(), 0, dense.panels(),
                         next->row(0), next->ld);
    width = dense.out_features();
    if (module.activation != Activation::kIdentity)
      kernels_.activate(module.activation, next->row(0), next->ld, sequences, width, nullptr);
    std::swap(current, next);
  }
  return *current;
}

}  // namespace embedkit
