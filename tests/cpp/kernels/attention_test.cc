// Attention of every instruction set against the formula in double precision: odd lengths and head sizes,
// scores that would overflow without the shift by their maximum, with and without a relative position bias,
// and nothing written outside the head's own columns.
#include <cmath>

#include "kernels_fixture.h"

using namespace embedkit;
using namespace embedkit::test;

namespace {

void attention(const Kernels& kernels, size_t length, size_t head_size, float magnitude, bool biased) {
  Matrix qkv(length, 3 * head_size, static_cast<unsigned>(length + head_size), -magnitude, magnitude);
  Matrix out(length, 3 * head_size, 1, 7, 7);
  std::vector<float> scratch(kernels.attention_scratch(length, head_size) + Kernels::kSlack);
  // (2 length - 1) distances and the slack that may be read.
  const std::vector<float> bias = random_floats(2 * length - 1 + Kernels::kSlack, -3, 3, 9);
  const float* q = qkv.row(0);
  kernels.attention({q, q + head_size, q + 2 * head_size, qkv.ld, length, head_size, out.row(0) + head_size,
                     out.ld, scratch.data(), biased ? bias.data() + length - 1 : nullptr});
  for (size_t i = 0; i < length; ++i) {
    std::vector<double> scores(length);
    double high = -1e300, sum = 0;
    for (size_t j = 0; j < length; ++j) {
      for (size_t d = 0; d < head_size; ++d) scores[j] += double{qkv.row(i)[d]} * qkv.row(j)[head_size + d];
      scores[j] /= std::sqrt(static_cast<double>(head_size));
      if (biased) scores[j] += bias[length - 1 + j - i];
      high = std::max(high, scores[j]);
    }
    for (double& s : scores) sum += s = std::exp(s - high);
    for (size_t d = 0; d < head_size; ++d) {
      double want = 0;
      for (size_t j = 0; j < length; ++j) want += scores[j] / sum * qkv.row(j)[2 * head_size + d];
      CHECK(std::abs(out.row(i)[head_size + d] - want) < 2e-5 * magnitude * (1 + magnitude));
      CHECK_EQ(out.row(i)[d], 7.0f);
      CHECK_EQ(out.row(i)[2 * head_size + d], 7.0f);
    }
  }
}

}  // namespace

int main() {
  for (const Isa isa : available_isas())
    for (const size_t length : {1ul, 2ul, 7ul, 8ul, 15ul, 16ul, 17ul, 33ul, 130ul})
      for (const size_t head_size : {1ul, 10ul, 16ul, 26ul, 32ul, 64ul}) {
        for (const bool biased : {false, true}) {
          attention(kernels_for(isa), length, head_size, 1, biased);
          attention(kernels_for(isa), length, head_size, 20, biased);
        }
      }
  return report();
}
