#include "encoder/pooling.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace embedkit {

namespace {

/// Sums in double precision: in floats the weights of a long text alone lose digits.
void mean(PoolingMode mode, const float* first, size_t ld, size_t skip, size_t length, size_t hidden_size,
          float* out) {
  constexpr size_t kBlock = 64;  // features
  const bool weighted = mode == PoolingMode::kWeightedMean;
  const auto weight = [&](size_t t) { return weighted ? static_cast<double>(t + 1) : 1.0; };
  double total = 0;
  for (size_t t = skip; t < length; ++t) total += weight(t);
  const double divisor = mode == PoolingMode::kMeanSqrtLen ? std::sqrt(total) : total;
  for (size_t begin = 0; begin < hidden_size; begin += kBlock) {
    const size_t width = std::min(kBlock, hidden_size - begin);
    std::array<double, kBlock> sums{};
    const float* x = first + begin;
    for (size_t t = skip; t < length; ++t, x += ld)
      for (size_t i = 0; i < width; ++i) sums[i] += weight(t) * x[i];
    for (size_t i = 0; i < width; ++i) out[begin + i] = static_cast<float>(sums[i] / divisor);
  }
}

}  // namespace

void pool_sequence(PoolingMode mode, const float* hidden, size_t ld, size_t length, size_t skip,
                   size_t hidden_size, float* out) {
  std::fill_n(out, hidden_size, 0.0f);
  if (skip >= length) return;
  const float* first = hidden + skip * ld;
  switch (mode) {
    case PoolingMode::kCls:
      std::copy_n(first, hidden_size, out);
      return;
    case PoolingMode::kLastToken:
      std::copy_n(hidden + (length - 1) * ld, hidden_size, out);
      return;
    case PoolingMode::kMax:
      std::copy_n(first, hidden_size, out);
      for (size_t t = skip + 1; t < length; ++t)
        for (size_t i = 0; i < hidden_size; ++i) out[i] = std::max(out[i], hidden[t * ld + i]);
      return;
    case PoolingMode::kMean:
    case PoolingMode::kMeanSqrtLen:
    case PoolingMode::kWeightedMean:
      mean(mode, first, ld, skip, length, hidden_size, out);
      return;
  }
}

void normalize(float* x, size_t size) {
  double squares = 0;
  for (size_t i = 0; i < size; ++i) squares += double{x[i]} * double{x[i]};
  const double inverse = 1.0 / std::max(std::sqrt(squares), 1e-12);
  for (size_t i = 0; i < size; ++i) x[i] = static_cast<float>(x[i] * inverse);
}

}  // namespace embedkit
