// Quantization, activations and layer norm of every instruction set against formulas in double precision.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels_fixture.h"

using namespace embedkit;
using namespace embedkit::test;

namespace {

void quantize(const Kernels& kernels) {
  for (const size_t columns : {1ul, 5ul, 16ul, 31ul, 40ul, 312ul, 384ul}) {
    Matrix x(4, columns, static_cast<unsigned>(columns), -3, 5);
    for (size_t c = 0; c < columns; ++c) x.row(1)[c] = 0.75f;                    // constant
    for (size_t c = 0; c < columns; ++c) x.row(2)[c] = c == 0 ? -1e30f : 1e30f;  // wide
    for (size_t c = 0; c < columns; ++c)
      x.row(3)[c] = c == columns - 1 ? 1.0f : 0.0f;  // the range ends in the tail
    Quantized q(kernels, 4, columns);
    kernels.quantize(x.row(0), x.ld, 4, columns, q.view());
    for (size_t r = 0; r < 4; ++r) {
      float low = x.row(r)[0], high = x.row(r)[0];
      for (size_t c = 0; c < columns; ++c)
        low = std::min(low, x.row(r)[c]), high = std::max(high, x.row(r)[c]);
      CHECK_EQ(q.lowest[r], low);
      for (size_t c = 0; c < columns; ++c) {
        CHECK(q.at(r, c) >= 0 && q.at(r, c) <= 255);
        const double back = double{q.scale[r]} * q.at(r, c) + q.lowest[r];
        CHECK(std::abs(back - x.row(r)[c]) <= 0.501 * q.scale[r] + 1e-6 * std::abs(x.row(r)[c]));
      }
      for (size_t c = columns; c < round_up(columns, kernels.quantized_group); ++c) CHECK_EQ(q.at(r, c), 0);
    }
  }
}

double exact(Activation activation, double x) {
  switch (activation) {
    case Activation::kIdentity:
      return x;
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
  }
  return 0;
}

void activate(const Kernels& kernels) {
  for (const Activation activation :
       {Activation::kIdentity, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu, Activation::kTanh,
        Activation::kSigmoid, Activation::kSilu}) {
    constexpr size_t kColumns = 20011;  // odd: whole vectors and a tail
    Matrix x(1, kColumns, 3);
    std::vector<float> in(kColumns);
    for (size_t c = 0; c < kColumns; ++c) in[c] = x.row(0)[c] = -10.0f + 0.001f * static_cast<float>(c);
    in[0] = x.row(0)[0] = -1e4f;
    in[1] = x.row(0)[1] = 1e4f;
    kernels.activate(activation, x.row(0), x.ld, 1, kColumns, {});
    for (size_t c = 0; c < kColumns; ++c) {
      const double want = exact(activation, in[c]);
      CHECK(std::abs(x.row(0)[c] - want) <= 1.5e-6 + 4e-7 * std::abs(in[c]));
    }
  }
  // Quantized in the same pass: within half a step, and the coarser GELU's error, of the exact value.
  Matrix x(5, 77, 4, -6, 6);
  Matrix in(5, 77, 4, -6, 6);
  Quantized fused(kernels, 5, 77);
  const QuantizedRows view = fused.view();
  kernels.activate(Activation::kGelu, x.row(0), x.ld, 5, 77, view);
  for (size_t r = 0; r < 5; ++r)
    for (size_t c = 0; c < 77; ++c) {
      const double back = double{fused.scale[r]} * fused.at(r, c) + fused.lowest[r];
      const double allowed = 0.501 * fused.scale[r] + 8e-5 + 1.4e-4 * std::abs(in.row(r)[c]);
      CHECK(std::abs(back - exact(Activation::kGelu, in.row(r)[c])) <= allowed);
    }
}

void layer_norm(const Kernels& kernels) {
  for (const size_t columns : {1ul, 26ul, 40ul, 312ul, 384ul, 768ul}) {
    for (const bool added : {false, true}) {
      // A large common offset: a one-pass variance would cancel.
      Matrix x(3, columns, 5, 99, 101), y(3, columns, 6), gamma(1, columns, 7), beta(1, columns, 8);
      Quantized q(kernels, 3, columns);
      const QuantizedRows view = q.view();
      std::vector<double> sum(3 * columns);
      for (size_t r = 0; r < 3; ++r)
        for (size_t c = 0; c < columns; ++c)
          sum[r * columns + c] = added ? x.row(r)[c] + y.row(r)[c] : x.row(r)[c];
      kernels.norm({
          .x = x.row(0),
          .ld = x.ld,
          .y = added ? y.row(0) : nullptr,
          .ld_y = y.ld,
          .rows = 3,
          .columns = columns,
          .gamma = gamma.row(0),
          .beta = beta.row(0),
          .epsilon = 1e-12f,
          .out = x.row(0),
          .ld_out = x.ld,
          .quantized = view,
      });
      for (size_t r = 0; r < 3; ++r) {
        double mean = 0, variance = 0;
        for (size_t c = 0; c < columns; ++c) mean += sum[r * columns + c] / static_cast<double>(columns);
        for (size_t c = 0; c < columns; ++c)
          variance += std::pow(sum[r * columns + c] - mean, 2) / static_cast<double>(columns);
        for (size_t c = 0; c < columns; ++c) {
          const double want =
              (sum[r * columns + c] - mean) / std::sqrt(variance + 1e-12) * gamma.row(0)[c] + beta.row(0)[c];
          if (columns > 1) CHECK(std::abs(x.row(r)[c] - want) < 1e-4);
          const double back = double{q.scale[r]} * q.at(r, c) + q.lowest[r];
          CHECK(std::abs(back - x.row(r)[c]) <= 0.501 * q.scale[r] + 1e-5);
        }
      }
    }
  }
}

/// Rows that are computed together, and those left over, have the bits of each alone.
void independent(const Kernels& kernels, QuantizedRows::Form form) {
  constexpr size_t kRows = 11;
  for (const size_t columns : {7ul, 64ul, 312ul, 384ul}) {
    Matrix x(kRows, columns, 9, -2, 3), y(kRows, columns, 10), gamma(1, columns, 11), beta(1, columns, 12);
    Matrix out(kRows, columns, 13), lone(1, columns, 14);
    const size_t stride = round_up(2 * columns, 64) + 64;
    AlignedBuffer<uint8_t> together(kRows * stride), alone(stride);
    std::vector<float> scale(kRows), lowest(kRows);
    float lone_scale = 0, lone_lowest = 0;
    const QuantizedRows rows{together.data(), stride, scale.data(), lowest.data(), form};
    const QuantizedRows row{alone.data(), stride, &lone_scale, &lone_lowest, form};
    const auto same_row = [&](size_t r) {
      CHECK(std::memcmp(alone.data(), together.data() + r * stride, stride) == 0);
      if (form == QuantizedRows::Form::kBf16) return;
      CHECK_EQ(lone_scale, scale[r]);
      CHECK_EQ(lone_lowest, lowest[r]);
    };
    kernels.quantize(x.row(0), x.ld, kRows, columns, rows);
    for (size_t r = 0; r < kRows; ++r) {
      kernels.quantize(x.row(r), x.ld, 1, columns, row);
      same_row(r);
    }
    Matrix given(kRows, columns, 9, -2, 3);
    NormTask task{.x = x.row(0),
                  .ld = x.ld,
                  .y = y.row(0),
                  .ld_y = y.ld,
                  .rows = kRows,
                  .columns = columns,
                  .gamma = gamma.row(0),
                  .beta = beta.row(0),
                  .epsilon = 1e-12f,
                  .out = out.row(0),
                  .ld_out = out.ld,
                  .quantized = rows};
    kernels.norm(task);
    for (size_t r = 0; r < kRows; ++r) {
      std::memcpy(x.row(r), given.row(r), columns * sizeof(float));
      task.x = x.row(r), task.y = y.row(r), task.rows = 1, task.out = lone.row(0), task.quantized = row;
      kernels.norm(task);
      CHECK(std::memcmp(lone.row(0), out.row(r), columns * sizeof(float)) == 0);
      same_row(r);
      kernels.quantize(lone.row(0), lone.ld, 1, columns, row);
      same_row(r);
    }
  }
}

}  // namespace

int main() {
  for (const Isa isa : available_isas()) {
    quantize(kernels_for(isa));
    activate(kernels_for(isa));
    layer_norm(kernels_for(isa));
    independent(kernels_for(isa), QuantizedRows::Form::kInt8);
    independent(kernels_for(isa), QuantizedRows::Form::kBf16);
  }
  return report();
}
