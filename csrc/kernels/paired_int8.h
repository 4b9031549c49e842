// int8 weights for instructions that multiply bytes into 16-bit sums (vpmaddubsw), without saturation.
//
// The instruction adds two neighboring products u8 * s8 into each int16. A group is four neighboring features of K
// for the columns of a panel, so it makes two int16 a column. The 16-bit sums of two groups are added before they
// are widened to 32 bits, which saves half of the widening. This is exact if in each column and for each of the two
// neighbors the positive weights of both groups add up to at most kBound, and the negative ones as well:
// 255 * 128 < 2^15. So groups are paired by their weights: any two groups of a panel may be paired, since a pair
// says where its activations are. A group without a partner is multiplied alone; one whose own weights are too
// large is split into two halves, w = w / 2 + (w - w / 2), which never are. (FBGEMM's 16-bit accumulation splits
// off outliers for the same end.)
//
// Packed weights: the place of each panel, in cache lines from the beginning; then for each panel a PanelHeader,
// the byte offsets in a row of its activations (two for a pair, one for a single) and from the next cache line on
// [pair: group 0, group 1][column][feature of the group], then the singles likewise.
#pragma once

#include <cstddef>
#include <cstdint>

namespace embedkit::paired {

constexpr int32_t kBound = 128;
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
