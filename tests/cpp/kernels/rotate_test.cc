// The rotary embedding of every instruction set: each pair of features turned as a complex number by the
// angle of its position, in double precision; a row alone gives the same bits as among others; columns beside
// the head stay as they are.
#include <cmath>
#include <complex>
#include <cstring>

#include "kernels_fixture.h"

using namespace embedkit;
using namespace embedkit::test;

namespace {

void rotate(const Kernels& kernels, size_t rows, size_t head_size) {
  std::vector<float> table(rows * 2 * head_size + Kernels::kSlack);
  const auto angle = [&](size_t r, size_t d) {
    return static_cast<double>(r) /
           std::pow(10000.0, static_cast<double>(d) / static_cast<double>(head_size));
  };
  for (size_t r = 0; r < rows; ++r)
    for (size_t d = 0; d < head_size; d += 2) {
      float* row = table.data() + r * 2 * head_size;
      row[d] = row[d + 1] = static_cast<float>(std::cos(angle(r, d)));
      row[head_size + d + 1] = static_cast<float>(std::sin(angle(r, d)));
      row[head_size + d] = -row[head_size + d + 1];
    }
  const unsigned seed = static_cast<unsigned>(rows + head_size);
  Matrix before(rows, 3 * head_size, seed, -4, 4), after(rows, 3 * head_size, seed, -4, 4);
  kernels.rotate(after.row(0) + head_size, after.ld, rows, head_size, table.data());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t d = 0; d < head_size; d += 2) {
      const float* x = before.row(r) + head_size + d;
      const std::complex<double> want = std::complex<double>(x[0], x[1]) * std::polar(1.0, angle(r, d));
      CHECK(std::abs(after.row(r)[head_size + d] - want.real()) < 2e-6);
      CHECK(std::abs(after.row(r)[head_size + d + 1] - want.imag()) < 2e-6);
    }
    for (size_t d = 0; d < head_size; ++d) {
      CHECK_EQ(after.row(r)[d], before.row(r)[d]);
      CHECK_EQ(after.row(r)[2 * head_size + d], before.row(r)[2 * head_size + d]);
    }
    float* alone = before.row(r) + head_size;
    kernels.rotate(alone, before.ld, 1, head_size, table.data() + r * 2 * head_size);
    CHECK(std::memcmp(alone, after.row(r) + head_size, head_size * sizeof(float)) == 0);
  }
}

}  // namespace

int main() {
  for (const Isa isa : available_isas())
    for (const size_t rows : {1ul, 2ul, 17ul, 130ul})
      for (const size_t head_size : {2ul, 6ul, 10ul, 16ul, 26ul, 32ul, 64ul})
        rotate(kernels_for(isa), rows, head_size);
  return report();
}
