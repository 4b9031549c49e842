// The products on tiles, emulated and by the instructions of AMX, which an interpreter carries out where the
// processor has none: int8 to the bit as the scalar
// formula and as the vector kernels, bfloat16 within the bound of its order of additions; every number of
// rows around whole tiles; ranges of panels; nothing is read or written beside what belongs to the call
// (under the address sanitizer the rows end with their memory). What the tiles themselves compute is held by
// numbers that tell the order of additions apart.
#include <cmath>
#include <cstring>

#include "kernels/float16.h"
#include "kernels_fixture.h"
#if defined(__x86_64__) && defined(__linux__)
#include "amx_interpreter.h"
#endif

using namespace embedkit;
using namespace embedkit::test;

namespace {

constexpr float kUntouched = -777.0f;

/// Rows without memory behind the last one; a multiple of the longest step of K.
struct Rows {
  size_t stride;
  AlignedBuffer<uint8_t> data;
  AlignedBuffer<float> scale, lowest;

  Rows(size_t rows, size_t bytes)
      : stride(round_up(bytes, 64)), data(rows * stride), scale(rows), lowest(rows) {}
  QuantizedRows int8() { return {data.data(), stride, scale.data(), lowest.data()}; }
  QuantizedRows bf16() { return {data.data(), stride, nullptr, nullptr, QuantizedRows::Form::kBf16}; }
};

float value(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

/// All of `rows` by the panels from `begin` to `end`; the rest of the result keeps kUntouched.
template <class Linear>
Matrix product(const Kernels& kernels, size_t rows, const Weights& weights, size_t begin, size_t end,
               Linear&& linear) {
  Matrix y(rows + 1, weights.quantized_panels * kernels.quantized_panel, 1, kUntouched, kUntouched);
  linear(begin, end, y.row(0), y.ld);
  for (size_t r = 0; r <= rows; ++r)
    for (size_t n = 0; n < y.ld; ++n)
      if (r == rows || n < begin * kernels.quantized_panel || n >= end * kernels.quantized_panel)
        CHECK_EQ(y.row(r)[n], kUntouched);
  return y;
}

void int8(const Kernels& kernels, const Kernels* vectors, size_t rows, size_t out, size_t in) {
  Weights weights(kernels, out, in, 3);
  Matrix x(rows, in, 4);
  Rows q(rows, in);
  kernels.quantize(x.row(0), x.ld, rows, in, q.int8());
  const auto linear = [&](size_t begin, size_t end, float* to, size_t ld) {
    kernels.linear_int8(q.int8(), rows, weights.linear_int8, begin, end, to, ld);
  };
  Matrix y = product(kernels, rows, weights, 0, weights.quantized_panels, linear);
  for (size_t r = 0; r < rows; ++r)
    for (size_t n = 0; n < out; ++n) {
      int32_t sum = 0;
      for (size_t k = 0; k < in; ++k) sum += int32_t{q.data[r * q.stride + k]} * weights.int8[n * in + k];
      const float start = std::fmaf(q.lowest[r], weights.row_sums[n], weights.bias[n]);
      const float want = std::fmaf(static_cast<float>(sum) * q.scale[r], weights.scale[n], start);
      CHECK(same(y.row(r)[n], want));
    }
  for (size_t p = 0; p < weights.quantized_panels; ++p) {
    Matrix part = product(kernels, rows, weights, p, p + 1, linear);
    for (size_t r = 0; r < rows; ++r)
      for (size_t n = p * kernels.quantized_panel; n < (p + 1) * kernels.quantized_panel; ++n)
        CHECK(same(part.row(r)[n], y.row(r)[n]));
  }
  product(kernels, rows, weights, 0, 0, linear);  // no panel, as a worker may get: nothing
  if (vectors == nullptr) return;
  Weights other(*vectors, out, in, 3);
  Matrix z(rows, other.quantized_panels * vectors->quantized_panel, 5);
  vectors->linear_int8(q.int8(), rows, other.linear_int8, 0, other.quantized_panels, z.row(0), z.ld);
  for (size_t r = 0; r < rows; ++r) CHECK(std::memcmp(z.row(r), y.row(r), out * sizeof(float)) == 0);
}

/// A sum of K products passes K / 2 / 16 tiles: 16 additions in each half of a tile's pairs, one of the
/// halves, one for each tile, one of the bias, each with a relative error of 2^-24 of what has been added up
/// so far.
void bf16(const Kernels& kernels, size_t rows, size_t out, size_t in) {
  const Weights weights(kernels, out, in, 6);
  AlignedBuffer<uint8_t> packed(kernels.packed_bf16_bytes(out, in));
  kernels.pack_bf16(weights.fp32.data(), out, in, packed.data());
  const PackedLinear packed_linear{in, out, packed.data(), weights.bias.data(), nullptr, nullptr};
  Matrix x(rows, in, 7);
  Rows q(rows, in * sizeof(uint16_t));
  kernels.quantize(x.row(0), x.ld, rows, in, q.bf16());
  const auto linear = [&](size_t begin, size_t end, float* to, size_t ld) {
    kernels.bf16.linear(q.bf16(), rows, packed_linear, begin, end, to, ld);
  };
  Matrix y = product(kernels, rows, weights, 0, weights.quantized_panels, linear);
  const auto additions = static_cast<double>(16 + 1 + (in + 31) / 32 + 1);
  for (size_t r = 0; r < rows; ++r)
    for (size_t n = 0; n < out; ++n) {
      double want = weights.bias[n], size = std::abs(want);
      for (size_t k = 0; k < in; ++k) {
        const double one = double{value(to_bf16(x.row(r)[k]))} * value(to_bf16(weights.fp32[n * in + k]));
        want += one;
        size += std::abs(one);
      }
      CHECK(std::abs(y.row(r)[n] - want) <= additions * 0x1p-24 * size);
    }
  for (size_t p = 0; p < weights.quantized_panels; ++p) {
    Matrix part = product(kernels, rows, weights, p, p + 1, linear);
    for (size_t r = 0; r < rows; ++r)
      for (size_t n = p * kernels.quantized_panel; n < (p + 1) * kernels.quantized_panel; ++n)
        CHECK(same(part.row(r)[n], y.row(r)[n]));
  }
  Matrix single(1, weights.quantized_panels * kernels.quantized_panel, 8);
  for (size_t r = 0; r < rows; ++r) {
    kernels.bf16.linear(q.bf16().from(r), 1, packed_linear, 0, weights.quantized_panels, single.row(0),
                        single.ld);
    CHECK(std::memcmp(single.row(0), y.row(r), out * sizeof(float)) == 0);
  }
}

/// One row by one column.
float bf16_sum(const Kernels& kernels, const std::vector<float>& x, const std::vector<float>& w) {
  AlignedBuffer<uint8_t> packed(kernels.packed_bf16_bytes(1, w.size()));
  kernels.pack_bf16(w.data(), 1, w.size(), packed.data());
  const std::vector<float> bias(kernels.quantized_panel, 0.0f);
  Rows q(1, x.size() * sizeof(uint16_t));
  std::memset(q.data.data(), 0, q.stride);
  for (size_t k = 0; k < x.size(); ++k) {
    const uint16_t half = to_bf16(x[k]);
    std::memcpy(q.data.data() + k * sizeof(half), &half, sizeof(half));
  }
  std::vector<float> y(kernels.quantized_panel);
  kernels.bf16.linear(q.bf16(), 1, {w.size(), 1, packed.data(), bias.data(), nullptr, nullptr}, 0, 1,
                      y.data(), y.size());
  return y[0];
}

/// By the manual: the first values of the pairs are added up apart from the second ones, a tile's sum then to
/// the one before; subnormal numbers are zeros.
void order_of_additions(const Kernels& kernels) {
  const float tiny = 0x1p-25f;  // lost beside 1, and not when two of them meet first
  std::vector<float> w(64, 1.0f), x(64, 0.0f);
  x[0] = 1.0f;
  x[1] = x[3] = x[5] = x[7] = tiny;  // second values
  CHECK(same(bf16_sum(kernels, x, w), 1.0f + 0x1p-23f));
  x[1] = x[3] = x[5] = x[7] = 0.0f;
  x[2] = x[4] = x[6] = x[8] = tiny;  // first values, one by one to the 1
  CHECK(same(bf16_sum(kernels, x, w), 1.0f));
  x[2] = x[4] = x[6] = x[8] = 0.0f;
  x[32] = x[34] = x[36] = x[38] = tiny;  // of the next tile, which is a sum of its own
  CHECK(same(bf16_sum(kernels, x, w), 1.0f + 0x1p-23f));
  std::fill(x.begin(), x.end(), 0.0f);
  x[0] = 0x1p-130f;  // subnormal
  w[0] = 0x1p100f;
  CHECK(same(bf16_sum(kernels, x, w), 0.0f));
  x[0] = 0x1p-100f;
  w[0] = 0x1p-30f;  // a subnormal product
  CHECK(same(bf16_sum(kernels, x, w), 0.0f));
}

void tiles(const Kernels& kernels, const Kernels* vectors) {
  for (size_t rows = 1; rows <= 50; ++rows) {
    int8(kernels, vectors, rows, 33, 70);
    bf16(kernels, rows, 33, 70);
  }
  for (const size_t out : {1ul, 31ul, 32ul, 96ul, 100ul})
    for (const size_t in : {1ul, 2ul, 31ul, 32ul, 63ul, 64ul, 65ul, 312ul}) {
      int8(kernels, vectors, 19, out, in);
      bf16(kernels, 19, out, in);
    }
  order_of_additions(kernels);
}

}  // namespace

int main() {
#if defined(__x86_64__)
  const Kernels* vectors = has_avx512_vnni() ? &kAvx512VnniKernels : nullptr;
  for (const Kernels* kernels : all_kernels())
    if (kernels->isa == Isa::kAmx || kernels->isa == Isa::kAmxEmulated) tiles(*kernels, vectors);
#if defined(__linux__)
  if (has_avx512_vnni() && !has_amx()) {
    const AmxInterpreter interpreter;
    tiles(kAmxKernels, vectors);
    CHECK(AmxInterpreter::steps() > 1000);
    CHECK(!AmxInterpreter::configured());  // nothing is left in the thread
    CHECK(kAmxKernels.spin_int8(10) == 10 * 4 * 16 * 16 * 64);
    CHECK(kAmxKernels.bf16.spin(10) == 10 * 4 * 16 * 16 * 32);
    CHECK(!AmxInterpreter::configured());
  }
#endif
  if (available_isas().size() > 1) {
    const Batching chosen = kernels_for(Isa::kAmxEmulated).large_layers;
    CHECK(chosen.feed_forward_rows % 32 == 0 && chosen.token_budget == 3 * chosen.feed_forward_rows);
    CHECK(chosen.token_budget >= 192 && chosen.token_budget <= 768);
  }
#endif
  return report();
}
