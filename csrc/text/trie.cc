#include "text/trie.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace embedkit {
namespace {

// 256 nodes whose indices differ in the low byte only: all children of a node lie in one block.
struct Block {
  uint64_t free[4] = {~0ull, ~0ull, ~0ull, ~0ull};  // nodes not in use
  uint64_t base[4] = {};                            // offsets that are some node's base
  int failures = 0;

  static bool test(const uint64_t (&set)[4], uint32_t i) { return set[i >> 6] >> (i & 63) & 1; }
};

}  // namespace

class Trie::Builder {
 public:
  Builder(std::vector<Entry> entries, std::vector<Node>& nodes)
      : entries_(std::move(entries)), nodes_(nodes) {}

  Node build() {
    std::sort(entries_.begin(), entries_.end());
    for (size_t i = 1; i < entries_.size(); ++i) {
      require(entries_[i].first != entries_[i - 1].first, "the token \"", entries_[i].first,
              "\" is repeated (ids ", entries_[i - 1].second, " and ", entries_[i].second, ")");
    }
    add_block();
    Block& first = blocks_.back();
    first.base[0] |= 1;  // base 0 means no children, so nothing may use it
    Node root{0, kNoValue << 9};
    // An explicit stack: a key may be long, and recursion as deep as the key.
    std::vector<Range> stack{{0, entries_.size(), 0, kRoot}};
    while (!stack.empty()) {
      const Range range = stack.back();
      stack.pop_back();
      Node& node = range.node == kRoot ? root : nodes_[range.node];
      size_t begin = range.begin;
      if (begin < range.end && entries_[begin].first.size() == range.depth) {
        node.bits = (node.bits & 0x1FF) | entries_[begin].second << 9;
        ++begin;
      }
      if (begin == range.end) continue;
      children_.clear();
      for (size_t i = begin; i < range.end;) {
        const auto byte = static_cast<uint8_t>(entries_[i].first[range.depth]);
        size_t next = i + 1;
        while (next < range.end && static_cast<uint8_t>(entries_[next].first[range.depth]) == byte) ++next;
        children_.push_back({byte, i, next});
        i = next;
      }
      const uint32_t base = place();
      (range.node == kRoot ? root : nodes_[range.node]).base = base;
      for (size_t i = children_.size(); i-- > 0;) {
        const Child& child = children_[i];
        const uint32_t at = base ^ child.byte;
        nodes_[at] = {0, kNoValue << 9 | 0x100u | child.byte};
        stack.push_back({child.begin, child.end, range.depth + 1, at});
      }
    }
    return root;
  }

 private:
  static constexpr uint32_t kRoot = ~0u;
  static constexpr size_t kOpenBlocks =
      8;  // only the latest are tried: a bound on the time, paid with some room
  static constexpr int kMaxFailures = 24;

  struct Range {
    size_t begin, end, depth;
    uint32_t node;
  };
  struct Child {
    uint8_t byte;
    size_t begin, end;
  };

  void add_block() {
    require(nodes_.size() + 256 < (size_t{1} << 31), "the vocabulary is too large for the trie");
    nodes_.resize(nodes_.size() + 256, Node{0, 0});
    open_.push_back(blocks_.size());
    blocks_.emplace_back();
    if (open_.size() > kOpenBlocks) open_.erase(open_.begin());
  }

  // A base at which every child of `children_` falls on a free node; takes those nodes.
  uint32_t place() {
    for (size_t i = 0; i < open_.size();) {
      const size_t block = open_[i];
      const int offset = fit(blocks_[block]);
      if (offset >= 0) return take(block, static_cast<uint32_t>(offset));
      if (++blocks_[block].failures >= kMaxFailures) {
        open_.erase(open_.begin() + static_cast<ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    add_block();
    const int offset = fit(blocks_.back());
    invariant(offset >= 0, "an empty block of the trie has no room");
    return take(blocks_.size() - 1, static_cast<uint32_t>(offset));
  }

  int fit(const Block& block) const {
    for (uint32_t word = 0; word < 4; ++word) {
      for (uint64_t free = block.free[word]; free != 0; free &= free - 1) {
        const uint32_t slot = word << 6 | static_cast<uint32_t>(std::countr_zero(free));
        const uint32_t offset = slot ^ children_[0].byte;
        if (Block::test(block.base, offset)) continue;
        const bool fits = std::all_of(children_.begin() + 1, children_.end(), [&](const Child& c) {
          return Block::test(block.free, offset ^ c.byte);
        });
        if (fits) return static_cast<int>(offset);
      }
    }
    return -1;
  }

  uint32_t take(size_t block, uint32_t offset) {
    Block& b = blocks_[block];
    b.base[offset >> 6] |= 1ull << (offset & 63);
    for (const Child& child : children_) {
      const uint32_t slot = offset ^ child.byte;
      b.free[slot >> 6] &= ~(1ull << (slot & 63));
    }
    return static_cast<uint32_t>(block << 8) | offset;
  }

  std::vector<Entry> entries_;
  std::vector<Node>& nodes_;
  std::vector<Block> blocks_;
  std::vector<size_t> open_;
  std::vector<Child> children_;
};

Trie::Trie(std::vector<Entry> entries) { root_ = Builder(std::move(entries), nodes_).build(); }

Trie::Node Trie::find(std::string_view path) const {
  Node node = root_;
  for (const char c : path) {
    if (!step(node, static_cast<uint8_t>(c))) return {0, kNoValue << 9};
  }
  return node;
}

}  // namespace embedkit
