#include "text/splitter.h"

#include <array>

namespace embedkit {
namespace {

enum Class : uint8_t { kOther, kLetter, kNumber, kSpace, kMark };

constexpr std::array<Class, 128> ascii_classes() {
  std::array<Class, 128> classes{};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool number = c >= '0' && c <= '9';
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    classes[static_cast<size_t>(c)] = letter ? kLetter : number ? kNumber : space ? kSpace : kOther;
  }
  return classes;
}

constexpr std::array<Class, 128> kAscii = ascii_classes();

// The class of the code point at `p`, which moves past it.
template <bool kMarks>
Class next_class(const uint8_t*& p, const uint8_t* end) {
  if (*p < 0x80) return kAscii[*p++];
  const uint32_t traits = unicode::traits(decode_or_throw(p, end));
  if ((traits & unicode::kLetter) != 0) return kLetter;
  if ((traits & unicode::kNumber) != 0) return kNumber;
  if ((traits & unicode::kSpace) != 0) return kSpace;
  return kMarks && (traits & unicode::kMark) != 0 ? kMark : kOther;
}

// Through all that follows of one class.
const uint8_t* run(Class wanted, const uint8_t* p, const uint8_t* end) {
  while (p < end) {
    const uint8_t* next = p;
    if (next_class<false>(next, end) != wanted) break;
    p = next;
  }
  return p;
}

// \s+(?!\S)|\s+ : all of the space but its last character, unless the text ends or there is one only.
const uint8_t* spaces(const uint8_t* p, const uint8_t* end) {
  const uint8_t* const begin = p;
  const uint8_t* last = p;
  while (p < end) {
    const uint8_t* next = p;
    if (next_class<false>(next, end) != kSpace) break;
    last = p;
    p = next;
  }
  return p == end || last == begin ? p : last;
}

// 's|'t|'re|'ve|'m|'ll|'d after the apostrophe at `p`; null if none.
const uint8_t* contraction(const uint8_t* p, const uint8_t* end, bool any_case) {
  const auto at = [&](ptrdiff_t i) -> uint8_t {
    if (end - p <= i) return 0;
    const uint8_t c = p[i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<uint8_t>(c | 0x20) : c;
  };
  switch (at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return p + 2;
    case 'r':
    case 'v':
      return at(2) == 'e' ? p + 3 : nullptr;
    case 'l':
      return at(2) == 'l' ? p + 3 : nullptr;
    case 0xC5:  // U+017F, the long s: without case, an s
      return any_case && at(2) == 0xBF ? p + 3 : nullptr;
    default:
      return nullptr;
  }
}

const uint8_t* gpt2(const uint8_t* p, const uint8_t* end) {
  if (*p == '\'') {
    if (const uint8_t* const found = contraction(p, end, false)) return found;
  }
  const uint8_t* next = p;
  Class kind = next_class<false>(next, end);
  if (*p == ' ' && next < end) {
    const uint8_t* after = next;
    const Class following = next_class<false>(after, end);
    if (following == kSpace) return spaces(p, end);
    kind = following;
    next = after;
  } else if (kind == kSpace) {
    return spaces(p, end);
  }
  return run(kind, next, end);
}

template <bool kMarks>
bool is_letter(Class kind) {
  return kind == kLetter || (kMarks && kind == kMark);
}

template <bool kMarks>
const uint8_t* letters(const uint8_t* p, const uint8_t* end) {
  while (p < end) {
    const uint8_t* next = p;
    if (!is_letter<kMarks>(next_class<kMarks>(next, end))) break;
    p = next;
  }
  return p;
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}{1,kDigits} | ?[^\s\p{L}\p{N}]+[\r\n]* |
// \s*[\r\n]+ | \s+(?!\S) | \s+ ; with kMarks, letters are [\p{L}\p{M}] but for the one before them.
template <int kDigits, bool kMarks>
const uint8_t* cl100k(const uint8_t* p, const uint8_t* end) {
  if (*p == '\'') {
    if (const uint8_t* const found = contraction(p, end, true)) return found;
  }
  const uint8_t* next = p;
  const Class kind = next_class<kMarks>(next, end);
  if (is_letter<kMarks>(kind)) return letters<kMarks>(next, end);
  if (kind == kNumber) {
    for (int count = 1; count < kDigits && next < end; ++count) {
      const uint8_t* after = next;
      if (next_class<kMarks>(after, end) != kNumber) break;
      next = after;
    }
    return next;
  }
  if (*p != '\r' && *p != '\n' && next < end) {
    const uint8_t* after = next;
    if (is_letter<kMarks>(next_class<kMarks>(after, end))) return letters<kMarks>(after, end);
  }
  const uint8_t* others = nullptr;
  if (kind == kOther) {
    others = next;
  } else if (*p == ' ' && next < end) {
    const uint8_t* after = next;
    if (next_class<kMarks>(after, end) == kOther) others = after;
  }
  if (others != nullptr) {
    while (others < end) {
      const uint8_t* after = others;
      if (next_class<kMarks>(after, end) != kOther) break;
      others = after;
    }
    while (others < end && (*others == '\r' || *others == '\n')) ++others;
    return others;
  }
  // White space: up to its last line break, if it has one.
  const uint8_t* after_break = nullptr;
  for (const uint8_t* q = p; q < end;) {
    const uint8_t* after = q;
    if (next_class<kMarks>(after, end) != kSpace) break;
    if (*q == '\r' || *q == '\n') after_break = after;
    q = after;
  }
  return after_break != nullptr ? after_break : spaces(p, end);
}

}  // namespace

const uint8_t* match(SplitPattern pattern, const uint8_t* p, const uint8_t* end) {
  switch (pattern) {
    case SplitPattern::kGpt2:
      return gpt2(p, end);
    case SplitPattern::kCl100k:
      return cl100k<3, false>(p, end);
    case SplitPattern::kQwen2:
      return cl100k<1, false>(p, end);
    case SplitPattern::kQwen35:
      return cl100k<1, true>(p, end);
  }
  return end;
}

}  // namespace embedkit
