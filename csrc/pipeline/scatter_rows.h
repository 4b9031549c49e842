// The end of the pipeline for encode stages in Python: results of a batch, sorted by length, to their texts'
// places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace embedkit {

/// Copies row i of `values` to row `rows[i]` of `out`, on `threads` threads. A new array takes memory from
/// the system page by page as it is written, which costs more than the copy, and which several threads can do
/// at once. `bytes` are those of a row. Throws InvalidArgument for a row that `out` does not have; `rows`
/// must be distinct.
void scatter_rows(std::span<const std::byte> values, std::span<const int64_t> rows, size_t bytes,
                  std::span<std::byte> out, int threads);

}  // namespace embedkit
