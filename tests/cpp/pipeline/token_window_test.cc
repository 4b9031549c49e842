// What the pipeline's first half gives: special tokens, overflow, packing into memory of the caller.
#include "pipeline/token_window.h"

#include <chrono>

#include "base/error.h"
#include "check.h"

using namespace embedkit;

namespace {

using Ids = std::vector<int32_t>;

TokenizeOptions options_for(int threads, Overflow overflow = Overflow::kTruncate) {
  TokenizeOptions options;
  options.threads = threads;
  options.prefix_ids = {1};
  options.suffix_ids = {2};
  options.max_length = 6;
  options.overflow = overflow;
  options.pool_skip = 3;
  return options;
}

Ids sequence(const TokenWindow& window, size_t s) {
  const Sequence& found = window.sequences()[s];
  return Ids(window.ids(found), window.ids(found) + found.length);
}

void sequences_are_cut() {
  const std::vector<Ids> ids = {{7, 8}, {}, {10, 11, 12, 13, 14, 15}};
  for (const int threads : {1, 3}) {
    TokenWindow window;
    StopToken stop;
    tokenize(IdSource(ids), options_for(threads), stop, window);
    CHECK_EQ(window.texts(), size_t{3});
    CHECK_EQ(window.tokens(), size_t{12});
    CHECK_EQ(window.truncated(), size_t{1});
    CHECK(sequence(window, 0) == Ids({1, 7, 8, 2}));
    CHECK(sequence(window, 1) == Ids({1, 2}));
    CHECK(sequence(window, 2) == Ids({1, 10, 11, 12, 13, 2}));

    TokenizeOptions options = options_for(threads);
    options.truncate_left = true;
    tokenize(IdSource(ids), options, stop, window);
    CHECK(sequence(window, 2) == Ids({1, 12, 13, 14, 15, 2}));

    tokenize(IdSource(ids), options_for(threads, Overflow::kWindow), stop, window);
    CHECK_EQ(window.sequences().size(), size_t{4});
    CHECK(sequence(window, 3) == Ids({1, 14, 15, 2}));
    CHECK_EQ(window.sequences()[3].text, size_t{2});
    CHECK_EQ(window.sequences()[2].pool_skip, size_t{3});
    CHECK_EQ(window.sequences()[3].pool_skip, size_t{0});

    // A prompt of 6 tokens: a window of it alone counts for nothing, except where it is all.
    TokenizeOptions prompted = options_for(threads, Overflow::kWindow);
    prompted.pool_skip = 7;
    const std::vector<Ids> both = {{1, 2, 3, 4, 5, 6, 20, 21, 22}, {1, 2, 3, 4, 5, 6}};
    tokenize(IdSource(both), prompted, stop, window);
    const std::vector<size_t> skips = {6, 3, 0, 6, 3};
    CHECK_EQ(window.sequences().size(), skips.size());
    for (size_t s = 0; s < skips.size(); ++s) CHECK_EQ(window.sequences()[s].pool_skip, skips[s]);
    CHECK_THROWS(tokenize(IdSource(ids), options_for(threads, Overflow::kError), stop, window),
                 InvalidArgument);
  }
}

void batches_are_packed() {
  const std::vector<Ids> ids = {{7, 8}, {}, {9, 7}};
  TokenWindow window;
  StopToken stop;
  tokenize(IdSource(ids), options_for(1), stop, window);
  const std::vector<int64_t> order = {2, 1};
  Ids packed(8, -1), positions(8, -1), bounds(5, -1);
  const PackTarget target{packed, positions, bounds};
  CHECK_EQ(pack(window, order, 9, 100, target), size_t{6});  // token 9 takes no position
  CHECK(packed == Ids({1, 9, 7, 2, 1, 2, 0, 0}));
  CHECK(positions == Ids({10, 9, 11, 12, 10, 11, 0, 0}));
  CHECK(bounds == Ids({0, 4, 6, 6, 6}));
  CHECK_EQ(pack(window, order, -1, 100, target), size_t{6});
  CHECK(positions == Ids({0, 1, 2, 3, 0, 1, 0, 0}));

  // Two of each; both sequences share a tile of at most 6 tokens, the rest of the batch has one without keys.
  Ids pooled(9, -1), tiles(4 * (kTileHeader + 6), -1);
  PackTarget all{packed, positions, pooled, true, {tiles, 6}};
  CHECK_EQ(pack(window, order, -1, 100, all), size_t{6});
  CHECK(pooled == Ids({0, 3, 4, 6, 6, 6, 6, 6, 6}));
  Ids expected = {0, 6, 0, 6, 0, 0, 0, 0, 4, 4, 6, 8};
  expected.resize(tiles.size());
  CHECK(tiles == expected);
  // In blocks of 3 the first sequence is cut, and one tile is too few.
  all.tiles.block = 3;
  all.tiles.values = std::span(tiles).first(4 * (kTileHeader + 3));
  pack(window, order, -1, 100, all);
  CHECK(Ids(tiles.begin(), tiles.begin() + 28) ==
        Ids({0, 3, 0, 4, 0, 0, 0, 3, 4, 0, 4, 0, 0, 0, 4, 6, 4, 6, 4, 4, 0, 6, 8, 0, 0, 0, 0, 0}));
  all.tiles.values = std::span(tiles).first(3 * (kTileHeader + 3));
  CHECK_THROWS(pack(window, order, -1, 100, all), InvalidArgument);

  CHECK_THROWS(pack(window, order, -1, 9, target), InvalidArgument);  // id 9
  const std::vector<int64_t> beyond = {3};
  CHECK_THROWS(pack(window, beyond, -1, 100, target), InvalidArgument);
  Ids small(5);
  CHECK_THROWS(pack(window, order, -1, 100, PackTarget{small, {}, bounds}), InvalidArgument);
  CHECK_THROWS(pack(window, order, -1, 100, PackTarget{packed, small, bounds}), InvalidArgument);
  Ids few(2);
  CHECK_THROWS(pack(window, order, -1, 100, PackTarget{packed, {}, few}), InvalidArgument);
}

void stopping() {
  const std::vector<Ids> ids(100, Ids{5});
  TokenWindow window;
  StopToken stop([] { return true; }, std::chrono::milliseconds(0));
  CHECK_THROWS(tokenize(IdSource(ids), options_for(2), stop, window), Interrupted);
}

}  // namespace

int main() {
  sequences_are_cut();
  batches_are_packed();
  stopping();
  return test::report();
}
