#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace embedkit {

/// Sequences laid end to end, without padding.
struct PackedBatch {
  std::vector<int32_t> ids;          ///< (tokens), special tokens included
  std::vector<size_t> cu_seqlens;    ///< (sequences + 1) prefix sums of the lengths, as in FlashAttention
  std::vector<size_t> pool_skip;     ///< (sequences) leading tokens that the pooling leaves out
  std::vector<int32_t> token_types;  ///< (tokens), or empty: all are of type 0

  void clear() {
    ids.clear();
    cu_seqlens.assign(1, 0);
    pool_skip.clear();
    token_types.clear();
  }
  size_t tokens() const { return ids.size(); }
  size_t sequences() const { return cu_seqlens.size() - 1; }
  size_t length(size_t sequence) const { return cu_seqlens[sequence + 1] - cu_seqlens[sequence]; }
};

}  // namespace embedkit
