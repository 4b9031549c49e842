// The pre-tokenizers of `tokenizers`: a text cut into words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace embedkit {

/// The regular expressions that are known, by the models that brought them. There is no general engine: each
/// is a function, and every text consists of its matches.
enum class SplitPattern {
  kGpt2,
  kCl100k,  ///< numbers by three digits
  kQwen2,   ///< as cl100k, each digit by itself
  kQwen35,  ///< as Qwen2, marks are letters
};

/// What becomes of the matches of a delimiter.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

enum class PrependScheme { kAlways, kFirst, kNever };

struct SplitStep {
  enum class Kind {
    kPattern,      ///< by `pattern`
    kString,       ///< at `text`, with `behavior`
    kWhitespace,   ///< WhitespaceSplit
    kDigits,       ///< with `behavior`: kIsolated or kContiguous
    kPunctuation,  ///< with `behavior`
    kMetaspace,    ///< spaces become `text`; `scheme`; cut before each `text` if `split`
    kPrefixSpace,  ///< add_prefix_space of ByteLevel
  };

  Kind kind;
  SplitPattern pattern = SplitPattern::kGpt2;
  std::string text = {};
  SplitBehavior behavior = SplitBehavior::kIsolated;
  PrependScheme scheme = PrependScheme::kNever;
  bool split = true;
};

/// The end of the match of `pattern` that starts at `p` (p < end). The text is valid UTF-8.
const uint8_t* match(SplitPattern pattern, const uint8_t* p, const uint8_t* end);

/// Calls `piece(view)` with each piece of `text` that `step` (none that changes the text) leaves; stops and
/// returns false if it does.
template <typename Piece>
bool split(const SplitStep& step, std::string_view text, Piece&& piece);

}  // namespace embedkit

#include "text/splitter_inl.h"
