// fp32 products against double precision; a row's result does not depend on the tile that it is computed in.
#include <cmath>
#include <cstring>

#include "kernels_fixture.h"

using namespace embedkit;
using namespace embedkit::test;

int main() {
  for (const Isa isa : available_isas()) {
    const Kernels& kernels = kernels_for(isa);
    for (const auto& shape : kShapes) {
      const size_t rows = shape[0], out = shape[1], in = shape[2];
      Weights weights(kernels, out, in, 1);
      Matrix x(rows, in, 2);
      Matrix y(rows, weights.panels * kernels.panel, 3);
      kernels.linear_fp32(x.row(0), x.ld, rows, weights.linear_fp32, 0, weights.panels, y.row(0), y.ld);
      for (size_t r = 0; r < rows; ++r)
        for (size_t n = 0; n < out; ++n) {
          double want = weights.bias[n];
          for (size_t k = 0; k < in; ++k) want += double{x.row(r)[k]} * weights.fp32[n * in + k];
          CHECK(std::abs(y.row(r)[n] - want) < 5e-5);
        }
      Matrix single(1, weights.panels * kernels.panel, 4);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t p = 0; p < weights.panels; ++p)
          kernels.linear_fp32(x.row(r), x.ld, 1, weights.linear_fp32, p, p + 1, single.row(0), single.ld);
        CHECK(std::memcmp(single.row(0), y.row(r), out * sizeof(float)) == 0);
      }
    }
  }
  return report();
}
