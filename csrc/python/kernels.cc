// Times single kernels, for benchmarks/kernels.py: how close each comes to what its instruction set can do.
#include "kernels/kernels.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/error.h"
#include "python/bind.h"
#include "python/gil.h"
#include "python/options.h"

namespace py = pybind11;

namespace embedkit {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Those of `name`, or of `active_isa()` where it is empty.
const Kernels& kernels_named(const std::string& name) {
  return kernels_for(name.empty() ? active_isa() : isa_named(name, "isa"));
}

/// rows x columns values in -2..2, with the slack that kernels may read. They only have to be ordinary.
AlignedBuffer<float> values(size_t rows, size_t ld) {
  AlignedBuffer<float> data((rows + Kernels::kSlackRows) * ld + Kernels::kSlack);
  uint32_t state = 1;
  for (size_t i = 0; i < data.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    data[i] = static_cast<float>(state >> 8) * (4.0f / (1u << 24)) - 2.0f;
  }
  return data;
}

/// What one kernel reads and writes. `reset` is called before every timed call: a kernel that works in place
/// would otherwise run into numbers that are slower than ordinary ones.
struct Case {
  std::function<void()> reset = [] {};
  std::function<void()> call;
  size_t times = 1;  ///< that a call does it
};

class Operands {
 public:
  Operands(const Kernels& kernels, size_t rows, size_t columns, size_t out_features)
      : kernels_(kernels),
        rows_(rows),
        columns_(columns),
        out_features_(out_features),
        ld_(round_up(std::max(columns, out_features), 64) + 16),
        x_(values(rows, ld_)),
        source_(values(rows, ld_)),
        y_(values(rows, ld_)) {}

  Case of(const std::string& operation) {
    const auto restore = [this] { std::memcpy(x_.data(), source_.data(), x_.size() * sizeof(float)); };
    if (operation == "copy")
      return {[] {}, [this] { std::memcpy(x_.data(), source_.data(), rows_ * columns_ * sizeof(float)); }};
    if (operation == "linear_int8") return linear_int8();
    if (operation == "linear_fp32") return linear_fp32();
    if (operation == "linear_bf16") return linear_bf16();
    if (operation == "attention") return attention(kernels_.attention);
    if (operation == "attention_bf16") return attention(kernels_.bf16.attention);
    if (operation == "attention_int8") return attention(kernels_.attention_int8);
    if (operation == "rotate") return rotate(restore);
    if (operation == "quantize") {
      quantized();
      return {[] {}, [this] { kernels_.quantize(source_.data(), ld_, rows_, columns_, quantized_); }};
    }
    if (operation == "gelu") {
      quantized();
      return {restore,
              [this] { kernels_.activate(Activation::kGelu, x_.data(), ld_, rows_, columns_, quantized_); }};
    }
    if (operation == "layer_norm") {
      quantized();
      return {restore, [this] {
                kernels_.norm({
                    .x = x_.data(),
                    .ld = ld_,
                    .y = y_.data(),
                    .ld_y = ld_,
                    .rows = rows_,
                    .columns = columns_,
                    .gamma = source_.data(),
                    .beta = source_.data(),
                    .epsilon = 1e-12f,
                    .out = x_.data(),
                    .ld_out = ld_,
                    .quantized = quantized_,
                });
              }};
    }
    throw py::value_error(concat("operation is '", operation,
                                 "'; expected one of linear_int8, linear_bf16, linear_fp32, attention, "
                                 "attention_bf16, attention_int8, "
                                 "rotate, quantize, gelu, layer_norm, copy"));
  }

 private:
  void quantized() {
    const size_t stride = round_up(columns_, kernels_.quantized_group) + 64;
    bytes_.reset(rows_ * stride);
    scale_.reset(rows_);
    lowest_.reset(rows_);
    quantized_ = {bytes_.data(), stride, scale_.data(), lowest_.data()};
    kernels_.quantize(source_.data(), ld_, rows_, columns_, quantized_);
  }

  PackedLinear packed(size_t bytes, size_t panel) {
    packed_.reset(bytes);
    panels_ = (out_features_ + panel - 1) / panel;
    per_output_ = values(1, panels_ * panel);
    ld_out_ = panels_ * panel + 16;
    out_ = values(rows_, ld_out_);
    return {columns_,           out_features_,      packed_.data(),
            per_output_.data(), per_output_.data(), per_output_.data()};
  }

  Case linear_int8() {
    quantized();
    linear_ = packed(kernels_.packed_int8_bytes(out_features_, columns_), kernels_.quantized_panel);
    std::vector<int8_t> weights(out_features_ * columns_);
    // Four uniform numbers added up, as most weights of a model are small.
    for (size_t i = 0; i < weights.size(); ++i) {
      int sum = 0;
      for (const size_t prime : {7919u, 104729u, 15485863u, 32452843u})
        sum += static_cast<int>(i * prime % 64) - 32;
      weights[i] = static_cast<int8_t>(std::min(sum, 127));
    }
    kernels_.pack_int8(weights.data(), out_features_, columns_, packed_.data());
    return {[] {},
            [this] { kernels_.linear_int8(quantized_, rows_, linear_, 0, panels_, out_.data(), ld_out_); }};
  }

  Case linear_bf16() {
    quantized_ = {nullptr, round_up(columns_, kernels_.bf16.group) * sizeof(uint16_t) + 64, nullptr, nullptr,
                  QuantizedRows::Form::kBf16};
    bytes_.reset(rows_ * quantized_.stride);
    quantized_.data = bytes_.data();
    kernels_.quantize(source_.data(), ld_, rows_, columns_, quantized_);
    linear_ = packed(kernels_.packed_bf16_bytes(out_features_, columns_), kernels_.quantized_panel);
    const AlignedBuffer<float> weights = values(out_features_, columns_);
    kernels_.pack_bf16(weights.data(), out_features_, columns_, packed_.data());
    return {[] {},
            [this] { kernels_.bf16.linear(quantized_, rows_, linear_, 0, panels_, out_.data(), ld_out_); }};
  }

  Case linear_fp32() {
    linear_ = packed(kernels_.packed_fp32_bytes(out_features_, columns_), kernels_.panel);
    const AlignedBuffer<float> weights = values(out_features_, columns_);
    kernels_.pack_fp32(weights.data(), out_features_, columns_, packed_.data());
    return {[] {},
            [this] {
              kernels_.linear_fp32(source_.data(), ld_, rows_, linear_, 0, panels_, out_.data(), ld_out_);
            }};
  }

  /// Heads of `columns` values of one sequence of `rows` tokens, as in a model.
  Case attention(const Attention& kernel) {
    constexpr size_t kHeads = 12;
    const size_t width = kHeads * columns_, ld = 3 * width + 16;
    query_key_value_ = values(rows_, ld);
    ld_out_ = width + 16;
    out_ = values(rows_, ld_out_);
    scratch_.reset(kernel.scratch(rows_, columns_));
    std::vector<AttentionTask> tasks;
    for (size_t head = 0; head < kHeads; ++head) {
      const float* q = query_key_value_.data() + head * columns_;
      tasks.push_back({q, q + width, q + 2 * width, ld, rows_, columns_, 0.125f,
                       out_.data() + head * columns_, ld_out_, scratch_.data()});
    }
    return {[] {}, [tasks, &kernel] { kernel.run(tasks.data(), tasks.size()); }, kHeads};
  }

  Case rotate(const std::function<void()>& restore) {
    table_ = values(rows_, 2 * columns_);
    return {restore, [this] { kernels_.rotate(x_.data(), ld_, rows_, columns_, table_.data()); }};
  }

  const Kernels& kernels_;
  size_t rows_, columns_, out_features_, ld_, ld_out_ = 0, panels_ = 0;
  AlignedBuffer<float> x_, source_, y_, query_key_value_, out_, scratch_, table_, per_output_, scale_,
      lowest_;
  AlignedBuffer<uint8_t> bytes_, packed_;
  QuantizedRows quantized_{};
  PackedLinear linear_{};
};

double measure_kernel(const std::string& operation, size_t rows, size_t columns, size_t out_features,
                      const std::string& isa, double seconds) {
  // What a benchmark could sensibly ask for; beyond it the sizes of the operands would have to be checked.
  constexpr size_t kMost = size_t{1} << 20;
  if (rows == 0 || columns == 0 || rows > kMost || columns > kMost || out_features > kMost)
    throw py::value_error("rows and columns must be 1 to 2^20, out_features at most that");
  const bool product = operation.starts_with("linear_");
  if (product != (out_features > 0)) throw py::value_error("out_features belongs to the products");
  if (operation == "rotate" && columns % 2 != 0)
    throw py::value_error("rotate turns pairs: give even columns");
  Operands operands(kernels_named(isa), rows, columns, out_features);
  const Case one = operands.of(operation);
  const GilRelease release;
  // On a busy machine any one call may be interrupted for many times its length.
  constexpr int kFewest = 5;
  double best = std::numeric_limits<double>::infinity();
  const Clock::time_point start = Clock::now();
  for (int calls = 0; calls < kFewest || seconds_since(start) < seconds; ++calls) {
    one.reset();
    const Clock::time_point begin = Clock::now();
    one.call();
    best = std::min(best, seconds_since(begin));
  }
  return best / static_cast<double>(one.times);
}

double measure_peak(const std::string& precision, double seconds, const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const auto spin =
      choose(precision, "precision",
             Names<double (*)(size_t)>{
                 {"fp32", kernels.spin_fp32}, {"bf16", kernels.bf16.spin}, {"int8", kernels.spin_int8}});
  const GilRelease release;
  const Clock::time_point start = Clock::now();
  double best = 0;
  do {
    const Clock::time_point begin = Clock::now();
    const double products = spin(100000);
    best = std::max(best, 2e-9 * products / seconds_since(begin));
  } while (seconds_since(start) < seconds);
  return best;
}

}  // namespace

void bind_kernels(py::module_& m) {
  m.def("measure_peak", &measure_peak, py::arg("precision"), py::arg("seconds") = 0.2, py::arg("isa") = "");
  m.def("measure_kernel", &measure_kernel, py::arg("operation"), py::arg("rows"), py::arg("columns"),
        py::arg("out_features") = 0, py::arg("isa") = "", py::arg("seconds") = 0.2);
}

}  // namespace embedkit
