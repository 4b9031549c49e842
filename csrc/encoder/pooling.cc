#include "encoder/pooling.h"

#include <algorithm>
#include <cmath>

namespace embedkit {

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
    case PoolingMode::kWeightedMean: {
      float total = 0;
      for (size_t t = skip; t < length; ++t) {
        const float weight = mode == PoolingMode::kWeightedMean ? static_cast<float>(t + 1) : 1.0f;
        total += weight;
        for (size_t i = 0; i < hidden_size; ++i) out[i] += weight * hidden[t * ld + i];
      }
      const float divisor = mode == PoolingMode::kMeanSqrtLen ? std::sqrt(total) : total;
      for (size_t i = 0; i < hidden_size; ++i) out[i] /= divisor;
      return;
    }
  }
}

void normalize(float* x, size_t size) {
  double squares = 0;
  for (size_t i = 0; i < size; ++i) squares += double{x[i]} * double{x[i]};
  const double inverse = 1.0 / std::max(std::sqrt(squares), 1e-12);
  for (size_t i = 0; i < size; ++i) x[i] = static_cast<float>(x[i] * inverse);
}

}  // namespace embedkit
