// WordPiece as one would write it down: everything normalized first, then split, then every substring looked
// up.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "text/char_map.h"
#include "text/unicode.h"
#include "text/utf8.h"
#include "text/wordpiece.h"

namespace embedkit::test {

class NaiveWordPiece {
 public:
  explicit NaiveWordPiece(const WordPieceOptions& options)
      : options_(options),
        map_({options.clean_text, options.handle_chinese_chars, options.strip_accents, options.lowercase},
             {}) {
    for (size_t i = 0; i < options.vocab.size(); ++i) ids_[options.vocab[i]] = static_cast<int32_t>(i);
  }

  /// Knows added tokens without flags only.
  std::vector<int32_t> encode(std::string_view text) const {
    std::vector<int32_t> ids;
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const AddedToken* longest = nullptr;
      for (const AddedToken& token : options_.added_tokens) {
        if (text.substr(at).starts_with(token.content) &&
            (longest == nullptr || token.content.size() > longest->content.size())) {
          longest = &token;
        }
      }
      if (longest == nullptr) {
        ++at;
        continue;
      }
      split(text.substr(begin, at - begin), ids);
      ids.push_back(longest->id);
      begin = at += longest->content.size();
    }
    split(text.substr(begin), ids);
    return ids;
  }

 private:
  void split(std::string_view text, std::vector<int32_t>& ids) const {
    std::string normalized;
    MarkBuffer marks;
    map_.normalize(text, marks, normalized);
    std::vector<std::string> word;  // characters
    const uint8_t* p = utf8::begin(normalized);
    while (p < utf8::end(normalized)) {
      const char32_t c = utf8::decode(p, utf8::end(normalized));
      std::string bytes;
      utf8::append(c, bytes);
      const uint8_t flags = unicode::record(c).flags;
      if (flags & (unicode::kWhitespace | unicode::kPunctuation)) {
        pieces(word, ids);
        word.clear();
        if (flags & unicode::kPunctuation) pieces({bytes}, ids);
      } else {
        word.push_back(bytes);
      }
    }
    pieces(word, ids);
  }

  void pieces(const std::vector<std::string>& word, std::vector<int32_t>& ids) const {
    std::vector<int32_t> found;
    const int32_t unknown = ids_.at(options_.unknown_token);
    if (word.size() > options_.max_chars_per_word) {
      ids.push_back(unknown);
      return;
    }
    for (size_t begin = 0; begin < word.size();) {
      size_t end = word.size();
      for (; end > begin; --end) {
        std::string piece = begin == 0 ? "" : options_.continuing_prefix;
        for (size_t i = begin; i < end; ++i) piece += word[i];
        const auto place = ids_.find(piece);
        if (place == ids_.end()) continue;
        found.push_back(place->second);
        break;
      }
      if (end == begin) {
        ids.push_back(unknown);
        return;
      }
      begin = end;
    }
    ids.insert(ids.end(), found.begin(), found.end());
  }

  const WordPieceOptions options_;
  CharMap map_;
  std::map<std::string, int32_t> ids_;
};

inline std::vector<int32_t> encode(const WordPiece& tokenizer, std::string_view text,
                                   size_t limit = WordPiece::kNoLimit) {
  WordPiece::Scratch scratch;
  std::vector<int32_t> ids;
  tokenizer.encode(text, scratch, ids, limit);
  return ids;
}

}  // namespace embedkit::test
