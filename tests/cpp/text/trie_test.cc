#include "text/trie.h"

#include <map>
#include <random>
#include <string>

#include "base/error.h"
#include "check.h"

namespace embedkit {
namespace {

uint32_t value_of(const Trie& trie, std::string_view key) { return trie.find(key).value(); }

void against_a_map() {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::map<std::string, uint32_t> keys;
    const size_t count = random() % 400;
    const unsigned alphabet = 1 + random() % (round % 2 == 0 ? 3 : 256);
    for (size_t i = 0; i < count; ++i) {
      std::string key;
      for (size_t length = random() % 9 + i / 60; length > 0; --length) {
        key.push_back(static_cast<char>(random() % alphabet));
      }
      keys.emplace(key, static_cast<uint32_t>(keys.size()));
    }
    const Trie trie(std::vector<Trie::Entry>(keys.begin(), keys.end()));
    for (const auto& [key, value] : keys) {
      CHECK_EQ(value_of(trie, key), value);
      for (std::string other : {key + "x", key.substr(0, key.size() / 2), "y" + key}) {
        const auto place = keys.find(other);
        CHECK_EQ(value_of(trie, other), place == keys.end() ? Trie::kNoValue : place->second);
      }
    }
  }
}

void edges() {
  const Trie empty({});
  CHECK(!empty.root().ends_key());
  for (int byte = 0; byte < 256; ++byte) {
    Trie::Node node = empty.root();
    CHECK(!empty.step(node, static_cast<uint8_t>(byte)));
  }
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  std::vector<Trie::Entry> entries;
  for (uint32_t i = 0; i < 256; ++i) entries.emplace_back(bytes[i], i);
  const Trie full(entries);
  for (uint32_t i = 0; i < 256; ++i) CHECK_EQ(value_of(full, bytes[i]), i);

  const std::string deep(1'000'000, 'a');  // no recursion as deep as a key
  CHECK_EQ(value_of(Trie({{deep, 5}}), deep), 5u);
  CHECK_THROWS(Trie({{"a", 1}, {"b", 2}, {"a", 3}}), InvalidArgument);
}

}  // namespace
}  // namespace embedkit

int main() {
  embedkit::against_a_map();
  embedkit::edges();
  return embedkit::test::report();
}
