// What Hugging Face's `tokenizers` takes each code point for. The tables are generated: see
// generate_tables.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace embedkit::unicode {

/// Bits of Record::flags.
enum Property : uint8_t {
  kWhitespace = 1 << 0,
  kControl = 1 << 1,      ///< removed by clean_text: Cc, Cf, Co, NUL, U+FFFD (white space may be control too)
  kPunctuation = 1 << 2,  ///< a word by itself
  kNonspacing = 1 << 3,   ///< Mn: removed by strip_accents after decomposition
  kDecomposes = 1 << 4,   ///< NFD changes it; Hangul syllables are left out, see decompose
  kLowers = 1 << 5,
  kWord = 1 << 6,     ///< \w of added tokens that must be single words
  kChinese = 1 << 7,  ///< set apart by handle_chinese_chars
};

struct Record {
  uint8_t flags;
  uint8_t rank;  ///< orders as the canonical combining class does; 0: a starter
};

struct Mapping {
  const uint32_t* keys;     ///< (count), ascending
  const uint16_t* offsets;  ///< (count + 1) into pool
  const char32_t* pool;
  size_t count;
};

inline constexpr int kBlockBits = 7;
extern const uint16_t kBlocks[];
extern const uint8_t kRecords[];
extern const Record kPalette[];
extern const Mapping kDecompositions;
extern const Mapping kLowercase;

/// `c` is at most U+10FFFF.
inline Record record(char32_t c) {
  return kPalette[kRecords[size_t{kBlocks[c >> kBlockBits]} << kBlockBits | (c & ((1 << kBlockBits) - 1))]];
}

/// What `c` maps to; `c` must be in the mapping (kDecomposes or kLowers says so).
inline std::u32string_view find(const Mapping& mapping, char32_t c) {
  const size_t i = std::lower_bound(mapping.keys, mapping.keys + mapping.count, uint32_t{c}) - mapping.keys;
  return {mapping.pool + mapping.offsets[i], size_t{mapping.offsets[i + 1]} - mapping.offsets[i]};
}

inline bool is_hangul(char32_t c) { return c >= 0xAC00 && c <= 0xD7A3; }

/// Calls `each` with every code point that NFD makes of `c` alone.
template <class Each>
void decompose(char32_t c, Each&& each) {
  if ((record(c).flags & kDecomposes) != 0) {
    for (const char32_t x : find(kDecompositions, c)) each(x);
  } else if (is_hangul(c)) {
    const char32_t index = c - 0xAC00;
    each(0x1100 + index / 588);
    each(0x1161 + index % 588 / 28);
    if (index % 28 != 0) each(0x11A7 + index % 28);
  } else {
    each(c);
  }
}

}  // namespace embedkit::unicode
