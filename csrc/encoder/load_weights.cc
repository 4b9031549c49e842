#include <algorithm>
#include <memory>
#include <type_traits>

#include "base/error.h"
#include "encoder/weights.h"

namespace embedkit {
namespace {

/// Positions whose sines are computed with the model; those of a longer text, with the text.
constexpr size_t kReadyPositions = 1024;

std::string shape_text(const std::vector<size_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
}

const char* type_name(Tensor::Type type) {
  switch (type) {
    case Tensor::Type::kFloat32:
      return "float32";
    case Tensor::Type::kBfloat16:
      return "bfloat16";
    case Tensor::Type::kInt8:
      return "int8";
    default:
      return "of another type";
  }
}

/// Hands out tensors by name after checking type and shape.
class Reader {
 public:
  Reader(const Tensors& tensors, const EncoderConfig& config)
      : tensors_(tensors), config_(config), precision_(config.precision) {}

  bool has(const std::string& name) const { return tensors_.count(name) > 0; }

  Tensor floats(const std::string& name, std::vector<size_t> shape) const {
    return get(name, Tensor::Type::kFloat32, std::move(shape));
  }

  /// A matrix in float32 or bfloat16, or in int8 with the scales of its rows.
  std::pair<Tensor, Tensor> matrix(const std::string& name, size_t rows, size_t columns) const {
    if (precision_ != Precision::kInt8) {
      const auto found = tensors_.find(name);
      const bool half = found != tensors_.end() && found->second.type == Tensor::Type::kBfloat16;
      return {get(name, half ? Tensor::Type::kBfloat16 : Tensor::Type::kFloat32, {rows, columns}), {}};
    }
    return {get(name, Tensor::Type::kInt8, {rows, columns}), floats(name + "_scale", {rows})};
  }

  Linear::Part linear(const std::string& name, size_t out, size_t in) const {
    auto [weight, scale] = matrix(name + ".weight", out, in);
    return {std::move(weight), std::move(scale), bias(name, out)};
  }

  /// Query, key and value, stored in one or apart. Where positions turn the two halves of a head, its
  /// features come out in pairs: first, middle, second, … The products of queries and keys do not depend on
  /// their order.
  std::vector<Linear::Part> query_key_value(const std::string& layer) const {
    const size_t heads = config_.num_attention_heads, shared = config_.key_value_heads();
    const size_t width = config_.head_width();
    const std::string name = layer + "attention.self.";
    if (has(name + "query_key_value.weight")) {
      const size_t rows = (heads + 2 * shared) * width;
      return {paired(linear(name + "query_key_value", rows, config_.hidden_size), heads + shared)};
    }
    return {paired(linear(name + "query", heads * width, config_.hidden_size), heads),
            paired(linear(name + "key", shared * width, config_.hidden_size), shared),
            linear(name + "value", shared * width, config_.hidden_size)};
  }

  /// The inner layer: one, or its two halves apart.
  std::vector<Linear::Part> intermediate(const std::string& layer) const {
    const size_t inner = config_.intermediate_size, hidden = config_.hidden_size;
    if (config_.gate == Gate::kNone) return {linear(layer + "intermediate.dense", inner, hidden)};
    if (has(layer + "intermediate.dense.weight"))
      return {linear(layer + "intermediate.dense", 2 * inner, hidden)};
    const auto gate = linear(layer + "intermediate.gate", inner, hidden);
    const auto up = linear(layer + "intermediate.up", inner, hidden);
    return config_.gate == Gate::kFirstActivated ? std::vector{gate, up} : std::vector{up, gate};
  }

  /// A norm of the features of each head, in the order of `query_key_value`.
  LayerNorm head_norm(const std::string& name) const {
    LayerNorm result = norm(name, config_.head_width());
    result.gamma = paired(result.gamma, 1);
    result.beta = paired(result.beta, 1);
    return result;
  }

  EmbeddingTable table(const std::string& name, size_t rows, size_t columns) const {
    auto [weight, scale] = matrix(name + ".weight", rows, columns);
    return {std::move(weight), std::move(scale)};
  }

  LayerNorm norm(const std::string& name, size_t size) const {
    LayerNorm result{floats(name + ".weight", {size}), bias(name, size)};
    if (config_.norm_kind == NormKind::kRmsPlusOne) {
      std::vector<float> values(result.weight(), result.weight() + size);
      for (float& value : values) value += 1.0f;
      result.gamma = owned(std::move(values), {size});
    }
    // The norm after a sum adds one whether there is or not.
    if (result.beta.data == nullptr && config_.norm_kind == NormKind::kLayerNorm)
      result.beta = owned(std::vector<float>(size, 0.0f), {size});
    return result;
  }

 private:
  template <typename Value>
  static Tensor owned(std::vector<Value> values, std::vector<size_t> shape) {
    auto memory = std::make_shared<std::vector<Value>>(std::move(values));
    // Kernels read whole vectors.
    memory->resize(memory->size() + Kernels::kSlack);
    Tensor tensor;
    tensor.type = std::is_same_v<Value, int8_t>     ? Tensor::Type::kInt8
                  : std::is_same_v<Value, uint16_t> ? Tensor::Type::kBfloat16
                                                    : Tensor::Type::kFloat32;
    tensor.data = memory->data();
    tensor.shape = std::move(shape);
    tensor.owner = std::move(memory);
    return tensor;
  }

  Tensor bias(const std::string& name, size_t size) const {
    if (!config_.biases && !has(name + ".bias")) return {};
    return floats(name + ".bias", {size});
  }

  template <typename Value>
  Tensor paired_rows(const Tensor& tensor, size_t heads) const {
    const size_t width = config_.head_width(), half = width / 2;
    const size_t columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    const auto* from = static_cast<const Value*>(tensor.data);
    std::vector<Value> rows(from, from + tensor.shape[0] * columns);
    for (size_t head = 0; head < heads; ++head)
      for (size_t d = 0; d < width; ++d) {
        const size_t source = d % 2 == 0 ? d / 2 : half + d / 2;
        std::copy_n(from + (head * width + source) * columns, columns,
                    rows.begin() + static_cast<ptrdiff_t>((head * width + d) * columns));
      }
    return owned(std::move(rows), tensor.shape);
  }

  /// The first `heads` heads of the rows in pairs, where positions turn halves.
  Tensor paired(const Tensor& tensor, size_t heads) const {
    if (config_.rotary_base == 0 || tensor.data == nullptr) return tensor;
    if (tensor.type == Tensor::Type::kInt8) return paired_rows<int8_t>(tensor, heads);
    if (tensor.type == Tensor::Type::kBfloat16) return paired_rows<uint16_t>(tensor, heads);
    return paired_rows<float>(tensor, heads);
  }

  Linear::Part paired(Linear::Part part, size_t heads) const {
    return {paired(part.weight, heads), paired(part.scale, heads), paired(part.bias, heads)};
  }

  Tensor get(const std::string& name, Tensor::Type type, std::vector<size_t> shape) const {
    const auto found = tensors_.find(name);
    require(found != tensors_.end(), "the model has no tensor '", name, "'");
    const Tensor& tensor = found->second;
    require(tensor.type == type, "tensor '", name, "' is ", type_name(tensor.type), ", not ",
            type_name(type));
    require(tensor.shape == shape, "tensor '", name, "' has shape ", shape_text(tensor.shape),
            ", config.json says ", shape_text(shape));
    return tensor;
  }

  const Tensors& tensors_;
  const EncoderConfig& config_;
  Precision precision_;
};

std::string layer_prefix(size_t index) { return "encoder.layer." + std::to_string(index) + "."; }

/// A row for each type, with what the model adds for its task.
AlignedBuffer<float> read_token_types(const Reader& reader, const EncoderConfig& config) {
  const size_t width = config.embedding_width();
  AlignedBuffer<float> rows(checked_mul(std::max<size_t>(config.type_vocab_size, 1), width));
  std::fill_n(rows.data(), rows.size(), 0.0f);
  if (config.type_vocab_size > 0) {
    const Tensor types =
        reader.floats("embeddings.token_type_embeddings.weight", {config.type_vocab_size, width});
    std::copy_n(static_cast<const float*>(types.data), rows.size(), rows.data());
  }
  if (config.task_type_vocab_size > 0) {
    const Tensor tasks =
        reader.floats("embeddings.task_type_embeddings.weight", {config.task_type_vocab_size, width});
    for (size_t i = 0; i < rows.size(); ++i)
      rows.data()[i] += static_cast<const float*>(tasks.data)[i % width];
  }
  return rows;
}

RelativeBias read_relative_bias(const Reader& reader, const EncoderConfig& config) {
  if (config.alibi) return {config.num_attention_heads, config.positions()};
  if (config.relative_attention_num_buckets == 0) return {};
  return {reader.floats("encoder.relative_attention_bias.weight",
                        {config.relative_attention_num_buckets, config.num_attention_heads}),
          config.positions()};
}

void read_positions(const Reader& reader, const EncoderConfig& config, Weights& weights) {
  const size_t width = config.head_width();
  const size_t ready = std::min(config.max_position_embeddings, kReadyPositions);
  if (config.rotary)
    weights.rotary = RotaryTable(config.max_position_embeddings, width);
  else if (config.rotary_base > 0)
    weights.rotary = RotaryTable(
        ready, width,
        {config.rotary_base, config.rotary_divisor, config.rotary_short_wave, config.rotary_long_wave});
  else if (config.position_table && !config.alibi)
    weights.positions = reader.table("embeddings.position_embeddings", config.max_position_embeddings,
                                     config.embedding_width());
  if (config.rotary_local_base > 0)
    weights.local_rotary = RotaryTable(ready, width, {config.rotary_local_base});
}

/// DeBERTa's embeddings of distances (2 position_buckets, hidden_size), which all layers share, normalized.
AlignedBuffer<float> read_distances(const Reader& reader, const EncoderConfig& config,
                                    const Kernels& kernels) {
  const size_t rows = 2 * config.position_buckets, hidden = config.hidden_size;
  const Tensor table = reader.floats("encoder.rel_embeddings.weight", {rows, hidden});
  const LayerNorm norm = reader.norm("encoder.rel_embeddings.LayerNorm", hidden);
  AlignedBuffer<float> distances(rows * hidden + Kernels::kSlack);
  std::fill_n(distances.data(), distances.size(), 0.0f);
  std::copy_n(static_cast<const float*>(table.data), rows * hidden, distances.data());
  kernels.norm({.x = distances.data(),
                .ld = hidden,
                .rows = rows,
                .columns = hidden,
                .gamma = norm.weight(),
                .beta = norm.bias(),
                .epsilon = config.layer_norm_eps,
                .out = distances.data(),
                .ld_out = hidden});
  return distances;
}

/// The layer at `index`, but for its scores of positions.
Layer read_layer(const Reader& reader, const EncoderConfig& config, const Kernels& kernels, size_t index) {
  const std::string layer = layer_prefix(index);
  const size_t hidden = config.hidden_size;
  const auto pack = [&](const std::vector<Linear::Part>& parts) {
    return Linear(kernels, config.precision, parts);
  };
  const auto norm = [&](const char* name, bool wanted) {
    return wanted ? reader.norm(layer + name, hidden) : LayerNorm{};
  };
  const bool pre = config.normalizes_before(), post = config.norm_place != NormPlace::kPre;
  // ModernBERT's first layer reads the embeddings, which have been normalized.
  const bool first_of_normalized = index == 0 && config.embedding_norm;
  const bool normed_heads = config.query_key_norm;
  return {
      norm("attention.LayerNorm", pre && !first_of_normalized),
      pack(reader.query_key_value(layer)),
      normed_heads ? reader.head_norm(layer + "attention.self.query_norm") : LayerNorm{},
      normed_heads ? reader.head_norm(layer + "attention.self.key_norm") : LayerNorm{},
      pack({reader.linear(layer + "attention.output.dense", hidden, config.context_width())}),
      norm("attention.output.LayerNorm", post),
      norm("intermediate.LayerNorm", pre),
      pack(reader.intermediate(layer)),
      pack({reader.linear(layer + "output.dense", hidden, config.intermediate_size)}),
      norm("output.LayerNorm", post),
      {},
  };
}

}  // namespace

Weights load_weights(const EncoderConfig& config, const Tensors& tensors, const Kernels& kernels) {
  config.validate();
  Weights weights;
  if (config.static_rows > 0) return weights;
  const Reader reader(tensors, config);
  const size_t hidden = config.hidden_size, embedded = config.embedding_width();
  weights.words = reader.table("embeddings.word_embeddings", config.vocab_size, embedded);
  weights.token_types = read_token_types(reader, config);
  if (config.embedding_norm) weights.embedding_norm = reader.norm("embeddings.LayerNorm", embedded);
  weights.relative_bias = read_relative_bias(reader, config);
  read_positions(reader, config, weights);
  if (config.embedding_size > 0)
    weights.projection.emplace(
        kernels, Precision::kFp32,
        std::vector<Linear::Part>{{reader.floats("embeddings_project.weight", {hidden, embedded}),
                                   {},
                                   reader.floats("embeddings_project.bias", {hidden})}});
  if (config.normalizes_before()) weights.final_norm = reader.norm("encoder.norm", hidden);
  AlignedBuffer<float> distances;
  if (config.position_buckets > 0) {
    distances = read_distances(reader, config, kernels);
    weights.position_buckets =
        PositionBuckets(config.positions(), config.position_buckets, config.max_relative_positions);
  }
  weights.layers.reserve(config.stored_layers());
  for (size_t l = 0; l < config.stored_layers(); ++l) {
    Layer& layer = weights.layers.emplace_back(read_layer(reader, config, kernels, l));
    if (config.position_buckets > 0)
      layer.position_scores.emplace(
          kernels, config.num_attention_heads, Operand{distances.data(), hidden, {}},
          2 * config.position_buckets,
          reader.linear(layer_prefix(l) + "attention.self.query", config.context_width(), hidden),
          reader.linear(layer_prefix(l) + "attention.self.key", config.context_width(), hidden));
  }
  return weights;
}

}  // namespace embedkit
