#include "text/char_map.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace embedkit {

using unicode::find;
using unicode::record;

void MarkBuffer::flush(std::string& text) {
  if (marks_.size() > 1) {  // it allocates
    std::stable_sort(marks_.begin(), marks_.end(),
                     [](const NormalizedChar& a, const NormalizedChar& b) { return a.rank < b.rank; });
  }
  for (const NormalizedChar& mark : marks_) utf8::append(mark.c, text);
  marks_.clear();
}

char32_t decode_or_throw(const uint8_t*& p, const uint8_t* end) {
  const char32_t c = utf8::decode(p, end);
  require(c != utf8::kInvalid, "the text is not valid UTF-8 (", end - p, " bytes before its end)");
  return c;
}

CharMap::CharMap(const NormalizerOptions& options, const std::array<bool, 128>& triggers)
    : options_(options), triggers_(triggers), entries_(kCompiled) {
  for (char32_t c = 0; c < kCompiled; ++c) entries_[c] = compile(c);
  fold_.fill(0);
  kind_.fill(CharKind::kGeneral);
  for (char32_t c = 0; c < 0x80; ++c) {
    const Entry& e = entries_[c];
    // NUL as part of a word (kept without clean_text) must not look like the 0 that ends the fast loop.
    const bool plain = e.kind != CharKind::kWord || e.bytes[0] != 0;
    kind_[c] = plain ? e.kind : CharKind::kGeneral;
    if (plain && e.kind == CharKind::kWord) fold_[c] = e.bytes[0];
  }
}

size_t CharMap::expand(char32_t c, NormalizedChar (&out)[kMaxExpansion]) const {
  const uint8_t flags = record(c).flags;
  size_t count = 0;
  if (options_.clean_text) {
    if (flags & unicode::kControl) return 0;
    if (flags & unicode::kWhitespace) {
      out[count++] = {' ', 0, CharKind::kSpace};
      return count;
    }
  }

  const auto emit = [&](char32_t x) {
    const auto [x_flags, x_rank] = record(x);
    const uint8_t rank = options_.strip_accents ? x_rank : 0;
    if (options_.lowercase && (x_flags & unicode::kLowers)) {
      for (const char32_t lower : find(unicode::kLowercase, x)) out[count++] = {lower, rank, CharKind::kWord};
      return;
    }
    CharKind kind = CharKind::kWord;
    if (x_flags & unicode::kWhitespace) {
      kind = CharKind::kSpace;
    } else if (x_flags & unicode::kPunctuation) {
      kind = x < 0x80 && triggers_[x] ? CharKind::kTrigger : CharKind::kPunctuation;
    } else if (options_.handle_chinese_chars && (flags & unicode::kChinese)) {
      kind = CharKind::kChinese;
    }
    out[count++] = {x, rank, kind};
  };

  if (options_.strip_accents) {
    unicode::decompose(c, [&](char32_t x) {
      if ((record(x).flags & unicode::kNonspacing) == 0) emit(x);
    });
  } else {
    emit(c);
  }
  return count;
}

CharMap::Entry CharMap::compile(char32_t c) const {
  Entry entry{CharKind::kGeneral, 0, 0, {}};
  if (c >= 0xD800 && c <= 0xDFFF) return entry;
  NormalizedChar chars[kMaxExpansion];
  const size_t count = expand(c, chars);
  if (count == 0) {
    entry.kind = CharKind::kRemoved;
    return entry;
  }
  uint8_t bytes[kMaxExpansion * utf8::kMaxBytes];
  size_t size = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool simple = count == 1 ? chars[i].kind != CharKind::kChinese : chars[i].kind == CharKind::kWord;
    if (chars[i].rank != 0 || !simple) return entry;
    size += utf8::encode(chars[i].c, bytes + size);
  }
  if (size > sizeof entry.bytes) return entry;
  entry.kind = chars[0].kind;
  entry.chars = static_cast<uint8_t>(count);
  entry.size = static_cast<uint8_t>(size);
  std::memcpy(entry.bytes, bytes, size);
  return entry;
}

void CharMap::normalize(std::string_view text, MarkBuffer& marks, std::string& out) const {
  marks.clear();
  const uint8_t* p = utf8::begin(text);
  const uint8_t* const end = utf8::end(text);
  while (p < end) {
    if (const uint8_t folded = fold_[*p]; folded != 0) {
      marks.flush(out);
      out.push_back(static_cast<char>(folded));
      ++p;
      continue;
    }
    NormalizedChar chars[kMaxExpansion];
    const size_t count = expand(decode_or_throw(p, end), chars);
    for (size_t i = 0; i < count; ++i) {
      if (chars[i].rank != 0) {
        marks.add(chars[i]);
        continue;
      }
      marks.flush(out);
      if (chars[i].kind == CharKind::kChinese) out.push_back(' ');
      utf8::append(chars[i].c, out);
      if (chars[i].kind == CharKind::kChinese) out.push_back(' ');
    }
  }
  marks.flush(out);
}

}  // namespace embedkit
