#include "kernels/paired_int8.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/aligned.h"

namespace embedkit::paired {
namespace {

static_assert(kBound >= 128, "halves of a group must fit");
constexpr size_t kGroupBytes = kGroup * kPanel;

size_t groups_of(size_t in) { return (in + kGroup - 1) / kGroup; }
size_t table_bytes(size_t out) {
  return round_up(round_up(out, kPanel) / kPanel * sizeof(uint32_t), kCacheLine);
}

/// Four features of all columns of a panel.
struct Group {
  uint16_t offset;                            ///< of its activations in a row
  std::array<int8_t, kGroupBytes> weights{};  ///< [column][feature]
  /// For each two neighbors of a column the positive weights added up, then the negative ones' magnitudes.
  std::array<uint16_t, kGroupBytes> sums{};
  int largest = 0;  ///< of sums

  Group(const int8_t* from, size_t columns, size_t in, size_t first) : offset(static_cast<uint16_t>(first)) {
    for (size_t n = 0; n < columns; ++n)
      for (size_t k = 0; k < std::min(kGroup, in - first); ++k)
        weights[n * kGroup + k] = from[n * in + first + k];
    for (size_t i = 0; i < kGroupBytes; i += 2) {
      const int a = weights[i], b = weights[i + 1];
      sums[i] = static_cast<uint16_t>(std::max(a, 0) + std::max(b, 0));
      sums[i + 1] = static_cast<uint16_t>(std::max(-a, 0) + std::max(-b, 0));
    }
    largest = *std::max_element(sums.begin(), sums.end());
  }

  bool fits(const Group& other) const {
    int most = 0;
    for (size_t i = 0; i < kGroupBytes; ++i) most = std::max(most, sums[i] + other.sums[i]);
    return most <= kBound;
  }

  /// Keeps half of each weight; returns the rest.
  Group split() {
    Group rest = *this;
    for (size_t i = 0; i < kGroupBytes; ++i) {
      weights[i] = static_cast<int8_t>(weights[i] / 2);
      rest.weights[i] = static_cast<int8_t>(rest.weights[i] - weights[i]);
    }
    return rest;
  }
};

/// The groups of a panel in pairs, then those alone.
struct Order {
  std::vector<Group> pairs, singles;

  /// Groups with the largest sums choose their partners first, the largest that fit.
  explicit Order(std::vector<Group> groups) {
    std::stable_sort(groups.begin(), groups.end(),
                     [](const Group& a, const Group& b) { return a.largest > b.largest; });
    std::vector<bool> taken(groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      if (taken[i]) continue;
      size_t partner = i + 1;
      while (partner < groups.size() && (taken[partner] || !groups[i].fits(groups[partner]))) ++partner;
      if (partner < groups.size()) {
        taken[partner] = true;
        pairs.push_back(groups[i]);
        pairs.push_back(groups[partner]);
        continue;
      }
      if (groups[i].largest > kBound) singles.push_back(groups[i].split());
      singles.push_back(groups[i]);
    }
  }

  /// Returns the bytes written, whole cache lines.
  size_t write(uint8_t* to) const {
    const PanelHeader header{static_cast<uint32_t>(pairs.size() / 2), static_cast<uint32_t>(singles.size())};
    std::memcpy(to, &header, sizeof(header));
    uint8_t* offsets = to + sizeof(header);
    const size_t first =
        round_up(sizeof(header) + (pairs.size() + singles.size()) * sizeof(uint16_t), kCacheLine);
    uint8_t* weights = to + first;
    for (const std::vector<Group>* part : {&pairs, &singles})
      for (const Group& group : *part) {
        std::memcpy(offsets, &group.offset, sizeof(group.offset));
        std::memcpy(weights, group.weights.data(), kGroupBytes);
        offsets += sizeof(group.offset);
        weights += kGroupBytes;
      }
    return static_cast<size_t>(weights - to);
  }
};

}  // namespace

size_t packed_bytes(size_t out, size_t in) {
  const size_t most = 2 * groups_of(in);  // all of them in halves; what is not needed is never touched
  const size_t panel =
      round_up(sizeof(PanelHeader) + most * sizeof(uint16_t), kCacheLine) + most * kGroupBytes;
  return table_bytes(out) + round_up(out, kPanel) / kPanel * panel;
}

void pack(const int8_t* weights, size_t out, size_t in, void* packed) {
  auto* bytes = static_cast<uint8_t*>(packed);
  size_t at = table_bytes(out);
  for (size_t n = 0; n < out; n += kPanel) {
    const auto line = static_cast<uint32_t>(at / kCacheLine);
    std::memcpy(bytes + n / kPanel * sizeof(line), &line, sizeof(line));
    std::vector<Group> groups;
    groups.reserve(groups_of(in));
    for (size_t first = 0; first < in; first += kGroup)
      groups.emplace_back(weights + n * in, std::min(kPanel, out - n), in, first);
    at += Order(std::move(groups)).write(bytes + at);
  }
}

}  // namespace embedkit::paired
