#include "text/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace embedkit {
namespace {

bool has(char32_t c, unicode::Property property) {
  return c != utf8::kInvalid && (unicode::record(c).flags & property) != 0;
}

// The code point before `at`, kInvalid if it is malformed; `*begin` is where it starts. at > 0.
char32_t before(std::string_view text, size_t at, size_t* begin) {
  size_t start = at - 1;
  while (start > 0 && at - start < utf8::kMaxBytes && (utf8::begin(text)[start] & 0xC0) == 0x80) --start;
  const uint8_t* p = utf8::begin(text) + start;
  const char32_t c = utf8::decode(p, utf8::begin(text) + at);
  *begin = start;
  return p == utf8::begin(text) + at ? c : utf8::kInvalid;
}

bool word_before(std::string_view text, size_t at) {
  size_t begin;
  return at > 0 && has(before(text, at, &begin), unicode::kWord);
}

bool word_after(std::string_view text, size_t at) {
  const uint8_t* p = utf8::begin(text) + at;
  return at < text.size() && has(utf8::decode(p, utf8::end(text)), unicode::kWord);
}

size_t skip_spaces_left(std::string_view text, size_t at, size_t least) {
  for (size_t begin; at > least && has(before(text, at, &begin), unicode::kWhitespace);) at = begin;
  return std::max(at, least);
}

size_t skip_spaces_right(std::string_view text, size_t at) {
  const uint8_t* p = utf8::begin(text) + at;
  const uint8_t* end = p;
  while (p < utf8::end(text) && has(utf8::decode(p, utf8::end(text)), unicode::kWhitespace)) end = p;
  return static_cast<size_t>(end - utf8::begin(text));
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens, const Normalize& normalize) {
  std::map<std::string, const AddedToken*> kept;
  for (const AddedToken& token : tokens) {
    require(utf8::find_invalid(token.content) == std::string_view::npos, "the added token of id ", token.id,
            " is not valid UTF-8");
    require(token.id >= 0, "the added token \"", token.content, "\" has the id ", token.id);
    if (token.content.empty() || token.normalized != (normalize != nullptr)) continue;
    std::string pattern = normalize ? normalize(token.content) : token.content;
    // `tokenizers` would find it between any two characters and cut every word into single ones.
    require(!pattern.empty(), "nothing is left of the added token \"", token.content,
            "\" after normalization; remove it or set its \"normalized\" to false");
    const auto [place, is_new] = kept.try_emplace(std::move(pattern), &token);
    if (!is_new && token.id < place->second->id) place->second = &token;
  }
  for (const auto& [pattern, token] : kept) {
    tokens_.push_back(*token);
    patterns_.emplace_back(pattern);
    first_[static_cast<uint8_t>(pattern[0])] = true;
  }
  if (std::count(first_.begin(), first_.end(), true) == 1)
    only_first_ = static_cast<uint8_t>(patterns_[0][0]);
  std::vector<Trie::Entry> entries;
  for (size_t i = 0; i < patterns_.size(); ++i) entries.emplace_back(patterns_[i], static_cast<uint32_t>(i));
  trie_ = std::make_unique<const Trie>(std::move(entries));
}

size_t AddedTokenMatcher::next_candidate(std::string_view text, size_t from, size_t until) const {
  if (only_first_ >= 0) {
    const void* hit = std::memchr(text.data() + from, only_first_, until - from);
    return hit == nullptr ? until : static_cast<size_t>(static_cast<const char*>(hit) - text.data());
  }
  while (from < until && !first_[static_cast<uint8_t>(text[from])]) ++from;
  return from;
}

bool AddedTokenMatcher::find(std::string_view text, size_t from, size_t until, size_t taken, Match* match,
                             size_t* stopped) const {
  *stopped = std::max(from, until);
  if (empty()) return false;
  while (from < until) {
    from = next_candidate(text, from, until);
    if (from == until) break;
    Trie::Node node = trie_->root();
    size_t end = 0;
    uint32_t found = Trie::kNoValue;
    for (size_t p = from; p < text.size() && trie_->step(node, static_cast<uint8_t>(text[p]));) {
      ++p;
      if (node.ends_key()) {
        found = node.value();
        end = p;
      }
    }
    if (found == Trie::kNoValue) {
      ++from;
      continue;
    }
    const AddedToken& token = tokens_[found];
    if (token.single_word && (word_before(text, from) || word_after(text, end))) {
      from = end;
      continue;
    }
    match->begin = token.lstrip ? skip_spaces_left(text, from, taken) : from;
    // What lies before `taken` here is white space that the match before has swallowed.
    match->end = token.rstrip ? skip_spaces_right(text, std::max(end, taken)) : end;
    match->next = end;
    match->id = token.id;
    return true;
  }
  *stopped = std::max(from, until);
  return false;
}

}  // namespace embedkit
