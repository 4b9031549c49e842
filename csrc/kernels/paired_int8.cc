#include "kernels/paired_int8.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/aligned.h"

namespace embedkit::paired {
namespace {

size_t groups_of(size_t in) { return (in + kGroup - 1) / kGroup; }
size_t panels_of(size_t out) { return (out + kPanel - 1) / kPanel; }
size_t table_bytes(size_t out) { return round_up(panels_of(out) * sizeof(uint32_t), kCacheLine); }
constexpr size_t kGroupBytes = kGroup * kPanel;

/// Four features of all columns of a panel.
struct Group {
  size_t offset = 0;                          ///< of its activations in a row
  std::array<int8_t, kGroupBytes> weights{};  ///< [column][feature]
  /// For each column and two neighbors the positive weights added up, then the negative ones' magnitudes.
  std::array<uint16_t, kGroupBytes> sums{};
  int largest = 0;  ///< of sums

  void add_up() {
    for (size_t i = 0; i < kGroupBytes; i += 2) {
      const int a = weights[i], b = weights[i + 1];
      sums[i] = static_cast<uint16_t>(std::max(a, 0) + std::max(b, 0));
      sums[i + 1] = static_cast<uint16_t>(std::max(-a, 0) + std::max(-b, 0));
    }
    largest = *std::max_element(sums.begin(), sums.end());
  }

  bool fits(const Group& other) const {
    if (largest + other.largest <= kBound) return true;
    unsigned most = 0;
    for (size_t i = 0; i < kGroupBytes; ++i)
      most = std::max(most, static_cast<unsigned>(sums[i]) + other.sums[i]);
    return most <= kBound;
  }
};

class Panel {
 public:
  Panel(const int8_t* weights, size_t columns, size_t in) : groups_(groups_of(in)) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      Group& group = groups_[g];
      group.offset = g * kGroup;
      for (size_t n = 0; n < columns; ++n)
        std::copy_n(weights + n * in + group.offset, std::min(kGroup, in - group.offset),
                    group.weights.begin() + static_cast<ptrdiff_t>(n * kGroup));
      group.add_up();
    }
  }

  /// Pairs the groups with the largest sums first, each with the largest that fits.
  void pair() {
    std::vector<Group*> left;
    for (Group& group : groups_) left.push_back(&group);
    std::stable_sort(left.begin(), left.end(),
                     [](const Group* a, const Group* b) { return a->largest > b->largest; });
    std::vector<const Group*> alone;
    for (size_t i = 0; i < left.size(); ++i) {
      if (left[i] == nullptr) continue;
      size_t partner = i + 1;
      while (partner < left.size() && (left[partner] == nullptr || !left[i]->fits(*left[partner]))) ++partner;
      if (partner < left.size()) {
        paired_.push_back(left[i]);
        paired_.push_back(left[partner]);
        left[partner] = nullptr;
      } else {
        alone.push_back(left[i]);
      }
    }
    for (const Group* group : alone) {
      if (group->largest <= kBound) {
        singles_.push_back(*group);
        continue;
      }
      Group half = *group, rest = *group;
      for (size_t i = 0; i < kGroupBytes; ++i) {
        half.weights[i] = static_cast<int8_t>(group->weights[i] / 2);
        rest.weights[i] = static_cast<int8_t>(group->weights[i] - half.weights[i]);
      }
      singles_.push_back(half);
      singles_.push_back(rest);
    }
  }

  /// Returns the bytes written, whole cache lines.
  size_t write(uint8_t* to) const {
    const PanelHeader header{static_cast<uint32_t>(paired_.size() / 2),
                             static_cast<uint32_t>(singles_.size())};
    std::memcpy(to, &header, sizeof(header));
    size_t at = sizeof(header);
    const auto write_offset = [&](const Group& group) {
      const auto offset = static_cast<uint16_t>(group.offset);
      std::memcpy(to + at, &offset, sizeof(offset));
      at += sizeof(offset);
    };
    for (const Group* group : paired_) write_offset(*group);
    for (const Group& group : singles_) write_offset(group);
    at = round_up(at, kCacheLine);
    const auto write_weights = [&](const Group& group) {
      std::memcpy(to + at, group.weights.data(), kGroupBytes);
      at += kGroupBytes;
    };
    for (const Group* group : paired_) write_weights(*group);
    for (const Group& group : singles_) write_weights(group);
    return round_up(at, kCacheLine);
  }

 private:
  std::vector<Group> groups_;
  std::vector<const Group*> paired_;
  std::vector<Group> singles_;
};

}  // namespace

size_t packed_bytes(size_t out, size_t in) {
  const size_t most = 2 * groups_of(in);  // all groups in halves
  const size_t panel = round_up(sizeof(PanelHeader) + most * sizeof(uint16_t), kCacheLine) + most * kGroupBytes;
  return table_bytes(out) + panels_of(out) * panel;
}

void pack(const int8_t* weights, size_t out, size_t in, void* packed) {
  auto* bytes = static_cast<uint8_t*>(packed);
  size_t at = table_bytes(out);
  for (size_t p = 0; p < panels_of(out); ++p) {
    const auto line = static_cast<uint32_t>(at / kCacheLine);
    std::memcpy(bytes + p * sizeof(line), &line, sizeof(line));
    Panel panel(weights + p * kPanel * in, std::min(kPanel, out - p * kPanel), in);
    panel.pair();
    at += panel.write(bytes + at);
  }
}

}  // namespace embedkit::paired
