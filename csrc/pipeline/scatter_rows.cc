#include "pipeline/scatter_rows.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/thread_pool.h"

namespace embedkit {

namespace {

constexpr size_t kPart = 256 << 10;  // bytes that are worth waking a thread

}  // namespace

void scatter_rows(std::span<const std::byte> values, std::span<const int64_t> rows, size_t bytes,
                  std::span<std::byte> out, int threads) {
  require(threads >= 1, "threads must be at least 1, not ", threads);
  if (bytes == 0) return;
  require(values.size() / bytes == rows.size(), "values has ", values.size() / bytes,
          " rows, and there are places for ", rows.size());
  const size_t count = out.size() / bytes;
  for (const int64_t row : rows)
    require(row >= 0 && static_cast<size_t>(row) < count, "row ", row, " of an array of ", count);
  const int useful = static_cast<int>(std::min(values.size() / kPart + 1, static_cast<size_t>(threads)));
  ThreadPool::shared().run(useful, [&](Worker worker) {
    const Share share = worker.share(rows.size());
    for (size_t i = share.begin; i < share.end; ++i)
      std::memcpy(out.data() + static_cast<size_t>(rows[i]) * bytes, values.data() + i * bytes, bytes);
  });
}

}  // namespace embedkit
