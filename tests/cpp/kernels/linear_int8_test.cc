// The integer products are exact on every instruction set, up to the largest values; what is scaled from them
// agrees with the reference; a row's result does not depend on the tile that it is computed in.
#include <cmath>
#include <cstring>

#include "kernels_fixture.h"

using namespace embedkit;
using namespace embedkit::test;

namespace {

void products_are_exact(const Kernels& kernels, bool extreme) {
  for (const auto& shape : kShapes) {
    const size_t rows = shape[0], out = shape[1], in = shape[2];
    Weights weights(kernels, out, in, 7);
    Matrix x(rows, in, 8);
    if (extreme) {  // activations at their largest, weights at their bound: 8- and 16-bit sums would saturate
      for (size_t i = 0; i < weights.int8.size(); ++i) weights.int8[i] = i % 3 == 0 ? -127 : 127;
      kernels.pack_int8(weights.int8.data(), out, in, weights.packed_int8.data());
      for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < in; ++c) x.row(r)[c] = c == 0 && in > 1 ? 0.0f : 1.0f;
    }
    Quantized q(kernels, rows, in);
    kernels.quantize(x.row(0), x.ld, rows, in, q.view());
    std::vector<int32_t> got(rows * out, -1);
    kernels.products_int8(q.view(), rows, weights.linear_int8, got.data(), out);
    for (size_t r = 0; r < rows; ++r)
      for (size_t n = 0; n < out; ++n) {
        int32_t want = 0;
        for (size_t k = 0; k < in; ++k) want += q.at(r, k) * weights.int8[n * in + k];
        CHECK_EQ(got[r * out + n], want);
      }
  }
}

/// Many equal weights: -91 and 91 bring the sums of vpmaddubsw to their bound, and 1,025 groups of four
/// features are more than 16-bit sums can wait for.
void long_sums_are_exact(const Kernels& kernels) {
  constexpr size_t kRows = 4, kOut = 17, kIn = 4100;
  Weights weights(kernels, kOut, kIn, 13);
  Matrix x(kRows, kIn, 14, 1, 1);
  for (size_t r = 0; r < kRows; ++r) x.row(r)[kIn - 1] = 0;
  Quantized q(kernels, kRows, kIn);
  kernels.quantize(x.row(0), x.ld, kRows, kIn, q.view());
  Matrix y(kRows, weights.quantized_panels * kernels.quantized_panel, 15);
  for (const int weight : {-127, -91, -1, 91, 127}) {
    weights.int8.assign(kOut * kIn, static_cast<int8_t>(weight));
    kernels.pack_int8(weights.int8.data(), kOut, kIn, weights.packed_int8.data());
    kernels.linear_int8(q.view(), kRows, weights.linear_int8, 0, weights.quantized_panels, y.row(0), y.ld);
    std::vector<int32_t> got(kRows * kOut);
    kernels.products_int8(q.view(), kRows, weights.linear_int8, got.data(), kOut);
    for (size_t r = 0; r < kRows; ++r)
      for (size_t n = 0; n < kOut; ++n) {
        const int sum = static_cast<int>(kIn - 1) * q.at(r, 0) * weight;
        CHECK_EQ(got[r * kOut + n], sum);
        const double want = double{q.scale[r]} * sum * weights.scale[n] + weights.bias[n];
        CHECK(std::abs(y.row(r)[n] - want) < 1e-5 * (1 + std::abs(want)));
      }
  }
}

void scaled_products_agree(const Kernels& kernels) {
  for (const auto& shape : kShapes) {
    const size_t rows = shape[0], out = shape[1], in = shape[2];
    Weights weights(kernels, out, in, 9);
    Matrix x(rows, in, 10);
    Quantized q(kernels, rows, in);
    kernels.quantize(x.row(0), x.ld, rows, in, q.view());
    Matrix y(rows, weights.quantized_panels * kernels.quantized_panel, 11);
    kernels.linear_int8(q.view(), rows, weights.linear_int8, 0, weights.quantized_panels, y.row(0), y.ld);
    for (size_t r = 0; r < rows; ++r)
      for (size_t n = 0; n < out; ++n) {
        double want = weights.bias[n];
        for (size_t k = 0; k < in; ++k)
          want +=
              (double{q.scale[r]} * q.at(r, k) + q.lowest[r]) * weights.scale[n] * weights.int8[n * in + k];
        CHECK(std::abs(y.row(r)[n] - want) < 1e-5 * (1 + std::abs(want)));
      }
    // Each row alone, and each panel alone: the same bits.
    Matrix single(1, weights.quantized_panels * kernels.quantized_panel, 12);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t p = 0; p < weights.quantized_panels; ++p)
        kernels.linear_int8(q.view().from(r), 1, weights.linear_int8, p, p + 1, single.row(0), single.ld);
      CHECK(std::memcmp(single.row(0), y.row(r), out * sizeof(float)) == 0);
    }
  }
}

}  // namespace

int main() {
  for (const Kernels* kernels : all_kernels()) {
    products_are_exact(*kernels, false);
    products_are_exact(*kernels, true);
    long_sums_are_exact(*kernels);
    scaled_products_agree(*kernels);
  }
  return report();
}
