// BERT normalization and pre-tokenization of one code point, compiled for a set of options.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace embedkit {

struct NormalizerOptions {
  bool clean_text = false;
  bool handle_chinese_chars = false;
  bool strip_accents = false;  ///< NFD and removal of nonspacing marks
  bool lowercase = false;
};

enum class CharKind : uint8_t {
  kWord,         ///< part of a word
  kSpace,        ///< ends a word
  kPunctuation,  ///< a word by itself
  kChinese,      ///< a word by itself, between spaces
  kTrigger,      ///< punctuation that may start an added token of the normalized text
  kRemoved,      ///< leaves nothing: the word goes on
  kGeneral,      ///< only in compiled entries: ask expand()
};

/// One code point of normalized text.
struct NormalizedChar {
  char32_t c;
  uint8_t rank;  ///< of the canonical combining class, 0 for starters and where nothing is reordered
  CharKind kind;
};

/// Sorts marks into canonical order. A starter ends a run of marks.
class MarkBuffer {
 public:
  void add(const NormalizedChar& mark) { marks_.push_back(mark); }
  bool empty() const { return marks_.empty(); }
  void clear() { marks_.clear(); }
  /// Appends the marks to `text` in canonical order and forgets them.
  void flush(std::string& text);

 private:
  std::vector<NormalizedChar> marks_;
};

class CharMap {
 public:
  static constexpr size_t kMaxExpansion = 8;  ///< 4 of NFD, each 2 of lower-casing
  static constexpr char32_t kCompiled = 0x3400;

  /// Code points below kCompiled: what the common ones become, in 8 bytes.
  struct Entry {
    CharKind kind;
    uint8_t chars : 4;  ///< code points in `bytes`
    uint8_t size : 4;
    uint8_t bytes[6];  ///< UTF-8
  };

  /// `triggers`: ASCII punctuation that is to be reported as kTrigger.
  CharMap(const NormalizerOptions& options, const std::array<bool, 128>& triggers);

  /// Any code point: its normalized form, in order, without the removed. Returns how many.
  size_t expand(char32_t c, NormalizedChar (&out)[kMaxExpansion]) const;

  const Entry& entry(char32_t c) const { return entries_[c]; }

  /// ASCII of words: the byte it becomes; 0 for any other byte.
  uint8_t fold(uint8_t byte) const { return fold_[byte]; }
  /// kGeneral for bytes of longer sequences.
  CharKind ascii_kind(uint8_t byte) const { return kind_[byte]; }

  /// The whole of `text` normalized, appended to `out`. Throws InvalidArgument if it is not UTF-8.
  void normalize(std::string_view text, MarkBuffer& marks, std::string& out) const;

 private:
  Entry compile(char32_t c) const;

  NormalizerOptions options_;
  std::array<bool, 128> triggers_;
  std::array<uint8_t, 256> fold_;
  std::array<CharKind, 256> kind_;
  std::vector<Entry> entries_;  // (kCompiled)
};

/// The code point at `p`, which moves past it; throws InvalidArgument where the text is not UTF-8.
char32_t decode_or_throw(const uint8_t*& p, const uint8_t* end);

}  // namespace embedkit
