// Means of long texts against sums in extended precision.
#include "encoder/pooling.h"

#include <cmath>
#include <random>
#include <vector>

#include "check.h"

using namespace embedkit;

namespace {

void check_mean(PoolingMode mode, size_t length, size_t skip, size_t hidden_size) {
  const size_t ld = hidden_size + 3;
  std::vector<float> hidden(length * ld), out(hidden_size);
  std::mt19937 random(static_cast<unsigned>(length + hidden_size));
  std::normal_distribution<float> normal(0.1f);
  for (float& value : hidden) value = normal(random);
  pool_sequence(mode, hidden.data(), ld, length, skip, hidden_size, out.data());
  for (size_t d = 0; d < hidden_size; ++d) {
    long double sum = 0, total = 0;
    for (size_t t = skip; t < length; ++t) {
      const long double weight = mode == PoolingMode::kWeightedMean ? t + 1 : 1;
      total += weight;
      sum += weight * hidden[t * ld + d];
    }
    const long double want = sum / (mode == PoolingMode::kMeanSqrtLen ? std::sqrt(total) : total);
    CHECK(std::abs(out[d] - want) <= 1e-7L * std::abs(want) + 1e-12L);
  }
}

}  // namespace

int main() {
  for (const PoolingMode mode : {PoolingMode::kMean, PoolingMode::kMeanSqrtLen, PoolingMode::kWeightedMean})
    for (const size_t hidden_size : {1ul, 64ul, 65ul, 200ul})
      for (const size_t length : {1ul, 7ul, 8192ul}) {
        check_mean(mode, length, 0, hidden_size);
        if (length > 5) check_mean(mode, length, 5, hidden_size);
      }
  return test::report();
}
