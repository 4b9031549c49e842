// int8 weights for instructions that multiply bytes into 16-bit sums (vpmaddubsw), without saturation.
//
// The instruction adds two neighboring products u8 * s8 into each int16. A group is four neighboring features
// of K for the columns of a panel: two int16 a column. Before they are widened to 32 bits, the sums of two
// groups are added, which saves half of the widening. That is exact if in each column, for each of the two
// neighbors, the positive weights of both groups add up to at most kBound = 32767 / kLevels, and the negative
// ones as well. So groups are paired by their weights: any two groups of a panel may be, since a pair says
// where its activations are. A group without a partner is multiplied alone; one whose own weights add up to
// more is split into two halves, w = w / 2 + (w - w / 2), whose sums are at most 128. (FBGEMM's 16-bit
// accumulation splits off outliers.)
//
// kLevels, the largest activation, trades exactness for pairs: of 255 levels hardly any two groups of a
// trained model fit, of 127 all do; of 180 nearly all do, for half the squared error of 127.
//
// Packed weights: the place of each panel in cache lines from the beginning (uint32); then for each panel a
// PanelHeader, the byte offset in a row of each group's activations (uint16), pairs first, and from the next
// cache line on the groups' weights, [group][column][feature].
#pragma once

#include <cstddef>
#include <cstdint>

namespace embedkit::paired {

constexpr int kLevels = 180;
constexpr int kBound = 32767 / kLevels;
constexpr size_t kGroup = 4;   ///< features
constexpr size_t kPanel = 16;  ///< columns

struct PanelHeader {
  uint32_t pairs;
  uint32_t singles;
};

/// Room for the packed form of any (out, in) matrix.
size_t packed_bytes(size_t out, size_t in);
void pack(const int8_t* weights, size_t out, size_t in, void* packed);

}  // namespace embedkit::paired
