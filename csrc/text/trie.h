// A double-array trie over bytes: one dependent load per byte, 8 bytes per node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace embedkit {

class Trie {
 public:
  static constexpr uint32_t kNoValue = (1u << 23) - 1;  ///< values are smaller

  /// A node is a value: its children lie at `base ^ byte`.
  struct Node {
    uint32_t base;  ///< 0: no children
    uint32_t bits;  ///< value << 9 | in use << 8 | byte that leads here

    uint32_t value() const { return bits >> 9; }
    bool ends_key() const { return value() != kNoValue; }
  };

  using Entry = std::pair<std::string_view, uint32_t>;

  /// The keys must be distinct; throws InvalidArgument naming a repeated one. Values below kNoValue.
  explicit Trie(std::vector<Entry> entries);

  Node root() const { return root_; }

  /// Moves to the child by `byte`; without one, returns false and leaves `node`.
  bool step(Node& node, uint8_t byte) const {
    const Node child = nodes_[node.base ^ byte];
    if ((child.bits & 0x1FF) != (0x100u | byte)) return false;
    node = child;
    return true;
  }

  /// The node at the end of `path`; one without children or value if there is none.
  Node find(std::string_view path) const;

 private:
  class Builder;

  Node root_{0, kNoValue << 9};
  std::vector<Node> nodes_;  // a multiple of 256
};

}  // namespace embedkit
