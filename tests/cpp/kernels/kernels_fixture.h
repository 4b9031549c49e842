// What the kernel tests share: random rows, quantized rows and packed weights for one instruction set.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "base/aligned.h"
#include "check.h"
#include "kernels/kernels.h"

namespace embedkit::test {

/// Every table that this machine can run, the variants that `kernels_for` does not choose here included.
inline std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> all;
  for (const Isa isa : available_isas()) all.push_back(&kernels_for(isa));
#if defined(__x86_64__)
  const auto isas = available_isas();
  if (std::find(isas.begin(), isas.end(), Isa::kAmxEmulated) != isas.end())
    all.insert(all.end(), {&kAmxEmulatedAvx2Kernels, &kAvx2Kernels, &kAvx2SplitKernels});
  if (has_avx512_vnni()) all.push_back(&kAvx512VnniKernels);  // without vdpbf16ps
#endif
  return all;
}

inline std::vector<float> random_floats(size_t n, float low, float high, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(n);
  for (float& v : values) v = uniform(random);
  return values;
}

/// Rows with slack after the last one, as the kernels may read it.
struct Matrix {
  size_t rows, columns, ld;
  AlignedBuffer<float> data;

  Matrix(size_t r, size_t c, unsigned seed, float low = -1, float high = 1)
      : rows(r),
        columns(c),
        ld(round_up(c, 48) + 16),
        data((r + Kernels::kSlackRows) * ld + Kernels::kSlack) {
    const std::vector<float> values = random_floats(data.size(), low, high, seed);
    std::copy(values.begin(), values.end(), data.data());
  }
  float* row(size_t r) { return data.data() + r * ld; }
};

struct Quantized {
  size_t stride;
  AlignedBuffer<uint8_t> data;
  AlignedBuffer<float> scale, lowest;

  Quantized(const Kernels& kernels, size_t rows, size_t columns)
      : stride(round_up(columns, kernels.quantized_group) + 64),
        data(rows * stride),
        scale(rows),
        lowest(rows) {}
  QuantizedRows view() { return {data.data(), stride, scale.data(), lowest.data()}; }
  int at(size_t r, size_t c) const { return data[r * stride + c]; }
};

struct Weights {
  std::vector<int8_t> int8;
  std::vector<float> fp32;
  AlignedBuffer<uint8_t> packed_int8, packed_fp32;
  std::vector<float> bias, scale, row_sums;
  PackedLinear linear_int8, linear_fp32;
  size_t panels;            ///< of fp32
  size_t quantized_panels;  ///< of int8 and bf16

  Weights(const Kernels& kernels, size_t out, size_t in, unsigned seed)
      : packed_int8(kernels.packed_int8_bytes(out, in)), packed_fp32(kernels.packed_fp32_bytes(out, in)) {
    panels = (out + kernels.panel - 1) / kernels.panel;
    quantized_panels = (out + kernels.quantized_panel - 1) / kernels.quantized_panel;
    const size_t padded = std::max(panels * kernels.panel, quantized_panels * kernels.quantized_panel);
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> bytes(-127, 127);
    int8.resize(out * in);
    for (int8_t& w : int8) w = static_cast<int8_t>(bytes(random));
    fp32 = random_floats(out * in, -1, 1, seed + 1);
    bias = random_floats(padded, -1, 1, seed + 2);
    scale = random_floats(padded, 0.001f, 0.01f, seed + 3);
    row_sums.assign(padded, 0.0f);
    for (size_t n = 0; n < out; ++n) {
      int sum = 0;
      for (size_t k = 0; k < in; ++k) sum += int8[n * in + k];
      row_sums[n] = scale[n] * static_cast<float>(sum);
    }
    kernels.pack_int8(int8.data(), out, in, packed_int8.data());
    kernels.pack_fp32(fp32.data(), out, in, packed_fp32.data());
    linear_int8 = {in, out, packed_int8.data(), bias.data(), scale.data(), row_sums.data()};
    linear_fp32 = {in, out, packed_fp32.data(), bias.data(), nullptr, nullptr};
  }
};

/// (rows, out, in): whole tiles and panels, tails of both, single rows and columns.
inline const std::vector<std::vector<size_t>> kShapes = {
    {1, 1, 1}, {1, 32, 4}, {3, 33, 5}, {7, 40, 40}, {12, 64, 64}, {13, 96, 31}, {25, 17, 78}, {30, 936, 312}};

}  // namespace embedkit::test
