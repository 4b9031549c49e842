#include "encoder/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

#include "base/error.h"
#include "kernels/float16.h"

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
    // The norm behind a sum adds one whether there is or not.
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
  require(num_hidden_layers < 1 << 20, "num_hidden_layers is ", num_hidden_layers, "; it must be below 2^20");
  positive(num_attention_heads, "num_attention_heads");
  positive(intermediate_size, "intermediate_size");
  positive(vocab_size, "vocab_size");
  positive(max_position_embeddings, "max_position_embeddings");
  require(type_vocab_size <= (size_t{1} << 30), "type_vocab_size is ", type_vocab_size,
          "; it must be below 2^30");
  require(static_rows <= (size_t{1} << 30) && (static_rows > 0) == (num_hidden_layers == 0),
          "static_rows is ", static_rows, " of a model of ", num_hidden_layers,
          " layers; it must be below 2^30, and positive if "
          "there are no layers");
  require(padding_idx >= -1 && max_position_embeddings > static_cast<size_t>(padding_idx + int64_t{1}),
          "padding_idx is ", padding_idx, " and leaves none of ", max_position_embeddings, " positions");
  require(
      position_buckets == 0 || (position_buckets % 2 == 0 && position_buckets <= 4096 &&
                                (max_relative_positions > position_buckets / 2 + 1 ||
                                 max_position_embeddings <= position_buckets / 2 + 1) &&
                                std::max(max_relative_positions, max_position_embeddings) <= size_t{1} << 20),
      "position_buckets is ", position_buckets, ", max_relative_positions ", max_relative_positions,
      "; the former must be even and at most 4096, the latter more than half of it plus 1");
  require(relative_attention_num_buckets == 0 || relative_attention_num_buckets == 32,
          "relative_attention_num_buckets is ", relative_attention_num_buckets, "; it must be 32");
  require(head_size > 0 || hidden_size % num_attention_heads == 0, "hidden_size ", hidden_size,
          " is not a multiple of ", num_attention_heads, " heads");
  require(head_size <= 65536 && num_attention_heads <= 65536 && context_width() <= 65536, "heads of ",
          head_size, " features are too large");
  require(num_key_value_heads <= num_attention_heads && num_attention_heads % key_value_heads() == 0,
          "num_attention_heads ", num_attention_heads, " is not a multiple of num_key_value_heads ",
          num_key_value_heads);
  require(num_hidden_groups == 0 ||
              (num_hidden_groups <= num_hidden_layers && num_hidden_layers % num_hidden_groups == 0),
          "num_hidden_layers ", num_hidden_layers, " is not a multiple of num_hidden_groups ",
          num_hidden_groups);
  require(local_layers.empty() || local_layers.size() == num_hidden_layers, "local_layers describes ",
          local_layers.size(), " layers, the model has ", num_hidden_layers);
  for (const float speed : {rotary_base, rotary_local_base})
    require(speed == 0 || (speed >= 1 && speed <= 1e9f), "a rotary base is ", speed,
            "; it must be from 1 to 1e9");
  require(rotary_divisor > 0 && rotary_divisor <= 1e6f && rotary_stretch >= 1 && rotary_stretch <= 1e6f,
          "rotary_divisor is ", rotary_divisor, ", rotary_stretch ", rotary_stretch,
          "; both must be positive and below 1e6, the latter at least 1");
  require((rotary_short_wave == 0 && rotary_long_wave == 0) ||
              (rotary_short_wave > 0 && rotary_short_wave < rotary_long_wave && rotary_long_wave <= 1e9f),
          "rotary_short_wave is ", rotary_short_wave, ", rotary_long_wave ", rotary_long_wave,
          "; the former must be positive and below the latter, and that at most 1e9");
  require(embedding_scale > 0 && embedding_scale <= 1e6f, "embedding_scale is ", embedding_scale,
          "; it must be positive and below 1e6");
  require(rotary_trained == 0 || head_width() > 2, "heads of ", head_width(),
          " features cannot be stretched");
  const size_t head_size = head_width();
  const bool turned = rotary || rotary_base > 0;
  require(
      !turned || head_size % 2 == 0, "heads of ", head_size,
      " features cannot be rotated in pairs; hidden_size must be an even multiple of num_attention_heads");
  // No tensor of the file bounds the size of these tables.
  require(!rotary || checked_mul(max_position_embeddings, head_size) <= size_t{1} << 26,
          "max_position_embeddings is ", max_position_embeddings, "; the rotary table for heads of ",
          head_size, " features would be too large");
  require((!alibi && position_table) ||
              checked_mul(max_position_embeddings, num_attention_heads) <= size_t{1} << 24,
          "max_position_embeddings is ", max_position_embeddings, "; the table of distances for ",
          num_attention_heads, " heads would be too large");
  require(layer_norm_eps >= 0 && layer_norm_eps < 1, "layer_norm_eps is ", layer_norm_eps,
          "; it must be in [0, 1)");
  // No family needs what no path computes.
  const bool grouped = num_hidden_groups > 0 && num_hidden_groups < num_hidden_layers;
  require(!normalizes_before() || (embedding_size == 0 && !(grouped && embedding_norm)),
          "layers that normalize their input take no projected embeddings, and normalized ones only if "
          "no layer is used twice");
  require(static_rows > 0 || embedding_norm || embedding_size > 0 || normalizes_before(),
          "embeddings that are not normalized need layers that normalize their input");
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
  // No packing pads a row by more than a cache line.
  checked_mul(checked_mul(columns_, round_up(in, kCacheLine)), sizeof(float));
  vectors_.reset(3 * columns_);
  std::fill_n(vectors_.data(), vectors_.size(), 0.0f);
  float* bias = vectors_.data();
  float* scale = bias + columns_;
  float* row_sums = scale + columns_;

  const size_t element = precision == Precision::kInt8 ? sizeof(int8_t) : sizeof(float);
  const uint8_t* rows = static_cast<const uint8_t*>(parts[0].weight.data);
  const bool widened = std::any_of(parts.begin(), parts.end(), [](const Part& part) {
    return part.weight.type == Tensor::Type::kBfloat16;
  });
  AlignedBuffer<uint8_t> stacked;
  if (parts.size() > 1 || widened) {
    stacked.reset(out * in * element);
    rows = stacked.data();
  }
  size_t row = 0;
  for (const Part& part : parts) {
    const size_t n = part.weight.shape[0];
    if (part.weight.type == Tensor::Type::kBfloat16) {
      const auto* from = static_cast<const uint16_t*>(part.weight.data);
      std::transform(from, from + n * in, reinterpret_cast<float*>(stacked.data()) + row * in, from_bf16);
    } else if (rows == stacked.data()) {
      std::memcpy(stacked.data() + row * in * element, part.weight.data, n * in * element);
    }
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

void EmbeddingTable::add(const Kernels& kernels, const float* x, size_t row, float* out) const {
  const size_t columns = rows_.shape[1];
  const auto* bytes = static_cast<const uint8_t*>(rows_.data);
  const float factor = scale_.data == nullptr ? 1.0f : static_cast<const float*>(scale_.data)[row];
  const void* values = bytes + row * columns * tensor_item_size(rows_.type);
  kernels.add_row(x, {values, *row_type(rows_.type), factor}, columns, out);
}

size_t EmbeddingTable::memory_bytes() const {
  const size_t bytes = rows_.shape[0] * rows_.shape[1] * tensor_item_size(rows_.type);
  return rows_.type == Tensor::Type::kInt8 ? bytes + rows_.shape[0] * sizeof(float) : bytes;
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

RelativeBias::RelativeBias(size_t heads, size_t positions)
    : stride_(round_up(2 * positions - 1, kCacheLine / sizeof(float))), zero_(positions - 1) {
  table_.reset(checked_mul(heads, stride_) + Kernels::kSlack);
  std::fill_n(table_.data(), table_.size(), 0.0f);
  // The slopes 2^(-8i / n) for the largest power of two n within the heads; the others lie between them.
  const size_t whole = std::bit_floor(heads);
  for (size_t head = 0; head < heads; ++head) {
    const double power = head < whole
                             ? 8.0 * static_cast<double>(head + 1) / static_cast<double>(whole)
                             : 4.0 * static_cast<double>(2 * (head - whole) + 1) / static_cast<double>(whole);
    const auto slope = static_cast<float>(std::exp2(-power));
    for (size_t i = 0; i < 2 * positions - 1; ++i)
      table_[head * stride_ + i] = -slope * static_cast<float>(i > zero_ ? i - zero_ : zero_ - i);
  }
}

namespace {

/// Radians a position; the features turn once in 2π `wave` positions before they are divided.
float speed_of(float wave, const RotaryTable::Speed& speed) {
  const float whole = 1.0f / wave;
  const float divided = whole / speed.divisor;
  if (speed.long_wave == 0) return divided;
  const double length = 2 * std::numbers::pi * double{wave};
  if (length < double{speed.short_wave}) return whole;
  if (length > double{speed.long_wave}) return divided;
  const double slow = 1 / double{speed.long_wave};
  const double kept = (1 / length - slow) / (1 / double{speed.short_wave} - slow);
  return static_cast<float>((1 - kept) * double{divided} + kept * double{whole});
}

}  // namespace

RotaryTable::RotaryTable(size_t positions, size_t head_size, Speed speed) : positions_(positions) {
  table_.reset(checked_mul(positions, 2 * head_size) + Kernels::kSlack);
  std::fill_n(table_.data(), table_.size(), 0.0f);
  for (size_t d = 0; d < head_size; d += 2) {
    const float exponent = static_cast<float>(d) / static_cast<float>(head_size);
    const float wave = static_cast<float>(std::pow(double{speed.base}, double{exponent}));
    const float turn = speed_of(wave, speed);
    for (size_t p = 0; p < positions; ++p) {
      float* cosine = table_.data() + p * 2 * head_size;
      float* sine = cosine + head_size;
      const float angle = static_cast<float>(p) * turn;
      cosine[d] = cosine[d + 1] = static_cast<float>(std::cos(double{angle}));
      sine[d + 1] = static_cast<float>(std::sin(double{angle}));
      sine[d] = -sine[d + 1];
    }
  }
}

RotaryTable::RotaryTable(size_t positions, size_t head_size) : positions_(positions) {
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

size_t Layer::memory_bytes() const {
  return query_key_value.memory_bytes() + attention_output.memory_bytes() + intermediate.memory_bytes() +
         output.memory_bytes();
}

size_t Weights::memory_bytes() const {
  size_t bytes = words.memory_bytes() + relative_bias.memory_bytes() + position_buckets.memory_bytes() +
                 rotary.memory_bytes() + local_rotary.memory_bytes();
  if (positions) bytes += positions->memory_bytes();
  if (projection) bytes += projection->memory_bytes();
  for (const Layer& layer : layers)
    bytes += layer.memory_bytes() + (layer.position_scores ? layer.position_scores->memory_bytes() : 0);
  return bytes;
}

Weights load_weights(const EncoderConfig& config, const Tensors& tensors, const Kernels& kernels) {
  config.validate();
  if (config.static_rows > 0) return {EmbeddingTable({}, {}), {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  const Reader reader(tensors, config);
  const size_t hidden = config.hidden_size;
  const size_t embedded = config.embedding_width();
  AlignedBuffer<float> token_types(checked_mul(std::max<size_t>(config.type_vocab_size, 1), embedded));
  std::fill_n(token_types.data(), token_types.size(), 0.0f);
  if (config.type_vocab_size > 0) {
    const Tensor types =
        reader.floats("embeddings.token_type_embeddings.weight", {config.type_vocab_size, embedded});
    std::copy_n(static_cast<const float*>(types.data), token_types.size(), token_types.data());
  }
  if (config.task_type_vocab_size > 0) {
    const Tensor tasks =
        reader.floats("embeddings.task_type_embeddings.weight", {config.task_type_vocab_size, embedded});
    for (size_t i = 0; i < token_types.size(); ++i)
      token_types.data()[i] += static_cast<const float*>(tasks.data)[i % embedded];
  }
  RelativeBias relative_bias;
  if (config.relative_attention_num_buckets > 0)
    relative_bias =
        RelativeBias(reader.floats("encoder.relative_attention_bias.weight",
                                   {config.relative_attention_num_buckets, config.num_attention_heads}),
                     config.positions());
  if (config.alibi) relative_bias = RelativeBias(config.num_attention_heads, config.positions());
  Weights weights{
      reader.table("embeddings.word_embeddings", config.vocab_size, embedded),
      {},
      std::move(token_types),
      config.embedding_norm ? reader.norm("embeddings.LayerNorm", embedded) : LayerNorm{},
      {},
      std::move(relative_bias),
      {},
      {},
      {},
      {},
      {},
  };
  const size_t width = config.head_width();
  const size_t ready = std::min(config.max_position_embeddings, kReadyPositions);
  if (config.rotary)
    weights.rotary = RotaryTable(config.max_position_embeddings, width);
  else if (config.rotary_base > 0)
    weights.rotary = RotaryTable(
        ready, width,
        {config.rotary_base, config.rotary_divisor, config.rotary_short_wave, config.rotary_long_wave});
  else if (config.position_table && !config.alibi && config.static_rows == 0)
    weights.positions =
        reader.table("embeddings.position_embeddings", config.max_position_embeddings, embedded);
  if (config.embedding_size > 0)
    weights.projection.emplace(
        kernels, Precision::kFp32,
        std::vector<Linear::Part>{{reader.floats("embeddings_project.weight", {hidden, embedded}),
                                   {},
                                   reader.floats("embeddings_project.bias", {hidden})}});
  if (config.rotary_local_base > 0)
    weights.local_rotary = RotaryTable(ready, width, {config.rotary_local_base});
  if (config.normalizes_before()) weights.final_norm = reader.norm("encoder.norm", hidden);
  AlignedBuffer<float> positions;  // DeBERTa's, of all layers
  if (config.position_buckets > 0) {
    const size_t rows = 2 * config.position_buckets;
    const Tensor table = reader.floats("encoder.rel_embeddings.weight", {rows, hidden});
    const LayerNorm norm = reader.norm("encoder.rel_embeddings.LayerNorm", hidden);
    positions.reset(rows * hidden + Kernels::kSlack);
    std::fill_n(positions.data(), positions.size(), 0.0f);
    std::copy_n(static_cast<const float*>(table.data), rows * hidden, positions.data());
    kernels.norm({.x = positions.data(),
                  .ld = hidden,
                  .rows = rows,
                  .columns = hidden,
                  .gamma = norm.weight(),
                  .beta = norm.bias(),
                  .epsilon = config.layer_norm_eps,
                  .out = positions.data(),
                  .ld_out = hidden});
    weights.position_buckets =
        PositionBuckets(config.positions(), config.position_buckets, config.max_relative_positions);
  }
  weights.layers.reserve(config.stored_layers());
  for (size_t l = 0; l < config.stored_layers(); ++l) {
    const std::string layer = "encoder.layer." + std::to_string(l) + ".";
    const auto pack = [&](const std::vector<Linear::Part>& parts) {
      return Linear(kernels, config.precision, parts);
    };
    const auto norm = [&](const char* name, bool wanted) {
      return wanted ? reader.norm(layer + name, hidden) : LayerNorm{};
    };
    const bool before = config.normalizes_before(), behind = config.norm_place != NormPlace::kPre;
    // ModernBERT's first layer reads the embeddings, which have been normalized.
    const bool first_of_normalized = l == 0 && config.embedding_norm;
    const bool normed_heads = config.query_key_norm;
    weights.layers.push_back({
        norm("attention.LayerNorm", before && !first_of_normalized),
        pack(reader.query_key_value(layer)),
        normed_heads ? reader.head_norm(layer + "attention.self.query_norm") : LayerNorm{},
        normed_heads ? reader.head_norm(layer + "attention.self.key_norm") : LayerNorm{},
        pack({reader.linear(layer + "attention.output.dense", hidden, config.context_width())}),
        norm("attention.output.LayerNorm", behind),
        norm("intermediate.LayerNorm", before),
        pack(reader.intermediate(layer)),
        pack({reader.linear(layer + "output.dense", hidden, config.intermediate_size)}),
        norm("output.LayerNorm", behind),
        {},
    });
    if (config.position_buckets > 0)
      weights.layers.back().position_scores.emplace(
          kernels, config.num_attention_heads, Operand{positions.data(), hidden, {}},
          2 * config.position_buckets,
          reader.linear(layer + "attention.self.query", config.context_width(), hidden),
          reader.linear(layer + "attention.self.key", config.context_width(), hidden));
  }
  return weights;
}

}  // namespace embedkit
