// The readable reference: every operation as its formula, one element at a time, on every machine. The tests
// compare the other instruction sets with it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/aligned.h"
#include "kernels/float16.h"
#include "kernels/kernels.h"

namespace embedkit {
namespace {

constexpr size_t kPanel = 1;

size_t packed_int8_bytes(size_t out, size_t in) { return out * in; }

size_t packed_fp32_bytes(size_t out, size_t in) { return out * in * sizeof(float); }

void pack_int8(const int8_t* weights, size_t out, size_t in, void* packed) {
  std::memcpy(packed, weights, packed_int8_bytes(out, in));
}

void pack_fp32(const float* weights, size_t out, size_t in, void* packed) {
  std::memcpy(packed, weights, packed_fp32_bytes(out, in));
}

int32_t integer_product(const uint8_t* q, const int8_t* w, size_t k) {
  int32_t sum = 0;
  for (size_t i = 0; i < k; ++i) sum += int32_t{q[i]} * int32_t{w[i]};
  return sum;
}

void linear_int8(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                 size_t panel_end, float* out, size_t ld_out) {
  const size_t k = linear.in_features;
  const int8_t* weights = static_cast<const int8_t*>(linear.weights);
  for (size_t r = 0; r < rows; ++r)
    for (size_t n = panel_begin; n < panel_end; ++n) {
      const auto sum = static_cast<float>(integer_product(x.data + r * x.stride, weights + n * k, k));
      out[r * ld_out + n] =
          x.scale[r] * sum * linear.scale[n] + x.lowest[r] * linear.row_sums[n] + linear.bias[n];
    }
}

void linear_fp32(const float* x, size_t ld, size_t rows, const PackedLinear& linear, size_t panel_begin,
                 size_t panel_end, float* out, size_t ld_out) {
  const size_t k = linear.in_features;
  const float* weights = static_cast<const float*>(linear.weights);
  for (size_t r = 0; r < rows; ++r)
    for (size_t n = panel_begin; n < panel_end; ++n) {
      float sum = linear.bias[n];
      for (size_t i = 0; i < k; ++i) sum += x[r * ld + i] * weights[n * k + i];
      out[r * ld_out + n] = sum;
    }
}

size_t packed_bf16_bytes(size_t out, size_t in) { return out * round_up(in, 2) * sizeof(uint16_t); }

void pack_bf16(const float* weights, size_t out, size_t in, void* packed) {
  pack_bf16_panels(weights, out, in, kPanel, packed);
}

void linear_bf16(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                 size_t panel_end, float* out, size_t ld_out) {
  const size_t k = linear.in_features;
  const auto* weights = static_cast<const uint16_t*>(linear.weights);
  for (size_t r = 0; r < rows; ++r) {
    const auto* row = reinterpret_cast<const uint16_t*>(x.data + r * x.stride);
    for (size_t n = panel_begin; n < panel_end; ++n) {
      float sum = linear.bias[n];
      for (size_t i = 0; i < k; ++i) sum += from_bf16(row[i]) * from_bf16(weights[n * round_up(k, 2) + i]);
      out[r * ld_out + n] = sum;
    }
  }
}

void round_to_bf16(const float* x, size_t ld, size_t rows, size_t columns, const QuantizedRows& out) {
  for (size_t r = 0; r < rows; ++r, x += ld) {
    std::memset(out.data + r * out.stride, 0, out.stride);
    auto* to = reinterpret_cast<uint16_t*>(out.data + r * out.stride);
    for (size_t i = 0; i < columns; ++i) to[i] = to_bf16(x[i]);
  }
}

void quantize(const float* x, size_t ld, size_t rows, size_t columns, const QuantizedRows& out) {
  if (out.form == QuantizedRows::Form::kBf16) return round_to_bf16(x, ld, rows, columns, out);
  for (size_t r = 0; r < rows; ++r, x += ld) {
    const auto [low, high] = std::minmax_element(x, x + columns);
    const float width = *high - *low;
    const float inverse = width > 0 ? 255.0f / width : 0.0f;
    out.scale[r] = width > 0 ? width / 255.0f : 0.0f;
    out.lowest[r] = *low;
    uint8_t* q = out.data + r * out.stride;
    for (size_t i = 0; i < columns; ++i)
      q[i] = static_cast<uint8_t>(std::min(255.0f, std::nearbyintf((x[i] - *low) * inverse)));
    std::memset(q + columns, 0, out.stride - columns);
  }
}

float apply(Activation activation, float x) {
  switch (activation) {
    case Activation::kIdentity:
      return x;
    case Activation::kGelu:
      return 0.5f * x * (1.0f + std::erf(x * 0.70710678f));
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::kRelu:
      return std::max(x, 0.0f);
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1.0f / (1.0f + std::exp(-x));
    case Activation::kSilu:
      return x / (1.0f + std::exp(-x));
  }
  return x;
}

void activate(Activation activation, float* x, size_t ld, size_t rows, size_t columns,
              const QuantizedRows& quantized) {
  for (size_t r = 0; r < rows; ++r)
    for (size_t i = 0; i < columns; ++i) x[r * ld + i] = apply(activation, x[r * ld + i]);
  if (quantized.data != nullptr) quantize(x, ld, rows, columns, quantized);
}

void norm(const NormTask& task) {
  for (size_t r = 0; r < task.rows; ++r) {
    float* x = task.x + r * task.ld;
    double sum = 0;
    for (size_t i = 0; i < task.columns; ++i) {
      if (task.y != nullptr) x[i] += task.y[r * task.ld_y + i];
      sum += x[i];
    }
    const double mean = task.rms ? 0.0 : sum / static_cast<double>(task.columns);
    double squares = 0;
    for (size_t i = 0; i < task.columns; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(task.columns) + task.epsilon);
    for (size_t i = 0; i < task.columns; ++i)
      task.out[r * task.ld_out + i] = static_cast<float>((x[i] - mean) * inverse) * task.gamma[i] +
                                      (task.beta == nullptr ? 0.0f : task.beta[i]);
  }
  if (task.quantized.data != nullptr)
    quantize(task.out, task.ld_out, task.rows, task.columns, task.quantized);
}

void activate_gated(Activation activation, float* x, size_t ld, size_t rows, size_t columns, size_t activated,
                    size_t factor, const QuantizedRows& quantized) {
  for (size_t r = 0; r < rows; ++r)
    for (size_t i = 0; i < columns; ++i)
      x[r * ld + i] = apply(activation, x[r * ld + activated + i]) * x[r * ld + factor + i];
  if (quantized.data != nullptr) quantize(x, ld, rows, columns, quantized);
}

float value(const void* table, RowType type, size_t index) {
  switch (type) {
    case RowType::kFloat32:
      return static_cast<const float*>(table)[index];
    case RowType::kFloat16:
      return from_half(static_cast<const uint16_t*>(table)[index]);
    case RowType::kBfloat16:
      return from_bf16(static_cast<const uint16_t*>(table)[index]);
    case RowType::kInt8:
      return static_cast<float>(static_cast<const int8_t*>(table)[index]);
  }
  return 0;
}

void sum_rows(const RowSum& task) {
  for (size_t c = 0; c < task.columns; ++c) {
    task.out[c] = 0;
    for (size_t i = 0; i < task.count; ++i)
      task.out[c] += value(task.table, task.type, static_cast<size_t>(task.rows[i]) * task.columns + c) *
                     (task.factors == nullptr ? 1.0f : task.factors[i]);
  }
}

void add_row(const float* x, const TableRow& row, size_t columns, float* out) {
  for (size_t i = 0; i < columns; ++i) out[i] = x[i] + row.factor * value(row.values, row.type, i);
}

void rotate(float* x, size_t ld, size_t rows, size_t head_size, const float* table) {
  for (size_t r = 0; r < rows; ++r, x += ld, table += 2 * head_size)
    for (size_t d = 0; d < head_size; d += 2) {
      const float even = x[d], odd = x[d + 1];
      x[d] = even * table[d] + odd * table[head_size + d];
      x[d + 1] = odd * table[d + 1] + even * table[head_size + d + 1];
    }
}

size_t attention_scratch(size_t length, size_t) { return length; }

void attend(const AttentionTask& task) {
  float* scores = task.scratch;
  for (size_t i = 0; i < task.length; ++i) {
    const size_t first = i > task.before ? i - task.before : 0;
    const size_t end = task.after < task.length - i ? i + task.after + 1 : task.length;
    float high = std::numeric_limits<float>::lowest();
    for (size_t j = first; j < end; ++j) {
      float dot = 0;
      for (size_t d = 0; d < task.head_size; ++d) dot += task.q[i * task.ld + d] * task.k[j * task.ld + d];
      scores[j] = dot * task.scale;
      if (task.bias != nullptr) scores[j] += task.bias_of(i)[j];
      high = std::max(high, scores[j]);
    }
    float sum = 0;
    for (size_t j = first; j < end; ++j) sum += scores[j] = std::exp(scores[j] - high);
    for (size_t d = 0; d < task.head_size; ++d) {
      float mixed = 0;
      for (size_t j = first; j < end; ++j) mixed += scores[j] * task.v[j * task.ld + d];
      task.out[i * task.ld_out + d] = mixed / sum;
    }
  }
}

void attention(const AttentionTask* tasks, size_t heads) {
  for (size_t head = 0; head < heads; ++head) attend(tasks[head]);
}

/// Scalar multiply-adds: the reference has no meaningful ceiling.
double spin_int8(size_t iterations) {
  int32_t acc[8] = {};
  for (size_t i = 0; i < iterations; ++i)
    for (auto& a : acc) asm volatile("" : "+r"(a = a * 3 + 1));
  return static_cast<double>(iterations) * 8;
}

double spin_fp32(size_t iterations) {
  volatile float x = 0.5f;
  float acc[8] = {};
  for (size_t i = 0; i < iterations; ++i)
    for (auto& a : acc) a = a * x + 1.0f;
  volatile float sink = acc[0] + acc[7];
  (void)sink;
  return static_cast<double>(iterations) * 8;
}

}  // namespace

extern const Kernels kReferenceKernels = {
    .isa = Isa::kReference,
    .panel = kPanel,
    .quantized_panel = kPanel,
    .quantized_group = 1,
    .small_layers = {128, 48},
    .large_layers = {128, 48},
    .fp32_instruction = "scalar",
    .int8_instruction = "scalar",
    .packed_int8_bytes = packed_int8_bytes,
    .packed_fp32_bytes = packed_fp32_bytes,
    .pack_int8 = pack_int8,
    .pack_fp32 = pack_fp32,
    .packed_bf16_bytes = packed_bf16_bytes,
    .pack_bf16 = pack_bf16,
    .linear_int8 = linear_int8,
    .linear_fp32 = linear_fp32,
    .bf16 = {"widened", 2, linear_bf16, spin_fp32, {attention_scratch, attention}},
    .quantize = quantize,
    .activate = activate,
    .norm = norm,
    .activate_gated = activate_gated,
    .sum_rows = sum_rows,
    .add_row = add_row,
    .rotate = rotate,
    .attention = {attention_scratch, attention},
    .attention_int8 = {attention_scratch, attention},
    .spin_int8 = spin_int8,
    .spin_fp32 = spin_fp32,
};

}  // namespace embedkit
