// Definitions for splitter.h.
#pragma once

#include "text/char_map.h"
#include "text/traits.h"
#include "text/utf8.h"

namespace embedkit {
namespace split_detail {

/// Applies a behavior to matches and what is between them, in order; empty pieces are left out.
template <typename Piece>
class Pieces {
 public:
  Pieces(SplitBehavior behavior, Piece& piece) : behavior_(behavior), piece_(piece) {}

  /// The stretch that follows the last one. Returns false to stop.
  bool add(const uint8_t* from, const uint8_t* to, bool is_match) {
    if (from == to) return true;
    bool go = true;
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        return is_match || piece_(utf8::view(from, to));
      case SplitBehavior::kIsolated:
        return piece_(utf8::view(from, to));
      case SplitBehavior::kMergedWithPrevious:
        if (from_ != nullptr && !(is_match && !was_match_)) go = flush(from);
        break;
      case SplitBehavior::kMergedWithNext:
        if (from_ != nullptr && !(was_match_ && !is_match)) go = flush(from);
        break;
      case SplitBehavior::kContiguous:
        if (from_ != nullptr && is_match != was_match_) go = flush(from);
        break;
    }
    if (from_ == nullptr) from_ = from;
    was_match_ = is_match;
    return go;
  }

  bool finish(const uint8_t* end) { return from_ == nullptr || flush(end); }

 private:
  bool flush(const uint8_t* to) {
    const uint8_t* const from = from_;
    from_ = nullptr;
    return piece_(utf8::view(from, to));
  }

  SplitBehavior behavior_;
  Piece& piece_;
  const uint8_t* from_ = nullptr;  // of the piece that may go on
  bool was_match_ = false;
};

template <typename Is, typename Piece>
bool at_chars(SplitBehavior behavior, std::string_view text, Is&& is, Piece& piece) {
  Pieces<Piece> pieces(behavior, piece);
  const uint8_t* done = utf8::begin(text);
  const uint8_t* const end = utf8::end(text);
  for (const uint8_t* p = done; p < end;) {
    const uint8_t* const at = p;
    if (!is(decode_or_throw(p, end))) continue;
    if (!pieces.add(done, at, false) || !pieces.add(at, p, true)) return false;
    done = p;
  }
  return pieces.add(done, end, false) && pieces.finish(end);
}

}  // namespace split_detail

template <typename Piece>
bool split(const SplitStep& step, std::string_view text, Piece&& piece) {
  const uint8_t* p = utf8::begin(text);
  const uint8_t* const end = utf8::end(text);
  switch (step.kind) {
    case SplitStep::Kind::kPattern:
      while (p < end) {
        const uint8_t* const next = match(step.pattern, p, end);
        if (!piece(utf8::view(p, next))) return false;
        p = next;
      }
      return true;
    case SplitStep::Kind::kString:
    case SplitStep::Kind::kMetaspace: {
      split_detail::Pieces<Piece> pieces(step.behavior, piece);
      size_t done = 0;
      for (size_t at; (at = text.find(step.text, done)) != std::string_view::npos;
           done = at + step.text.size()) {
        if (!pieces.add(p + done, p + at, false) || !pieces.add(p + at, p + at + step.text.size(), true))
          return false;
      }
      return pieces.add(p + done, end, false) && pieces.finish(end);
    }
    case SplitStep::Kind::kWhitespace:
      return split_detail::at_chars(
          SplitBehavior::kRemoved, text,
          [](char32_t c) { return (unicode::record(c).flags & unicode::kWhitespace) != 0; }, piece);
    case SplitStep::Kind::kDigits:
      return split_detail::at_chars(
          step.behavior, text, [](char32_t c) { return (unicode::traits(c) & unicode::kDigit) != 0; }, piece);
    case SplitStep::Kind::kPunctuation:
      return split_detail::at_chars(
          step.behavior, text, [](char32_t c) { return (unicode::traits(c) & unicode::kPunctuated) != 0; },
          piece);
    case SplitStep::Kind::kPrefixSpace:
      return piece(text);
  }
  return true;
}

}  // namespace embedkit
