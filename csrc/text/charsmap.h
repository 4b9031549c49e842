// The precompiled character map of SentencePiece, as `tokenizers` applies it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace embedkit {

/// A Darts double array from byte strings to strings (github.com/google/sentencepiece, normalizer.cc): in
/// tokenizer.json as base64, decoded here as its bytes: the size of the array, its units, the strings, each
/// with a NUL after it.
class Charsmap {
 public:
  /// Throws InvalidArgument where the map is damaged.
  explicit Charsmap(std::string_view bytes);

  /// Appends `text` (valid UTF-8) to `out`. A grapheme cluster below six bytes is replaced as a whole if any
  /// start of it is in the map; else every character by itself. Returns false, with nothing appended, if
  /// nothing changes. Throws InvalidArgument once `out` is longer than `most`.
  bool apply(std::string_view text, std::string& out, size_t most) const;

 private:
  static constexpr uint32_t kNone = ~0u;

  uint32_t find(std::string_view part) const;
  std::string_view replacement(uint32_t at) const { return strings_.data() + at; }

  std::vector<uint32_t> units_;
  std::string strings_;
  std::array<bool, 128> kept_{};  // ASCII that stays as it is, and is no control
};

/// Throws InvalidArgument where a normalizer has made more than `most` bytes of a text.
void check_growth(size_t size, size_t most);

}  // namespace embedkit
