// Weights that are read into the caches before they are multiplied. In a large model they come from beyond
// the second-level cache, and the processor's own prefetching starts anew in each page of 4 KiB: the first
// tile of a panel would wait for them. (On a Zen 4 this gains with AVX2 and costs 1 to 3 % with AVX-512.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace embedkit {
namespace {

/// The panel after the one that is multiplied, spread over all steps of the latter's tiles: prefetches in a
/// row wait for one another (on a Zen 2 half of the gain was lost).
class PanelAhead {
 public:
  PanelAhead(const void* panel, size_t bytes, size_t tiles, size_t steps)
      : at_(static_cast<const char*>(panel)), steps_(steps) {
    const size_t all = std::max(tiles * steps, size_t{1});
    stride_ = (bytes + all - 1) / all;
  }

  /// In each step of a tile, which has a copy.
  void step() {
    __builtin_prefetch(at_);
    at_ += stride_;
  }
  void next_tile() { at_ += steps_ * stride_; }

 private:
  const char* at_;
  size_t stride_;
  size_t steps_;  ///< of a tile
};

struct NothingAhead {
  NothingAhead() = default;
  NothingAhead(const void*, size_t, size_t, size_t) {}

  void step() {}
  void next_tile() {}
};

template <class V>
using AheadOf = std::conditional_t<V::kReadsAhead, PanelAhead, NothingAhead>;

}  // namespace
}  // namespace embedkit
