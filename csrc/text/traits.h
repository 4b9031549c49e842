// What the pre-tokenizers and normalizers of Hugging Face's `tokenizers` take each code point for, beside the
// properties of BERT in unicode.h. The tables are generated: see generate_traits.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "text/unicode.h"

namespace embedkit::unicode {

/// Bits of traits(). The regular expressions are Oniguruma's.
enum Trait : uint32_t {
  kLetter = 1 << 0,        ///< \p{L}
  kNumber = 1 << 1,        ///< \p{N}
  kSpace = 1 << 2,         ///< \s
  kMark = 1 << 3,          ///< \p{M}
  kDigit = 1 << 4,         ///< the pre-tokenizer Digits
  kPunctuated = 1 << 5,    ///< the pre-tokenizer Punctuation
  kAccent = 1 << 6,        ///< removed by StripAccents
  kNmtRemoved = 1 << 7,    ///< removed by Nmt
  kNmtSpace = 1 << 8,      ///< a space after Nmt
  kCompatible = 1 << 9,    ///< NFKD is not NFD
  kNfcUnstable = 1 << 10,  ///< NFC may change it, or what stands before it
  kNfkcUnstable = 1 << 11,
  kConsonant = 1 << 12,  ///< of an Indic conjunct (GB9c of UAX 29)
  kLinker = 1 << 13,     ///< joins two of these
  kConjunct = 1 << 14,   ///< may stand beside a linker
};

/// Grapheme cluster breaks (UAX 29) as far as a cluster below six bytes can show them: regional indicators
/// are not told from others.
enum class Break : uint8_t {
  kOther,
  kControl,  ///< CR and LF too
  kExtend,
  kJoiner,   ///< ZWJ
  kSpacing,  ///< SpacingMark
  kPrepend,
  kPictograph,
  kL,
  kV,
  kT,
  kLV,
  kLVT,
};

inline constexpr int kBreakShift = 16;

extern const uint16_t kTraitBlocks[];
extern const uint8_t kTraitRecords[];
extern const uint32_t kTraitPalette[];
extern const Mapping kCompatibilities;  ///< NFKD of kCompatible
/// first << 32 | second, ascending, and what they compose to; Hangul is left out.
extern const uint64_t kPairs[];
extern const uint32_t kComposites[];
extern const size_t kPairCount;

/// `c` is at most U+10FFFF.
inline uint32_t traits(char32_t c) {
  return kTraitPalette[kTraitRecords[size_t{kTraitBlocks[c >> kBlockBits]} << kBlockBits |
                                     (c & ((1 << kBlockBits) - 1))]];
}

inline Break grapheme_break(uint32_t traits) { return static_cast<Break>(traits >> kBreakShift); }

/// The canonical composite of two code points, 0 if there is none.
inline char32_t compose(char32_t a, char32_t b) {
  if (a - 0x1100 < 19 && b - 0x1161 < 21) return 0xAC00 + ((a - 0x1100) * 21 + (b - 0x1161)) * 28;
  if (is_hangul(a) && (a - 0xAC00) % 28 == 0 && b - 0x11A8 < 27) return a + (b - 0x11A7);
  const uint64_t key = uint64_t{a} << 32 | b;
  const uint64_t* const found = std::lower_bound(kPairs, kPairs + kPairCount, key);
  return found != kPairs + kPairCount && *found == key ? kComposites[found - kPairs] : 0;
}

}  // namespace embedkit::unicode
