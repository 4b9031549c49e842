#include "encoder/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace embedkit {
namespace {

std::string shape_text(const std::vector<size_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
}

size_t element_size(Tensor::Type type) {
  return type == Tensor::Type::kInt8 ? sizeof(int8_t) : sizeof(float);
}

/// Hands out tensors by name after checking type and shape.
class Reader {
 public:
  Reader(const Tensors& tensors, Precision precision) : tensors_(tensors), precision_(precision) {}

  Tensor floats(const std::string& name, std::vector<size_t> shape) const {
    return get(name, Tensor::Type::kFloat32, std::move(shape));
  }

  /// A matrix as floats, or in int8 with the scales of its rows.
  std::pair<Tensor, Tensor> matrix(const std::string& name, size_t rows, size_t columns) const {
    if (precision_ != Precision::kInt8) return {floats(name, {rows, columns}), {}};
    return {get(name, Tensor::Type::kInt8, {rows, columns}), floats(name + "_scale", {rows})};
  }

  Linear::Part linear(const std::string& name, size_t out, size_t in) const {
    auto [weight, scale] = matrix(name + ".weight", out, in);
    return {std::move(weight), std::move(scale), floats(name + ".bias", {out})};
  }

  EmbeddingTable table(const std::string& name, size_t rows, size_t columns) const {
    auto [weight, scale] = matrix(name + ".weight", rows, columns);
    return {std::move(weight), std::move(scale)};
  }

  LayerNorm norm(const std::string& name, size_t size) const {
    return {floats(name + ".weight", {size}), floats(name + ".bias", {size})};
  }

 private:
  Tensor get(const std::string& name, Tensor::Type type, std::vector<size_t> shape) const {
    const auto found = tensors_.find(name);
    require(found != tensors_.end(), "the model has no tensor '", name, "'");
    const Tensor& tensor = found->second;
    require(tensor.type == type, "tensor '", name, "' is ",
            tensor.type == Tensor::Type::kFloat32 ? "float32" : "int8", ", not ",
            type == Tensor::Type::kFloat32 ? "float32" : "int8");
    require(tensor.shape == shape, "tensor '", name, "' has shape ", shape_text(tensor.shape),
            ", config.json says ", shape_text(shape));
    return tensor;
  }

  const Tensors& tensors_;
  Precision precision_;
};

/// The bucket of a key `distance` tokens behind the query, in halves for keys before and behind: a half gives
/// each of its first distances a bucket, then divides up to 128 evenly by the logarithm, and the last takes
/// the rest. Source: T5 (Raffel et al. 2020), as MPNet has it.
///
/// With the 32 buckets of every MPNet a distance n >= 8 falls into 8 + floor(8 log(n / 8) / log 16), that is
/// floor(log2(n² / 64)) in integers, which no machine rounds otherwise.
size_t relative_bucket(int64_t distance) {
  constexpr size_t kHalf = 16;
  constexpr uint64_t kExact = kHalf / 2;
  const size_t first = distance > 0 ? kHalf : 0;
  const auto n = static_cast<uint64_t>(distance > 0 ? distance : -distance);
  if (n < kExact) return first + n;
  const auto steps = static_cast<size_t>(std::bit_width(n * n / (kExact * kExact)) - 1);
  return first + std::min<size_t>(kExact + steps, kHalf - 1);
}

}  // namespace

void EncoderConfig::validate() const {
  const auto positive = [](size_t value, const char* name) {
    require(value > 0 && value <= (size_t{1} << 30), name, " is ", value,
            "; it must be positive and below 2^30");
  };
  positive(hidden_size, "hidden_size");
  positive(num_hidden_layers, "num_hidden_layers");
  positive(num_attention_heads, "num_attention_heads");
  positive(intermediate_size, "intermediate_size");
  positive(vocab_size, "vocab_size");
  positive(max_position_embeddings, "max_position_embeddings");
  require(type_vocab_size <= (size_t{1} << 30), "type_vocab_size is ", type_vocab_size,
          "; it must be below 2^30");
  require(padding_idx >= -1 && max_position_embeddings > static_cast<size_t>(padding_idx + int64_t{1}),
          "padding_idx is ", padding_idx, " and leaves none of ", max_position_embeddings, " positions");
  require(relative_attention_num_buckets == 0 || relative_attention_num_buckets == 32,
          "relative_attention_num_buckets is ", relative_attention_num_buckets, "; it must be 32");
  require(hidden_size % num_attention_heads == 0, "hidden_size ", hidden_size, " is not a multiple of ",
          num_attention_heads, " heads");
  const size_t head_size = hidden_size / num_attention_heads;
  require(
      !rotary || head_size % 2 == 0, "heads of ", head_size,
      " features cannot be rotated in pairs; hidden_size must be an even multiple of num_attention_heads");
  // No tensor of the file bounds the size of this table.
  require(!rotary || checked_mul(max_position_embeddings, head_size) <= size_t{1} << 26,
          "max_position_embeddings is ", max_position_embeddings, "; the rotary table for heads of ",
          head_size, " features would be too large");
  require(layer_norm_eps >= 0 && layer_norm_eps < 1, "layer_norm_eps is ", layer_norm_eps,
          "; it must be in [0, 1)");
  // 255 * 127 * K must fit an int32 accumulator.
  require(std::max({hidden_size, intermediate_size, embedding_size}) <= 65536,
          "a layer of more than 65536 features is not supported");
}

Linear::Linear(const Kernels& kernels, Precision precision, const std::vector<Part>& parts)
    : precision_(precision) {
  const size_t in = parts.at(0).weight.shape.at(1);
  size_t out = 0;
  for (const Part& part : parts) out += part.weight.shape.at(0);
  const size_t panel = precision == Precision::kFp32 ? kernels.panel : kernels.quantized_panel;
  panels_ = (out + panel - 1) / panel;
  columns_ = panels_ * panel;
  checked_mul(checked_mul(columns_, round_up(in, kCacheLine)), sizeof(float));
  vectors_.reset(3 * columns_);
  std::fill_n(vectors_.data(), vectors_.size(), 0.0f);
  float* bias = vectors_.data();
  float* scale = bias + columns_;
  float* row_sums = scale + columns_;

  const size_t element = element_size(parts[0].weight.type);
  const uint8_t* rows = static_cast<const uint8_t*>(parts[0].weight.data);
  AlignedBuffer<uint8_t> stacked;
  if (parts.size() > 1) {
    stacked.reset(out * in * element);
    rows = stacked.data();
  }
  size_t row = 0;
  for (const Part& part : parts) {
    const size_t n = part.weight.shape[0];
    if (parts.size() > 1)
      std::memcpy(stacked.data() + row * in * element, part.weight.data, n * in * element);
    if (part.bias.data != nullptr) std::memcpy(bias + row, part.bias.data, n * sizeof(float));
    if (part.scale.data != nullptr) std::memcpy(scale + row, part.scale.data, n * sizeof(float));
    row += n;
  }
  switch (precision) {
    case Precision::kFp32:
      weights_.reset(kernels.packed_fp32_bytes(out, in));
      kernels.pack_fp32(reinterpret_cast<const float*>(rows), out, in, weights_.data());
      break;
    case Precision::kBf16:
      weights_.reset(kernels.packed_bf16_bytes(out, in));
      kernels.pack_bf16(reinterpret_cast<const float*>(rows), out, in, weights_.data());
      break;
    case Precision::kInt8: {
      const auto* w = reinterpret_cast<const int8_t*>(rows);
      for (size_t n = 0; n < out; ++n)
        row_sums[n] =
            scale[n] * static_cast<float>(std::accumulate(w + n * in, w + (n + 1) * in, int64_t{0}));
      weights_.reset(kernels.packed_int8_bytes(out, in));
      kernels.pack_int8(w, out, in, weights_.data());
      break;
    }
  }
  packed_ = {in, out, weights_.data(), bias, scale, row_sums};
}

void Linear::multiply(const Kernels& kernels, const Operand& x, size_t rows, Share panels, float* out,
                      size_t ld_out) const {
  switch (precision_) {
    case Precision::kFp32:
      return kernels.linear_fp32(x.x, x.ld, rows, packed_, panels.begin, panels.end, out, ld_out);
    case Precision::kBf16:
      return kernels.bf16.linear(x.quantized, rows, packed_, panels.begin, panels.end, out, ld_out);
    case Precision::kInt8:
      return kernels.linear_int8(x.quantized, rows, packed_, panels.begin, panels.end, out, ld_out);
  }
}

size_t Linear::memory_bytes() const { return weights_.size() + vectors_.size() * sizeof(float); }

void EmbeddingTable::add(const Kernels& kernels, size_t row, float* out) const {
  const size_t columns = rows_.shape[1];
  if (rows_.type == Tensor::Type::kInt8) {
    kernels.add_scaled_int8(out, static_cast<const int8_t*>(rows_.data) + row * columns,
                            static_cast<const float*>(scale_.data)[row], columns);
  } else {
    const float* from = static_cast<const float*>(rows_.data) + row * columns;
    for (size_t i = 0; i < columns; ++i) out[i] += from[i];
  }
}

size_t EmbeddingTable::memory_bytes() const {
  const size_t elements = rows_.shape[0] * rows_.shape[1];
  return rows_.type == Tensor::Type::kInt8 ? elements + rows_.shape[0] * sizeof(float)
                                           : elements * sizeof(float);
}

RelativeBias::RelativeBias(const Tensor& buckets, size_t positions)
    : stride_(round_up(2 * positions - 1, kCacheLine / sizeof(float))), zero_(positions - 1) {
  const size_t heads = buckets.shape.at(1);
  // Attention reads whole vectors: past the last distance there must be memory, and no NaN in it.
  table_.reset(checked_mul(heads, stride_) + Kernels::kSlack);
  std::fill_n(table_.data(), table_.size(), 0.0f);
  const auto* values = static_cast<const float*>(buckets.data);
  for (size_t i = 0; i < 2 * positions - 1; ++i) {
    const size_t bucket = relative_bucket(static_cast<int64_t>(i) - static_cast<int64_t>(zero_));
    for (size_t head = 0; head < heads; ++head) table_[head * stride_ + i] = values[bucket * heads + head];
  }
}

RotaryTable::RotaryTable(size_t positions, size_t head_size) {
  table_.reset(checked_mul(positions, 2 * head_size) + Kernels::kSlack);
  std::fill_n(table_.data(), table_.size(), 0.0f);
  for (size_t p = 0; p < positions; ++p) {
    float* cosine = table_.data() + p * 2 * head_size;
    float* sine = cosine + head_size;
    for (size_t d = 0; d < head_size; d += 2) {
      const double angle =
          static_cast<double>(p) / std::pow(10000.0, static_cast<double>(d) / static_cast<double>(head_size));
      cosine[d] = cosine[d + 1] = static_cast<float>(std::cos(angle));
      sine[d + 1] = static_cast<float>(std::sin(angle));
      sine[d] = -sine[d + 1];
    }
  }
}

size_t Weights::memory_bytes() const {
  size_t bytes = words.memory_bytes() + relative_bias.memory_bytes() + rotary.memory_bytes();
  if (positions) bytes += positions->memory_bytes();
  if (projection) bytes += projection->memory_bytes();
  for (const Layer& layer : layers)
    for (const Linear* linear :
         {&layer.query_key_value, &layer.attention_output, &layer.intermediate, &layer.output})
      bytes += linear->memory_bytes();
  return bytes;
}

Weights load_weights(const EncoderConfig& config, const Tensors& tensors, const Kernels& kernels) {
  config.validate();
  const Reader reader(tensors, config.precision);
  const size_t hidden = config.hidden_size;
  const size_t embedded = config.embedding_width();
  AlignedBuffer<float> token_types(checked_mul(std::max<size_t>(config.type_vocab_size, 1), embedded));
  std::fill_n(token_types.data(), token_types.size(), 0.0f);
  if (config.type_vocab_size > 0) {
    const Tensor types =
        reader.floats("embeddings.token_type_embeddings.weight", {config.type_vocab_size, embedded});
    std::copy_n(static_cast<const float*>(types.data), token_types.size(), token_types.data());
  }
  RelativeBias relative_bias;
  if (config.relative_attention_num_buckets > 0)
    relative_bias =
        RelativeBias(reader.floats("encoder.relative_attention_bias.weight",
                                   {config.relative_attention_num_buckets, config.num_attention_heads}),
                     config.positions());
  Weights weights{
      reader.table("embeddings.word_embeddings", config.vocab_size, embedded),
      {},
      std::move(token_types),
      reader.norm("embeddings.LayerNorm", embedded),
      {},
      std::move(relative_bias),
      {},
      {},
  };
  if (config.rotary)
    weights.rotary = RotaryTable(config.max_position_embeddings, hidden / config.num_attention_heads);
  else
    weights.positions =
        reader.table("embeddings.position_embeddings", config.max_position_embeddings, embedded);
  if (config.embedding_size > 0)
    weights.projection.emplace(
        kernels, Precision::kFp32,
        std::vector<Linear::Part>{{reader.floats("embeddings_project.weight", {hidden, embedded}),
                                   {},
                                   reader.floats("embeddings_project.bias", {hidden})}});
  weights.layers.reserve(config.num_hidden_layers);
  for (size_t l = 0; l < config.num_hidden_layers; ++l) {
    const std::string layer = "encoder.layer." + std::to_string(l) + ".";
    const auto linear = [&](std::initializer_list<const char*> names, size_t out, size_t in) {
      std::vector<Linear::Part> parts;
      for (const char* name : names) parts.push_back(reader.linear(layer + name, out, in));
      return Linear(kernels, config.precision, parts);
    };
    weights.layers.push_back({
        linear({"attention.self.query", "attention.self.key", "attention.self.value"}, hidden, hidden),
        linear({"attention.output.dense"}, hidden, hidden),
        reader.norm(layer + "attention.output.LayerNorm", hidden),
        linear({"intermediate.dense"}, config.intermediate_size, hidden),
        linear({"output.dense"}, hidden, config.intermediate_size),
        reader.norm(layer + "output.LayerNorm", hidden),
    });
  }
  return weights;
}

}  // namespace embedkit
