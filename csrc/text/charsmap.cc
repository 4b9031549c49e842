#include "text/charsmap.h"

#include <cstring>

#include "base/error.h"
#include "text/char_map.h"
#include "text/traits.h"
#include "text/utf8.h"

namespace embedkit {
namespace {

using unicode::Break;

constexpr size_t kShortCluster = 6;

// A unit of the double array.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t label(uint32_t unit) { return unit & (1u << 31 | 0xFF); }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }
uint32_t value(uint32_t unit) { return unit & ((1u << 31) - 1); }

// Extended grapheme clusters (UAX 29), code point after code point.
class Clusters {
 public:
  /// Whether `c` goes on with the cluster of the code points before it.
  bool joins(char32_t c) {
    const uint32_t traits = unicode::traits(c);
    const Break kind = unicode::grapheme_break(traits);
    const bool joined = !started_ ? false : joins(c, traits, kind);
    started_ = true;
    last_ = c;
    switch (kind) {
      case Break::kPictograph:
        picture_ = Picture::kBase;
        break;
      case Break::kExtend:
        if (picture_ != Picture::kBase) picture_ = Picture::kNone;
        break;
      case Break::kJoiner:
        picture_ = picture_ == Picture::kBase ? Picture::kJoined : Picture::kNone;
        break;
      default:
        picture_ = Picture::kNone;
    }
    if ((traits & unicode::kConsonant) != 0) {
      conjunct_ = Conjunct::kConsonant;
    } else if (conjunct_ != Conjunct::kNone) {
      if ((traits & unicode::kLinker) != 0) {
        conjunct_ = Conjunct::kLinked;
      } else if ((traits & unicode::kConjunct) == 0) {
        conjunct_ = Conjunct::kNone;
      }
    }
    kind_ = kind;
    return joined;
  }

 private:
  enum class Picture { kNone, kBase, kJoined };
  enum class Conjunct { kNone, kConsonant, kLinked };

  bool joins(char32_t c, uint32_t traits, Break kind) const {
    if (last_ == '\r' && c == '\n') return true;                            // GB3
    if (kind_ == Break::kControl || kind == Break::kControl) return false;  // GB4, GB5
    switch (kind) {
      case Break::kExtend:
      case Break::kJoiner:
      case Break::kSpacing:
        return true;  // GB9, GB9a
      case Break::kL:
      case Break::kLV:
      case Break::kLVT:
        if (kind_ == Break::kL) return true;  // GB6
        break;
      case Break::kV:
        if (kind_ == Break::kL || kind_ == Break::kV || kind_ == Break::kLV) return true;  // GB6, GB7
        break;
      case Break::kT:
        if (kind_ == Break::kV || kind_ == Break::kLV || kind_ == Break::kT || kind_ == Break::kLVT)
          return true;
        break;
      case Break::kPictograph:
        if (picture_ == Picture::kJoined) return true;  // GB11
        break;
      default:
        break;
    }
    if (kind_ == Break::kPrepend) return true;                                     // GB9b
    return conjunct_ == Conjunct::kLinked && (traits & unicode::kConsonant) != 0;  // GB9c
  }

  bool started_ = false;
  char32_t last_ = 0;
  Break kind_ = Break::kOther;
  Picture picture_ = Picture::kNone;
  Conjunct conjunct_ = Conjunct::kNone;
};

}  // namespace

Charsmap::Charsmap(std::string_view bytes) {
  uint32_t size = 0;
  require(bytes.size() >= sizeof size, "the precompiled character map has ", bytes.size(), " bytes");
  const auto word = [&](size_t at) {
    const uint8_t* const p = utf8::begin(bytes) + at;
    return uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
  };
  size = word(0);
  require(size >= 4 && size / 4 <= (bytes.size() - 4) / 4, "the precompiled character map has an array of ",
          size, " bytes in ", bytes.size());
  units_.resize(size / 4);
  for (size_t i = 0; i < units_.size(); ++i) units_[i] = word(4 + 4 * i);
  strings_ = bytes.substr(4 + units_.size() * 4);
  require(utf8::find_invalid(strings_) == std::string_view::npos,
          "the strings of the precompiled character map are not valid UTF-8");
  strings_.push_back('\0');
  // Every path from the root must stay in the array and lead to the start of a character.
  // The children of a base are in its block of 256 units.
  std::vector<bool> seen((units_.size() + 255) / 256 * 256);
  std::vector<uint32_t> stack;
  const auto visit = [&](uint32_t base) {
    if (base >= seen.size() || seen[base]) return;
    seen[base] = true;
    stack.push_back(base);
  };
  visit(offset(units_[0]));
  while (!stack.empty()) {
    const uint32_t base = stack.back();
    stack.pop_back();
    for (uint32_t byte = 1; byte < 256; ++byte) {
      const uint32_t at = base ^ byte;
      // Where the array ends, the lookup is bounded too: find().
      if (at >= units_.size() || label(units_[at]) != byte) continue;
      const uint32_t next = at ^ offset(units_[at]);
      if (has_leaf(units_[at])) {
        require(next < units_.size() && value(units_[next]) < strings_.size() &&
                    (static_cast<uint8_t>(strings_[value(units_[next])]) & 0xC0) != 0x80,
                "a value of the precompiled character map is outside its strings");
        continue;  // a longer key is never looked for
      }
      visit(next);
    }
  }
  for (char c = ' '; c < 0x7F; ++c) kept_[static_cast<size_t>(c)] = find({&c, 1}) == kNone;
}

// Where the replacement of the shortest key that `part` starts with begins; kNone if there is none.
uint32_t Charsmap::find(std::string_view part) const {
  uint32_t at = offset(units_[0]);
  for (const char c : part) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0) return kNone;
    at ^= byte;
    if (at >= units_.size()) return kNone;
    const uint32_t unit = units_[at];
    if (label(unit) != byte) return kNone;
    at ^= offset(unit);
    if (has_leaf(unit)) return value(units_[at]);
  }
  return kNone;
}

bool Charsmap::apply(std::string_view text, std::string& out, size_t most) const {
  const size_t before = out.size();
  const uint8_t* const begin = utf8::begin(text);
  const uint8_t* const end = utf8::end(text);
  const auto plain = [&](const uint8_t* p) { return *p < 0x80 && kept_[*p]; };
  const uint8_t* copied = begin;  // up to here all is in `out`
  const auto replace = [&](const uint8_t* from, const uint8_t* to, uint32_t at) {
    out.append(utf8::view(copied, from));
    out.append(replacement(at));
    check_growth(out.size(), most);
    copied = to;
  };
  Clusters clusters;
  const uint8_t* known = begin;  // past what `clusters` has seen: the code point at p, or less
  for (const uint8_t* p = begin; p < end;) {
    // ASCII between ASCII is a cluster by itself.
    while (p + 1 < end && plain(p) && p[1] < 0x80) ++p;
    const uint8_t* const first = p;
    if (known <= p) {
      clusters = Clusters();
      known = p;
      clusters.joins(decode_or_throw(known, end));
    }
    const uint8_t* to = known;
    while (known < end && clusters.joins(decode_or_throw(known, end))) to = known;
    p = to;
    if (static_cast<size_t>(to - first) < kShortCluster) {
      if (const uint32_t at = find(utf8::view(first, to)); at != kNone) {
        replace(first, to, at);
        continue;
      }
    }
    for (const uint8_t* c = first; c < to;) {
      const uint8_t* next = c;
      decode_or_throw(next, to);
      if (const uint32_t at = find(utf8::view(c, next)); at != kNone) replace(c, next, at);
      c = next;
    }
  }
  if (copied == begin && out.size() == before) return false;
  out.append(utf8::view(copied, end));
  return true;
}

void check_growth(size_t size, size_t most) {
  require(size <= most, "the normalizer of the tokenizer makes more than ", most, " bytes of a text");
}

}  // namespace embedkit
