// Rows of a table on every instruction set, summed or one added: each type of value against double precision,
// whatever the width, and zeros without rows.
#include <cmath>

#include "kernels/float16.h"
#include "kernels_fixture.h"

using namespace embedkit;
using namespace embedkit::test;

namespace {

constexpr size_t kTable = 23;

template <class Value, class Read>
void sum(const Kernels& kernels, RowType type, size_t columns, size_t count, bool weighed, Read read) {
  std::vector<Value> table(kTable * columns + Kernels::kSlack);
  unsigned state = static_cast<unsigned>(columns * 31 + count);
  const auto next = [&] { return state = state * 1664525u + 1013904223u; };
  for (Value& value : table) {
    if constexpr (std::is_same_v<Value, float>)
      value = static_cast<float>(next() >> 8) / 8388608.0f - 1.0f;
    else if (type == RowType::kFloat16)
      value = static_cast<Value>(next() >> 16 & 0xbbff);  // |x| < 1, subnormals too
    else if (type == RowType::kBfloat16)
      value = static_cast<Value>(next() >> 16 & 0xbf7f);
    else
      value = static_cast<Value>(next() >> 24);
  }
  std::vector<int32_t> rows(count);
  std::vector<float> factors(count);
  for (size_t i = 0; i < count; ++i) {
    rows[i] = static_cast<int32_t>(next() % kTable);
    factors[i] = static_cast<float>(next() >> 16) / 65536.0f;
  }
  std::vector<float> out(columns + 1, 7.0f);
  kernels.sum_rows(
      {table.data(), type, columns, rows.data(), weighed ? factors.data() : nullptr, count, out.data()});
  for (size_t c = 0; c < columns; ++c) {
    double want = 0, size = 0;
    for (size_t i = 0; i < count; ++i) {
      const double value = double{read(table[static_cast<size_t>(rows[i]) * columns + c])} *
                           (weighed ? double{factors[i]} : 1.0);
      want += value;
      size += std::abs(value);
    }
    CHECK(std::abs(out[c] - want) <= 1e-6 * size);
  }
  CHECK_EQ(out[columns], 7.0f);
  // One row of the table added to another vector, which stays.
  const std::vector<float> sums = out;
  const float factor = weighed ? 0.37f : 1.0f;
  kernels.add_row(sums.data(), {table.data() + 2 * columns, type, factor}, columns, out.data());
  for (size_t c = 0; c < columns; ++c) {
    const double value = double{read(table[2 * columns + c])} * factor;
    CHECK(std::abs(out[c] - (sums[c] + value)) <=
          2e-7 * (std::abs(double{sums[c]}) + std::abs(value)) + 1e-40);
  }
  CHECK_EQ(out[columns], 7.0f);
}

}  // namespace

int main() {
  CHECK_EQ(from_half(0x3c00), 1.0f);
  CHECK_EQ(from_half(0xc500), -5.0f);
  CHECK_EQ(from_half(0x0001), std::ldexp(1.0f, -24));
  for (const Isa isa : available_isas())
    for (const size_t columns : {1ul, 7ul, 16ul, 50ul, 64ul, 129ul, 256ul})
      for (const size_t count : {0ul, 1ul, 2ul, 40ul})
        for (const bool weighed : {false, true}) {
          const Kernels& kernels = kernels_for(isa);
          sum<float>(kernels, RowType::kFloat32, columns, count, weighed, [](float x) { return x; });
          sum<uint16_t>(kernels, RowType::kFloat16, columns, count, weighed, from_half);
          sum<uint16_t>(kernels, RowType::kBfloat16, columns, count, weighed, from_bf16);
          sum<int8_t>(kernels, RowType::kInt8, columns, count, weighed,
                      [](int8_t x) { return static_cast<float>(x); });
        }
  return report();
}
