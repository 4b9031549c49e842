#include "encoder/encoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/isa.h"
#include "base/stage_clock.h"
#include "encoder/pooling.h"

namespace embedkit {
namespace {

constexpr size_t kNever = ~size_t{0};
/// Heads of that many tokens take so long that they are computed one by one: a stop is noticed between them.
constexpr size_t kLongAttention = 2048;

/// Waits for the other workers, as every stage ends.
void end_stage(Stage stage, const Worker& worker) {
  StageClock::lap(stage);
  if (worker.count == 1) return;
  worker.sync();
  StageClock::lap(Stage::kWait);
}

Batching batching_for(const Weights& weights, const Kernels& kernels) {
  const bool large =
      !weights.layers.empty() && weights.layers.front().memory_bytes() > 2 * second_level_cache();
  return large ? kernels.large_layers : kernels.small_layers;
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
  columns_ = columns;
  switch (precision) {
    case Precision::kFp32:
      return;
    case Precision::kBf16:
      stride_ = odd_lines(round_up(columns, kernels.bf16.group) * sizeof(uint16_t));
      break;
    case Precision::kInt8:
      stride_ = odd_lines(round_up(columns, kernels.quantized_group));
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

size_t Workspace::bytes() const {
  size_t sum = 0;
  for (const Rows* rows : {&embedded_, &query_key_value_, &projected_, &pooled_, &head_})
    sum += rows->data.bytes();
  for (const Activations* rows : {&hidden_, &context_, &inner_, &normed_}) sum += rows->bytes();
  for (const AlignedBuffer<float>& scratch : scratch_) sum += scratch.bytes();
  return sum;
}

Encoder::Encoder(EncoderConfig config, const Tensors& tensors, std::vector<PoolingMode> pooling,
                 std::vector<HeadModule> head, const Kernels& kernels)
    : config_(config),
      kernels_(kernels),
      weights_(load_weights(config, tensors, kernels)),
      batching_(batching_for(weights_, kernels)),
      pooling_(std::move(pooling)) {
  require(!pooling_.empty(), "the pooling has no mode; give at least one");
  if (config_.static_rows > 0) {
    static_.emplace(config_, tensors);
    require(pooling_ == std::vector<PoolingMode>{PoolingMode::kMean},
            "a static model has no pooling but mean");
  }
  dimension_ = pooling_.size() * config_.hidden_size;
  for (HeadModule& module : head) {
    modules_.push_back({module.type, dense_.size(), {}, module.activation});
    if (module.type == HeadModule::Type::kLayerNorm) {
      require(module.weight.shape == std::vector<size_t>{dimension_},
              "a norm of the head does not fit its input");
      const auto* weight = static_cast<const float*>(module.weight.data);
      modules_.back().norm.assign(weight, weight + dimension_);
      continue;
    }
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
  size_t bytes = static_ ? static_->memory_bytes() : weights_.memory_bytes();
  for (const Linear& linear : dense_) bytes += linear.memory_bytes();
  return bytes;
}

void Encoder::prepare(const PackedBatch& batch, Workspace& w, int workers) const {
  const size_t table = static_ ? static_->tokens() : weights_.words.size();
  for (int32_t id : batch.ids)
    require(id >= 0 && static_cast<size_t>(id) < table, "token id ", id, " is outside the model's table of ",
            table, " tokens; the tokenizer is another model's");
  for (int32_t type : batch.token_types)
    require(type >= 0 && static_cast<size_t>(type) < std::max<size_t>(config_.type_vocab_size, 1),
            "token type ", type, " is outside the model's table of ", config_.type_vocab_size,
            " types; the tokenizer is another model's");
  size_t longest = 0;
  for (size_t s = 0; s < batch.sequences(); ++s) longest = std::max(longest, batch.length(s));
  require(longest <= config_.positions(), "a sequence of ", longest, " tokens is longer than the model's ",
          config_.positions(), " positions; set max_length");

  if (static_) return;

  const size_t tokens = batch.tokens();
  const size_t hidden = config_.hidden_size;
  w.separate_ = config_.normalizes_before();
  prepare_rotary(batch, w);
  w.hidden_.shape(kernels_, config_.precision, tokens, hidden,
                  weights_.projection ? weights_.projection->columns() : hidden);
  if (weights_.projection) w.embedded_.shape(tokens, config_.embedding_size);
  if (w.separate_) w.normed_.shape(kernels_, config_.precision, tokens, hidden, hidden);
  w.stop_step_.store(kNever, std::memory_order_relaxed);
  const Layer& layer = weights_.layers.front();
  // Attention reads whole vectors and blocks of keys: past the last row there must be memory, whatever is in
  // it.
  w.query_key_value_.shape(tokens + Kernels::kSlackRows, layer.query_key_value.columns());
  w.context_.shape(kernels_, config_.precision, tokens, config_.context_width(), config_.context_width());
  w.projected_.shape(tokens, std::max(layer.attention_output.columns(), layer.output.columns()));
  w.inner_.shape(kernels_, config_.precision, std::min(tokens, batching_.feed_forward_rows),
                 config_.intermediate_size, layer.intermediate.columns());
  if (w.scratch_.size() < static_cast<size_t>(workers)) w.scratch_.resize(static_cast<size_t>(workers));
  const size_t scratch =
      attention_scratch(longest) + (layer.position_scores ? layer.position_scores->scratch(longest) : 0);
  for (int m = 0; m < workers; ++m) w.scratch_[static_cast<size_t>(m)].reserve(scratch);
}

void Encoder::prepare_rotary(const PackedBatch& batch, Workspace& w) const {
  if (config_.rotary_base == 0) return;
  w.rotary_of_.assign(batch.sequences(), kNever);
  const size_t width = config_.head_width();
  std::vector<RotaryTable> tables;
  std::vector<size_t> lengths;
  size_t longest = 0;
  for (size_t s = 0; s < batch.sequences(); ++s) longest = std::max(longest, batch.length(s));
  for (size_t s = 0; s < batch.sequences(); ++s) {
    const size_t length = batch.length(s);
    const bool stretched = config_.rotary_trained > 0 && length > config_.rotary_trained;
    if (!stretched && length <= weights_.rotary.positions()) continue;
    // Those that are not stretched share the table of the longest.
    const size_t key = stretched ? length : longest + 1;
    size_t place = static_cast<size_t>(std::find(lengths.begin(), lengths.end(), key) - lengths.begin());
    w.rotary_of_[s] = place;
    if (place < lengths.size()) continue;
    lengths.push_back(key);
    float base = config_.rotary_base;
    if (stretched) {
      const double ratio = static_cast<double>(length) / static_cast<double>(config_.rotary_trained);
      const double grown = double{config_.rotary_stretch} * ratio - (double{config_.rotary_stretch} - 1.0);
      base = static_cast<float>(double{base} *
                                std::pow(grown, static_cast<double>(width) / static_cast<double>(width - 2)));
    }
    const size_t positions = stretched ? length : longest;
    const float local = config_.rotary_local_base;
    tables.emplace_back(positions, width,
                        RotaryTable::Speed{base, config_.rotary_divisor, config_.rotary_short_wave,
                                           config_.rotary_long_wave});
    tables.push_back(local > 0 ? RotaryTable(positions, width, RotaryTable::Speed{local}) : RotaryTable());
  }
  w.rotary_ = std::move(tables);
}

const float* Encoder::rotary_table(const Workspace& w, size_t sequence, bool local) const {
  local = local && config_.rotary_local_base > 0;
  if (config_.rotary_base > 0 && w.rotary_of_[sequence] != kNever)
    return w.rotary_[2 * w.rotary_of_[sequence] + (local ? 1 : 0)].data();
  return local ? weights_.local_rotary.data() : weights_.rotary.data();
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
    weights_.words.add(kernels_, weights_.token_types.data() + type * width, static_cast<size_t>(id), row);
    if (config_.embedding_scale != 1.0f)
      for (size_t i = 0; i < width; ++i) row[i] *= config_.embedding_scale;
    if (weights_.positions)
      weights_.positions->add(kernels_, row, static_cast<size_t>(id == padding ? padding : ++position), row);
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
  kernels_.quantize(floats.row(rows.begin), floats.ld, rows.size(), x.columns(), quantized);
  end_stage(Stage::kQuantize, worker);
}

NormTask Encoder::norm_task(const LayerNorm& norm, float* x, size_t ld, size_t rows, size_t columns) const {
  return {
      .x = x,
      .ld = ld,
      .rows = rows,
      .columns = columns,
      .gamma = norm.weight(),
      .beta = norm.bias(),
      .epsilon = config_.layer_norm_eps,
      .rms = config_.norm_kind != NormKind::kLayerNorm,
      .out = x,
      .ld_out = ld,
  };
}

void Encoder::normalize_into(const LayerNorm& norm, Rows& x, const Rows* y, Activations& out,
                             Share rows) const {
  NormTask task = norm_task(norm, x.row(rows.begin), x.ld, rows.size(), config_.hidden_size);
  if (y != nullptr) {
    task.y = y->row(rows.begin);
    task.ld_y = y->ld;
  }
  task.out = out.floats().row(rows.begin);
  task.ld_out = out.floats().ld;
  task.quantized = out.quantized(rows.begin);
  kernels_.norm(task);
}

void Encoder::end_part(const LayerNorm& post, const LayerNorm& pre, Workspace& w, Share rows) const {
  if (!w.separate_) return normalize_into(post, w.hidden_.floats(), &w.projected_, w.hidden_, rows);
  if (config_.norm_place == NormPlace::kAround)
    kernels_.norm(
        norm_task(post, w.projected_.row(rows.begin), w.projected_.ld, rows.size(), config_.hidden_size));
  normalize_into(pre, w.hidden_.floats(), &w.projected_, w.normed_, rows);
}

void Encoder::embed(const PackedBatch& batch, Workspace& w, const Worker& worker) const {
  const Share own = worker.share(batch.tokens());
  const bool projected = weights_.projection.has_value();
  Rows& embedded = projected ? w.embedded_ : w.hidden_.floats();
  add_embeddings(batch, embedded, own);
  if (config_.embedding_norm) {
    NormTask task = norm_task(weights_.embedding_norm, embedded.row(own.begin), embedded.ld, own.size(),
                              config_.embedding_width());
    if (!projected) task.quantized = w.hidden_.quantized(own.begin);
    kernels_.norm(task);
  }
  if (w.separate_) {
    const LayerNorm& norm = weights_.layers.front().attention_input_norm;
    if (norm.weight() != nullptr) {
      normalize_into(norm, w.hidden_.floats(), nullptr, w.normed_, own);
    } else {
      for (size_t t = own.begin; t < own.end; ++t)
        std::copy_n(w.hidden_.floats().row(t), config_.hidden_size, w.normed_.floats().row(t));
      if (w.normed_.quantized(0).data != nullptr)
        kernels_.quantize(w.hidden_.floats().row(own.begin), w.hidden_.floats().ld, own.size(),
                          config_.hidden_size, w.normed_.quantized(own.begin));
    }
  }
  end_stage(Stage::kElementWise, worker);
  if (!projected) return;
  linear(*weights_.projection, embedded.operand(0), batch.tokens(), w.hidden_.floats(), 0, worker);
  quantize(w.hidden_, own, worker);
}

void Encoder::norm_and_rotate(const PackedBatch& batch, Workspace& w, size_t index, size_t sequence,
                              Share heads) const {
  const size_t width = config_.head_width();
  const size_t queries = config_.num_attention_heads, keys = queries + config_.key_value_heads();
  const bool rotates = !weights_.rotary.empty();
  const float* table = rotates ? rotary_table(w, sequence, config_.is_local(index)) : nullptr;
  for (size_t head = heads.begin; head < heads.end; ++head) {
    float* x = w.query_key_value_.row(batch.cu_seqlens[sequence]) + head * width;
    if (config_.query_key_norm && head < keys) {
      const LayerNorm& norm = head < queries ? layer(index).query_norm : layer(index).key_norm;
      kernels_.norm(norm_task(norm, x, w.query_key_value_.ld, batch.length(sequence), width));
    }
    if (rotates && (head < keys || config_.rotary_value))
      kernels_.rotate(x, w.query_key_value_.ld, batch.length(sequence), width, table);
  }
}

size_t Encoder::attention_scratch(size_t length) const {
  return attention().scratch(length, config_.head_width()) + Kernels::kSlack;
}

const Attention& Encoder::attention() const {
  switch (config_.precision) {
    case Precision::kInt8:
      return kernels_.attention_int8;
    case Precision::kBf16:
      return kernels_.bf16.attention;
    default:
      return kernels_.attention;
  }
}

void Encoder::attend(const PackedBatch& batch, Workspace& w, size_t index, const Worker& worker,
                     StopToken& stop) const {
  const size_t heads = config_.num_attention_heads;
  const size_t head_size = config_.head_width();
  const size_t shared = config_.key_value_heads();
  const bool local = config_.is_local(index);
  // Queries and keys are placed before if several items read one key, or if other workers may read on past
  // the end of a sequence, in whole vectors, while this one writes there.
  const bool places = config_.query_key_norm || !weights_.rotary.empty();
  const bool before = places && (shared < heads || worker.count > 1);
  if (before) {
    const size_t all = heads + 2 * shared;
    const Share own = worker.share(batch.sequences() * all);
    for (size_t item = own.begin; item < own.end; ++item)
      norm_and_rotate(batch, w, index, item / all, {item % all, item % all + 1});
    end_stage(Stage::kAttention, worker);
  }
  const auto [begin, end] = worker.share(batch.sequences() * heads);
  const size_t terms = config_.score_terms;
  const float scale = terms > 0 ? 1.0f / std::sqrt(static_cast<float>(terms * head_size)) : 1.0f;
  const auto& positions = layer(index).position_scores;
  std::array<AttentionTask, 16> tasks;  // of one sequence
  size_t count = 0;
  for (size_t item = begin; item < end; ++item) {
    const size_t sequence = item / heads;
    const size_t row = batch.cu_seqlens[sequence];
    const size_t head = item % heads;
    const size_t column = head * head_size;
    const size_t key = heads + head * shared / heads;
    const float* projected = w.query_key_value_.row(row);
    // These columns of these rows are this item's alone.
    if (places && !before)
      for (const size_t own : {head, key, key + shared})
        norm_and_rotate(batch, w, index, sequence, {own, own + 1});
    tasks[count++] = {
        .q = projected + column,
        .k = projected + key * head_size,
        .v = projected + (key + shared) * head_size,
        .ld = w.query_key_value_.ld,
        .length = batch.length(sequence),
        .head_size = head_size,
        .scale = scale,
        .out = w.context_.floats().row(row) + column,
        .ld_out = w.context_.floats().ld,
        .scratch = w.scratch_[static_cast<size_t>(worker.index)].data(),
        .bias = weights_.relative_bias.of_head(head),
        .before = local ? config_.window : AttentionTask::kUnlimited,
        .after = config_.causal ? 0
                 : local        ? config_.window
                                : AttentionTask::kUnlimited,
    };
    if (positions) {
      AttentionTask& task = tasks[count - 1];
      float* scratch = task.scratch + attention_scratch(task.length);
      task.bias = positions->compute(kernels_, weights_.position_buckets, head, task, scratch);
      task.bias_step = static_cast<ptrdiff_t>(PositionScores::stride(task.length));
    }
    const bool lengthy = batch.length(sequence) >= kLongAttention;
    const bool alone = lengthy || positions;
    if (!alone && count < tasks.size() && head + 1 < heads && item + 1 < end) continue;
    if (lengthy && stop.poll()) return;  // the feed-forward step asks again, and all workers end there
    attention().run(tasks.data(), count);
    count = 0;
  }
}

bool Encoder::feed_forward(size_t index, Workspace& w, size_t tokens, const Worker& worker, StopToken& stop,
                           size_t& step) const {
  const Layer& layer = this->layer(index);
  const bool last = index + 1 == config_.num_hidden_layers;
  const LayerNorm& next = last ? weights_.final_norm : this->layer(index + 1).attention_input_norm;
  const size_t most = batching_.feed_forward_rows;
  for (size_t first = 0; first < tokens; first += most) {
    const size_t rows = std::min(most, tokens - first);
    const Share own = worker.share(rows);
    Rows& inner = w.inner_.floats();
    w.ask(++step, worker, stop);
    linear(layer.intermediate, inputs(w).operand(first), rows, inner, 0, worker);
    if (w.stopped_at(step)) return false;
    if (config_.gate == Gate::kNone) {
      kernels_.activate(config_.hidden_act, inner.row(own.begin), inner.ld, own.size(),
                        config_.intermediate_size, w.inner_.quantized(own.begin));
    } else {
      const bool first_activated = config_.gate == Gate::kFirstActivated;
      const size_t half = config_.intermediate_size;
      kernels_.activate_gated(config_.hidden_act, inner.row(own.begin), inner.ld, own.size(), half,
                              first_activated ? 0 : half, first_activated ? half : 0,
                              w.inner_.quantized(own.begin));
    }
    end_stage(Stage::kElementWise, worker);
    linear(layer.output, w.inner_.operand(0), rows, w.projected_, first, worker);
    end_part(layer.output_norm, next, w, own.shifted(first));
    end_stage(Stage::kElementWise, worker);
  }
  return true;
}

bool Encoder::forward(const PackedBatch& batch, Workspace& w, const Worker& worker,
                      StopToken& stop) const noexcept {
  if (static_) return true;
  const size_t tokens = batch.tokens();
  const Share own = worker.share(tokens);
  embed(batch, w, worker);
  size_t step = 0;
  for (size_t index = 0; index < config_.num_hidden_layers; ++index) {
    const Layer& layer = this->layer(index);
    w.ask(++step, worker, stop);
    linear(layer.query_key_value, inputs(w).operand(0), tokens, w.query_key_value_, 0, worker);
    if (w.stopped_at(step)) return false;
    attend(batch, w, index, worker, stop);
    end_stage(Stage::kAttention, worker);
    quantize(w.context_, own, worker);
    linear(layer.attention_output, w.context_.operand(0), tokens, w.projected_, 0, worker);
    end_part(layer.attention_norm, layer.intermediate_norm, w, own);
    end_stage(Stage::kElementWise, worker);
    if (!feed_forward(index, w, tokens, worker, stop, step)) return false;
  }
  return true;
}

size_t Encoder::pooled_tokens(const PackedBatch& batch, size_t s) const {
  const size_t length = batch.length(s);
  if (static_) return static_->counted({batch.ids.data() + batch.cu_seqlens[s], length});
  return length - std::min(length, batch.pool_skip[s]);
}

const Rows& Encoder::pool(const PackedBatch& batch, Workspace& w) const {
  const size_t sequences = batch.sequences();
  const size_t hidden = config_.hidden_size;
  Rows* current = &w.pooled_;
  Rows* next = &w.head_;
  current->shape(sequences, pooling_.size() * hidden);
  for (size_t s = 0; s < sequences && static_; ++s)
    static_->mean(kernels_, {batch.ids.data() + batch.cu_seqlens[s], batch.length(s)}, w.static_,
                  current->row(s));
  for (size_t s = 0; s < sequences && !static_; ++s)
    for (size_t m = 0; m < pooling_.size(); ++m)
      pool_sequence(pooling_[m], w.hidden().row(batch.cu_seqlens[s]), w.hidden().ld, batch.length(s),
                    batch.pool_skip[s], hidden, current->row(s) + m * hidden);
  size_t width = pooling_.size() * hidden;
  for (const Module& module : modules_) {
    if (module.type == HeadModule::Type::kNormalize) {
      for (size_t s = 0; s < sequences; ++s) normalize(current->row(s), width);
      continue;
    }
    if (module.type == HeadModule::Type::kLayerNorm) {
      kernels_.norm({
          .x = current->row(0),
          .ld = current->ld,
          .rows = sequences,
          .columns = width,
          .gamma = module.norm.data(),
          .epsilon = config_.layer_norm_eps,
          .out = current->row(0),
          .ld_out = current->ld,
      });
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
