#include "text/normal_forms.h"

#include <algorithm>

#include "text/char_map.h"
#include "text/traits.h"
#include "text/utf8.h"

namespace embedkit {
namespace {

bool composes(NormalForm form) { return form == NormalForm::kNfc || form == NormalForm::kNfkc; }
bool compatible(NormalForm form) { return form == NormalForm::kNfkc || form == NormalForm::kNfkd; }

// Whether the form leaves the code point and what stands before it alone.
bool stable(char32_t c, NormalForm form) {
  if (c < 0x80) return true;
  const uint32_t traits = unicode::traits(c);
  if (form == NormalForm::kNfc) return (traits & unicode::kNfcUnstable) == 0;
  if (form == NormalForm::kNfkc) return (traits & unicode::kNfkcUnstable) == 0;
  const unicode::Record record = unicode::record(c);
  return record.rank == 0 && (record.flags & unicode::kDecomposes) == 0 && !unicode::is_hangul(c) &&
         !(form == NormalForm::kNfkd && (traits & unicode::kCompatible) != 0);
}

}  // namespace

void Composer::add(char32_t c, NormalForm form) {
  const auto push = [&](char32_t x) { segment_.push_back({x, unicode::record(x).rank}); };
  if (compatible(form) && (unicode::traits(c) & unicode::kCompatible) != 0) {
    for (const char32_t x : unicode::find(unicode::kCompatibilities, c)) push(x);
  } else {
    unicode::decompose(c, push);
  }
}

void Composer::flush(bool compose, std::string& out) {
  for (auto run = segment_.begin(); run != segment_.end();) {
    if (run->rank == 0) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, segment_.end(), [](const Mark& m) { return m.rank == 0; });
    std::stable_sort(run, end, [](const Mark& a, const Mark& b) { return a.rank < b.rank; });
    run = end;
  }
  if (compose) {
    size_t kept = 0;
    size_t starter = segment_.size();  // none yet
    uint8_t last = 0;                  // rank of the code point kept before
    for (const Mark mark : segment_) {
      // Blocked by what stands between, unless that has a lower rank.
      if (starter < segment_.size() && (last < mark.rank || last == 0)) {
        if (const char32_t whole = unicode::compose(segment_[starter].c, mark.c); whole != 0) {
          segment_[starter].c = whole;
          continue;
        }
      }
      if (mark.rank == 0) starter = kept;
      last = mark.rank;
      segment_[kept++] = mark;
    }
    segment_.resize(kept);
  }
  for (const Mark& mark : segment_) utf8::append(mark.c, out);
  segment_.clear();
}

bool Composer::normalize(std::string_view text, NormalForm form, std::string& out) {
  const uint8_t* const begin = utf8::begin(text);
  const uint8_t* const end = utf8::end(text);
  segment_.clear();
  const uint8_t* copied = begin;  // up to here all is in `out`
  const uint8_t* base = begin;    // the code point before p, if it is not copied
  bool changed = false;
  for (const uint8_t* p = begin; p < end;) {
    const uint8_t* const at = p;
    if (*p < 0x80) {
      base = p++;
      continue;
    }
    char32_t c = decode_or_throw(p, end);
    if (stable(c, form)) {
      base = at;
      continue;
    }
    changed = true;
    if (base < copied) base = copied;
    out.append(utf8::view(copied, base));
    while (base < at) add(decode_or_throw(base, end), form);
    add(c, form);
    while (p < end) {
      const uint8_t* const next = p;
      c = decode_or_throw(p, end);
      if (stable(c, form)) {
        p = next;
        break;
      }
      add(c, form);
    }
    flush(composes(form), out);
    copied = base = p;
  }
  if (!changed) return false;
  out.append(utf8::view(copied, end));
  return true;
}

}  // namespace embedkit
