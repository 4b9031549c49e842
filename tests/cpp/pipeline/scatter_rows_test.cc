// Rows to their places, on several threads.
#include "pipeline/scatter_rows.h"

#include <vector>

#include "base/error.h"
#include "check.h"

using namespace embedkit;

namespace {

void rows_are_placed(int threads, size_t count, size_t columns) {
  std::vector<float> values(count * columns), out(2 * count * columns, -1);
  std::vector<int64_t> rows(count);
  for (size_t i = 0; i < count; ++i) {
    rows[i] = static_cast<int64_t>(2 * (count - 1 - i) + i % 2);
    for (size_t c = 0; c < columns; ++c) values[i * columns + c] = static_cast<float>(i + c);
  }
  scatter_rows(std::as_bytes(std::span(values)), rows, columns * sizeof(float),
               std::as_writable_bytes(std::span(out)), threads);
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t other = static_cast<size_t>(rows[i]) ^ 1;
    for (size_t c = 0; c < columns; ++c)
      wrong += out[static_cast<size_t>(rows[i]) * columns + c] != static_cast<float>(i + c) ||
               out[other * columns + c] != -1;
  }
  CHECK_EQ(wrong, size_t{0});
}

}  // namespace

int main() {
  for (const int threads : {1, 4})
    for (const size_t count : {0, 1, 7, 4000}) rows_are_placed(threads, count, 96);
  std::vector<std::byte> out(4);
  const std::vector<std::byte> values(2);
  const std::vector<int64_t> rows = {0, 4};
  CHECK_THROWS(scatter_rows(values, rows, 1, out, 1), InvalidArgument);
  return test::report();
}
