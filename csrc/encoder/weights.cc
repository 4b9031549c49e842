#include "encoder/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

#include "base/error.h"
#include "kernels/float16.h"

namespace embedkit {
namespace {

/// The bucket of a key `distance` tokens after the query, in halves for keys before and after: a half gives
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

template <typename Angle>
void RotaryTable::fill(size_t head_size, const Angle& angle_of) {
  table_.reset(checked_mul(positions_, 2 * head_size) + Kernels::kSlack);
  std::fill_n(table_.data(), table_.size(), 0.0f);
  for (size_t p = 0; p < positions_; ++p) {
    float* cosine = table_.data() + p * 2 * head_size;
    float* sine = cosine + head_size;
    for (size_t d = 0; d < head_size; d += 2) {
      const double angle = angle_of(p, d);
      cosine[d] = cosine[d + 1] = static_cast<float>(std::cos(angle));
      sine[d + 1] = static_cast<float>(std::sin(angle));
      sine[d] = -sine[d + 1];
    }
  }
}

RotaryTable::RotaryTable(size_t positions, size_t head_size, Speed speed) : positions_(positions) {
  std::vector<float> speeds(head_size);
  for (size_t d = 0; d < head_size; d += 2) {
    const float exponent = static_cast<float>(d) / static_cast<float>(head_size);
    speeds[d] = speed_of(static_cast<float>(std::pow(double{speed.base}, double{exponent})), speed);
  }
  fill(head_size, [&](size_t p, size_t d) { return double{static_cast<float>(p) * speeds[d]}; });
}

RotaryTable::RotaryTable(size_t positions, size_t head_size) : positions_(positions) {
  fill(head_size, [&](size_t p, size_t d) {
    const double exponent = static_cast<double>(d) / static_cast<double>(head_size);
    return static_cast<double>(p) / std::pow(10000.0, exponent);
  });
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

}  // namespace embedkit
