// The ids of the words seen last: language repeats itself, and a look-up is much cheaper than the model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace embedkit {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 38;
  static constexpr size_t kMaxIds = 14;

  /// Appends the ids of `word` and returns true, or returns false.
  bool find(std::string_view word, std::vector<int32_t>& ids) {
    if (word.size() > kMaxBytes) return false;
    const uint64_t hash = hash_of(word);
    for (size_t way = 0; way < kWays; ++way) {
      const Slot& slot = slots_[(hash ^ way) & (kSlots - 1)];
      if (slot.size == word.size() && std::memcmp(slot.word, word.data(), word.size()) == 0) {
        ids.insert(ids.end(), slot.ids, slot.ids + slot.count);
        return true;
      }
    }
    return false;
  }

  /// Remembers the ids of `word`, which must not be empty, if it is short.
  void add(std::string_view word, const int32_t* ids, size_t count) {
    if (word.size() > kMaxBytes || count > kMaxIds) return;
    const uint64_t hash = hash_of(word);
    Slot& first = slots_[hash & (kSlots - 1)];
    // The newest comes first; what it displaces gets one more chance.
    slots_[(hash ^ 1) & (kSlots - 1)] = first;
    first.size = static_cast<uint8_t>(word.size());
    first.count = static_cast<uint8_t>(count);
    std::memcpy(first.word, word.data(), word.size());
    std::copy_n(ids, count, first.ids);  // a word may have none
  }

 private:
  static constexpr size_t kSlots = size_t{1} << 13;  // of 96 bytes
  static constexpr size_t kWays = 2;

  struct Slot {
    uint8_t size = 0;  // 0: free, as no word is empty
    uint8_t count = 0;
    char word[kMaxBytes];
    int32_t ids[kMaxIds];
  };

  static uint64_t hash_of(std::string_view word) {
    uint64_t hash = word.size() * 0x9E3779B97F4A7C15ull;
    const char* p = word.data();
    size_t left = word.size();
    for (; left >= 8; p += 8, left -= 8) {
      uint64_t part;
      std::memcpy(&part, p, 8);
      hash = (hash ^ part) * 0xFF51AFD7ED558CCDull;
      hash ^= hash >> 32;
    }
    uint64_t part = 0;
    std::memcpy(&part, p, left);
    hash = (hash ^ part) * 0xC4CEB9FE1A85EC53ull;
    return hash ^ hash >> 29;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
};

}  // namespace embedkit
