#include "pipeline/attention_tiles.h"

#include <algorithm>

#include "base/error.h"

namespace embedkit {
namespace {

class Tiles {
 public:
  explicit Tiles(const TileTarget& target) : target_(target) {}

  /// Begins a tile of the tokens `first` up to `end`; returns where the starts of their sequences go.
  int32_t* add(int32_t first, int32_t end, int32_t first_key, int32_t end_key) {
    require(values().size() - used_ >= target_.columns(), "the batch has more tiles than the ",
            values().size() / target_.columns(), " that tiles has room for");
    int32_t* row = values().data() + used_;
    used_ += target_.columns();
    row[0] = first;
    row[1] = end;
    row[2] = first_key;
    row[3] = end_key;
    std::fill(row + kTileHeader + (end - first), row + target_.columns(), 0);
    return row + kTileHeader;
  }

  /// Adds tiles of at most a block for the tokens `first` up to `end`, which all begin at `start`.
  void cut(int32_t first, int32_t end, int32_t start, int32_t end_key) {
    const auto block = static_cast<int32_t>(target_.block);
    while (first < end) {
      const int32_t taken = std::min(block, end - first);
      std::fill_n(add(first, first + taken, start, end_key), taken, start);
      first += taken;
    }
  }

  void clear_rest() { std::fill(values().begin() + static_cast<ptrdiff_t>(used_), values().end(), 0); }

 private:
  std::span<int32_t> values() const { return target_.values; }

  const TileTarget& target_;
  size_t used_ = 0;
};

}  // namespace

void attention_tiles(std::span<const int32_t> bounds, size_t step, size_t tokens, const TileTarget& target) {
  const auto block = static_cast<int32_t>(target.block);
  Tiles tiles(target);
  const size_t last = bounds.size() - 1;
  for (size_t i = 0; i < last;) {
    const int32_t start = bounds[i];
    if (bounds[i + step] - start > block) {
      tiles.cut(start, bounds[i + step], start, bounds[i + step]);
      i += step;
      continue;
    }
    size_t next = i + step;
    while (next < last && bounds[next + step] - start <= block) next += step;
    if (const int32_t end = bounds[next]; end > start) {
      int32_t* starts = tiles.add(start, end, start, end);
      for (; i < next; i += step) starts = std::fill_n(starts, bounds[i + step] - bounds[i], bounds[i]);
    }
    i = next;
  }
  tiles.cut(bounds[last], static_cast<int32_t>(tokens), 0, 0);
  tiles.clear_rest();
}

}  // namespace embedkit
