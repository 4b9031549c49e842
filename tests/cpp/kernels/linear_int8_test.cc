// The integer products are exact on every instruction set, up to the largest values; what is scaled from them
// agrees with the reference; a row's result does not depend on the tile that it is computed in.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels_fixture.h"

using namespace embedkit;
using namespace embedkit::test;

namespace {

/// What linear_int8 makes where nothing is scaled or added: the integer products, exact up to 2^24.
Matrix products(const Kernels& kernels, Quantized& q, size_t rows, Weights& weights) {
  std::fill_n(q.scale.data(), rows, 1.0f);
  std::fill_n(q.lowest.data(), rows, 0.0f);
  std::fill(weights.scale.begin(), weights.scale.end(), 1.0f);
  std::fill(weights.row_sums.begin(), weights.row_sums.end(), 0.0f);
  std::fill(weights.bias.begin(), weights.bias.end(), 0.0f);
  Matrix y(rows, weights.quantized_panels * kernels.quantized_panel, 15);
  kernels.linear_int8(q.view(), rows, weights.linear_int8, 0, weights.quantized_panels, y.row(0), y.ld);
  return y;
}

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
    Matrix got = products(kernels, q, rows, weights);
    for (size_t r = 0; r < rows; ++r)
      for (size_t n = 0; n < out; ++n) {
        int32_t want = 0;
        for (size_t k = 0; k < in; ++k) want += q.at(r, k) * weights.int8[n * in + k];
        CHECK_EQ(got.row(r)[n], static_cast<float>(want));
      }
  }
}

/// Many equal weights: -91 and 91 bring the sums of vpmaddubsw to their bound, and there are more groups of
/// four features than 16-bit sums can wait for. Two weights of each group are 0, or the results were not
/// exact.
void long_sums_are_exact(const Kernels& kernels) {
  constexpr size_t kRows = 4, kOut = 17;
  for (const int weight : {-127, -91, -1, 91, 127}) {
    const int groups = std::min(1025, (1 << 24) / (2 * 255 * std::abs(weight)));
    const size_t in = 4 * static_cast<size_t>(groups);
    Weights weights(kernels, kOut, in, 13);
    for (size_t i = 0; i < weights.int8.size(); ++i)
      weights.int8[i] = static_cast<int8_t>(i % 4 < 2 ? weight : 0);
    kernels.pack_int8(weights.int8.data(), kOut, in, weights.packed_int8.data());
    Matrix x(kRows, in, 14, 1, 1);
    for (size_t r = 0; r < kRows; ++r) x.row(r)[in - 1] = 0;
    Quantized q(kernels, kRows, in);
    kernels.quantize(x.row(0), x.ld, kRows, in, q.view());
    Matrix got = products(kernels, q, kRows, weights);
    for (size_t r = 0; r < kRows; ++r)
      for (size_t n = 0; n < kOut; ++n)
        CHECK_EQ(got.row(r)[n], static_cast<float>(2 * groups * q.at(r, 0) * weight));
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
