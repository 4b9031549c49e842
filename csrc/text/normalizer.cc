#include "text/normalizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "text/char_map.h"
#include "text/traits.h"
#include "text/utf8.h"

namespace embedkit {
namespace {

using Kind = NormalizerStep::Kind;

// Puts `after` in the place of each code point for which `replace(c, after, one)` returns true; returns false
// if it never did. `one` is room for an `after` of one code point.
template <typename Replace>
bool map(std::string_view text, std::string& out, Replace&& replace) {
  const uint8_t* copied = utf8::begin(text);
  const uint8_t* const end = utf8::end(text);
  bool changed = false;
  for (const uint8_t* p = copied; p < end;) {
    const uint8_t* const at = p;
    const char32_t c = decode_or_throw(p, end);
    std::u32string_view after;
    char32_t one;
    if (!replace(c, after, one)) continue;
    out.append(utf8::view(copied, at));
    for (const char32_t x : after) utf8::append(x, out);
    copied = p;
    changed = true;
  }
  if (changed) out.append(utf8::view(copied, end));
  return changed;
}

bool lowercase(std::string_view text, std::string& out) {
  return map(text, out, [](char32_t c, std::u32string_view& after, char32_t& one) {
    if (c < 0x80) {
      if (c - 'A' >= 26) return false;
      one = c | 0x20;
      after = {&one, 1};
      return true;
    }
    if ((unicode::record(c).flags & unicode::kLowers) == 0) return false;
    after = unicode::find(unicode::kLowercase, c);
    return true;
  });
}

bool strip_accents(std::string_view text, std::string& out) {
  return map(text, out, [](char32_t c, std::u32string_view&, char32_t&) {
    return c >= 0x80 && (unicode::traits(c) & unicode::kAccent) != 0;
  });
}

bool nmt(std::string_view text, std::string& out) {
  return map(text, out, [](char32_t c, std::u32string_view& after, char32_t&) {
    const uint32_t traits = unicode::traits(c);
    if ((traits & unicode::kNmtSpace) != 0) after = U" ";
    return (traits & (unicode::kNmtSpace | unicode::kNmtRemoved)) != 0;
  });
}

// No model makes a text much longer; a hostile file's steps, each doubling it, would fill the memory.
size_t most_of(size_t size) { return std::min(1024 * (size + 64), 8 * size + (size_t{256} << 20)); }

bool replace(std::string_view text, const std::string& pattern, const std::string& content, size_t most,
             std::string& out) {
  size_t copied = 0;
  for (size_t at; (at = text.find(pattern, copied)) != std::string_view::npos; copied = at + pattern.size()) {
    out.append(text.substr(copied, at - copied));
    out.append(content);
    check_growth(out.size(), most);
  }
  if (copied == 0) return false;
  out.append(text.substr(copied));
  return true;
}

bool replace_runs(std::string_view text, const std::string& content, size_t most, std::string& out) {
  size_t copied = 0;
  for (size_t at; (at = text.find("  ", copied)) != std::string_view::npos;) {
    out.append(text.substr(copied, at - copied));
    out.append(content);
    check_growth(out.size(), most);
    copied = std::min(text.find_first_not_of(' ', at), text.size());
  }
  if (copied == 0) return false;
  out.append(text.substr(copied));
  return true;
}

bool replace_breaks(std::string_view text, const std::string& content, size_t most, std::string& out) {
  const uint8_t* copied = utf8::begin(text);
  const uint8_t* const end = utf8::end(text);
  bool changed = false;
  const auto is_space = [](char32_t c) { return (unicode::traits(c) & unicode::kSpace) != 0; };
  for (const uint8_t* p = copied; p < end;) {
    const uint8_t* const at = p;
    const char32_t c = decode_or_throw(p, end);
    if (!is_space(c)) continue;
    size_t count = 1;
    for (const uint8_t* next = p; next < end && is_space(decode_or_throw(next, end)); p = next) ++count;
    if (count < 2 && c != '\n' && c != '\r' && c != '\t') continue;
    out.append(utf8::view(copied, at));
    out.append(content);
    check_growth(out.size(), most);
    copied = p;
    changed = true;
  }
  if (changed) out.append(utf8::view(copied, end));
  return changed;
}

std::string_view strip(std::string_view text, bool left, bool right) {
  const auto is_space = [](char32_t c) { return (unicode::record(c).flags & unicode::kWhitespace) != 0; };
  const uint8_t* begin = utf8::begin(text);
  const uint8_t* end = utf8::end(text);
  while (left && begin < end) {
    const uint8_t* next = begin;
    if (!is_space(decode_or_throw(next, end))) break;
    begin = next;
  }
  while (right && begin < end) {
    const uint8_t* at = end - 1;
    while (at > begin && (*at & 0xC0) == 0x80) --at;
    const uint8_t* next = at;
    if (!is_space(decode_or_throw(next, end))) break;
    end = at;
  }
  return utf8::view(begin, end);
}

}  // namespace

Normalizer::Normalizer(std::vector<NormalizerStep> steps) {
  for (NormalizerStep& step : steps) {
    Step made{std::move(step), nullptr};
    if (made.kind == Kind::kCharsmap) {
      made.charsmap = std::make_unique<const Charsmap>(made.content);
    } else {
      require(utf8::find_invalid(made.content) == std::string_view::npos &&
                  utf8::find_invalid(made.pattern) == std::string_view::npos,
              "a normalizer is not valid UTF-8");
    }
    require(made.kind != Kind::kReplace || !made.pattern.empty(), "a normalizer replaces an empty pattern");
    steps_.push_back(std::move(made));
  }
}

std::string_view Normalizer::apply(std::string_view text, bool first, bool last, Buffers& buffers) const {
  const size_t most = most_of(text.size());
  size_t next = 0;
  for (const Step& step : steps_) {
    std::string& out = buffers.texts[next];
    out.clear();
    bool changed = false;
    switch (step.kind) {
      case Kind::kNfc:
        changed = buffers.composer.normalize(text, NormalForm::kNfc, out);
        break;
      case Kind::kNfd:
        changed = buffers.composer.normalize(text, NormalForm::kNfd, out);
        break;
      case Kind::kNfkc:
        changed = buffers.composer.normalize(text, NormalForm::kNfkc, out);
        break;
      case Kind::kNfkd:
        changed = buffers.composer.normalize(text, NormalForm::kNfkd, out);
        break;
      case Kind::kLowercase:
        changed = lowercase(text, out);
        break;
      case Kind::kStripAccents:
        changed = strip_accents(text, out);
        break;
      case Kind::kNmt:
        changed = nmt(text, out);
        break;
      case Kind::kReplace:
        changed = replace(text, step.pattern, step.content, most, out);
        break;
      case Kind::kReplaceRuns:
        changed = replace_runs(text, step.content, most, out);
        break;
      case Kind::kReplaceBreaks:
        changed = replace_breaks(text, step.content, most, out);
        break;
      case Kind::kPrepend:
        changed = first && !text.empty();
        if (changed) out.append(step.content).append(text);
        break;
      case Kind::kStrip:
        text = strip(text, step.left && first, step.right && last);
        break;
      case Kind::kCharsmap:
        changed = step.charsmap->apply(text, out, most);
        break;
    }
    if (!changed) continue;
    check_growth(out.size(), most);
    text = out;
    next ^= 1;
  }
  return text;
}

std::string_view Normalizer::space() const {
  for (const Step& step : steps_)
    if (step.kind == Kind::kReplace && step.pattern == " ") return step.content;
  return " ";
}

bool Normalizer::divisible() const {
  return std::all_of(steps_.begin(), steps_.end(), [](const Step& step) {
    if (step.kind != Kind::kReplace || step.pattern == " ") return true;
    // No pattern may reach over the cut, nor change a letter or digit beside it.
    return std::all_of(step.pattern.begin(), step.pattern.end(), [](char c) {
      return static_cast<uint8_t>(c) < 0x80 && c != ' ' && !utf8::is_alphanumeric(c);
    });
  });
}

}  // namespace embedkit
