// bfloat16 products against double precision on the rounded operands; rows are rounded to nearest, ties to
// even; a row's result does not depend on the tile that it is computed in. With and without vdpbf16ps.
#include <cmath>
#include <cstring>

#include "kernels/float16.h"
#include "kernels_fixture.h"

using namespace embedkit;
using namespace embedkit::test;

namespace {

double value(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

void rounding() {
  CHECK_EQ(to_bf16(1.0f), 0x3f80);
  CHECK_EQ(to_bf16(-2.5f), 0xc020);
  CHECK_EQ(to_bf16(1.00390625f), 0x3f80);    // half way from 0x3f80 to 0x3f81: to the even one
  CHECK_EQ(to_bf16(1.01171875f), 0x3f82);    // half way from 0x3f81 to 0x3f82
  CHECK_EQ(to_bf16(1.0039063692f), 0x3f81);  // just above half way
}

void products(const Kernels& kernels) {
  for (const auto& shape : kShapes) {
    const size_t rows = shape[0], out = shape[1], in = shape[2];
    const Weights weights(kernels, out, in, 1);
    AlignedBuffer<uint8_t> packed(kernels.packed_bf16_bytes(out, in));
    kernels.pack_bf16(weights.fp32.data(), out, in, packed.data());
    const PackedLinear linear{in, out, packed.data(), weights.bias.data(), nullptr, nullptr};
    Matrix x(rows, in, 2);
    const size_t stride = round_up(in, kernels.bf16.group) * sizeof(uint16_t) + 64;
    AlignedBuffer<uint8_t> data(rows * stride);
    const QuantizedRows view{data.data(), stride, nullptr, nullptr, QuantizedRows::Form::kBf16};
    std::memset(data.data(), 0xff, data.size());
    kernels.quantize(x.row(0), x.ld, rows, in, view);
    for (size_t r = 0; r < rows; ++r) {
      const auto* row = reinterpret_cast<const uint16_t*>(data.data() + r * stride);
      for (size_t k = 0; k < stride / sizeof(uint16_t); ++k)
        CHECK_EQ(row[k], k < in ? to_bf16(x.row(r)[k]) : 0);
    }
    Matrix y(rows, weights.quantized_panels * kernels.quantized_panel, 3);
    kernels.bf16.linear(view, rows, linear, 0, weights.quantized_panels, y.row(0), y.ld);
    for (size_t r = 0; r < rows; ++r)
      for (size_t n = 0; n < out; ++n) {
        double want = weights.bias[n];
        for (size_t k = 0; k < in; ++k)
          want += value(to_bf16(x.row(r)[k])) * value(to_bf16(weights.fp32[n * in + k]));
        CHECK(std::abs(y.row(r)[n] - want) < 5e-5);
      }
    Matrix single(1, weights.quantized_panels * kernels.quantized_panel, 4);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t p = 0; p < weights.quantized_panels; ++p)
        kernels.bf16.linear(view.from(r), 1, linear, p, p + 1, single.row(0), single.ld);
      CHECK(std::memcmp(single.row(0), y.row(r), out * sizeof(float)) == 0);
    }
  }
}

void fused(const Kernels& kernels) {
  constexpr size_t kRows = 3, kColumns = 77, kStride = 192;
  Matrix x(kRows, kColumns, 5), y(kRows, kColumns, 6);
  AlignedBuffer<uint8_t> data(kRows * kStride), again(kRows * kStride);
  const QuantizedRows view{data.data(), kStride, nullptr, nullptr, QuantizedRows::Form::kBf16};
  const QuantizedRows second{again.data(), kStride, nullptr, nullptr, QuantizedRows::Form::kBf16};
  Matrix in(kRows, kColumns, 5);
  kernels.activate(Activation::kGelu, x.row(0), x.ld, kRows, kColumns, view);
  for (size_t r = 0; r < kRows; ++r) {
    const auto* row = reinterpret_cast<const uint16_t*>(data.data() + r * kStride);
    for (size_t c = 0; c < kStride / sizeof(uint16_t); ++c) {
      if (c >= kColumns) {
        CHECK_EQ(row[c], 0);
        continue;
      }
      const double want = in.row(r)[c] * 0.5 * std::erfc(-double{in.row(r)[c]} / std::sqrt(2.0));
      CHECK(std::abs(value(row[c]) - want) <= std::abs(want) / 256 + 1.1e-4);
    }
  }
  x = Matrix(kRows, kColumns, 5);
  const std::vector<float> ones(kColumns + Kernels::kSlack, 1.0f);
  kernels.norm({
      .x = x.row(0),
      .ld = x.ld,
      .y = y.row(0),
      .ld_y = y.ld,
      .rows = kRows,
      .columns = kColumns,
      .gamma = ones.data(),
      .beta = ones.data(),
      .epsilon = 1e-12f,
      .out = x.row(0),
      .ld_out = x.ld,
      .quantized = view,
  });
  kernels.quantize(x.row(0), x.ld, kRows, kColumns, second);
  CHECK(std::memcmp(data.data(), again.data(), data.size()) == 0);
}

}  // namespace

int main() {
  rounding();
  for (const Kernels* kernels : all_kernels()) {
    products(*kernels);
    fused(*kernels);
  }
  return report();
}
