#include "text/wordpiece.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/char_map.h"
#include "text/trie.h"
#include "text/utf8.h"

namespace embedkit {
namespace {

using Triggers = std::array<bool, 128>;

// Text without normalized added tokens is worked on in windows of about this size, so that a limit stops
// early.
constexpr size_t kWindow = size_t{1} << 16;
constexpr size_t kPollEvery = 1 << 12;  // words of a text that is normalized as a whole

bool is_ascii_punctuation(char c) {
  return c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z');
}

NormalizerOptions normalizer_of(const WordPieceOptions& options) {
  return {options.clean_text, options.handle_chinese_chars, options.strip_accents, options.lowercase};
}

Trie vocabulary_trie(const std::vector<std::string>& vocab) {
  require(!vocab.empty(), "the vocabulary is empty");
  require(vocab.size() < Trie::kNoValue, "the vocabulary has ", vocab.size(), " tokens; the limit is ",
          Trie::kNoValue - 1);
  std::vector<Trie::Entry> entries;
  entries.reserve(vocab.size());
  for (size_t id = 0; id < vocab.size(); ++id) {
    require(utf8::find_invalid(vocab[id]) == std::string_view::npos, "the token of id ", id,
            " is not valid UTF-8");
    if (!vocab[id].empty()) entries.emplace_back(vocab[id], static_cast<uint32_t>(id));
  }
  return Trie(std::move(entries));
}

AddedTokenMatcher normalized_tokens(const WordPieceOptions& options) {
  const CharMap map(normalizer_of(options), Triggers{});
  MarkBuffer marks;
  return AddedTokenMatcher(options.added_tokens, [&](std::string_view content) {
    std::string text;
    map.normalize(content, marks, text);
    return text;
  });
}

// The ASCII punctuation that tokens start with.
Triggers triggers_of(const AddedTokenMatcher& tokens) {
  Triggers result{};
  for (uint8_t c = 0; c < result.size(); ++c)
    result[c] = tokens.starts(c) && is_ascii_punctuation(static_cast<char>(c));
  return result;
}

}  // namespace

struct WordPiece::Tables {
  explicit Tables(const WordPieceOptions& options)
      : vocab_size(options.vocab.size()),
        max_chars(options.max_chars_per_word),
        trie(vocabulary_trie(options.vocab)),
        first(trie.root()),
        continuing(trie.find(options.continuing_prefix)),
        raw(options.added_tokens),
        normalized(normalized_tokens(options)),
        map(normalizer_of(options), triggers_of(normalized)) {
    for (int byte = 0; byte < 256; ++byte)
      normalize_first |=
          normalized.starts(static_cast<uint8_t>(byte)) && !is_ascii_punctuation(static_cast<char>(byte));
    if (!normalized.empty()) plain = std::make_unique<const CharMap>(NormalizerOptions{}, Triggers{});
    const Trie::Node node = trie.find(options.unknown_token);
    require(node.ends_key(), "the unknown token \"", options.unknown_token, "\" is not in the vocabulary");
    unknown = static_cast<int32_t>(node.value());
    for (size_t c = 0; c < ascii_ids.size(); ++c) {
      const char byte = static_cast<char>(c);
      const Trie::Node single = trie.find({&byte, 1});
      ascii_ids[c] = single.ends_key() && max_chars > 0 ? static_cast<int32_t>(single.value()) : unknown;
    }
  }

  size_t vocab_size;
  size_t max_chars;
  int32_t unknown;
  Trie trie;
  Trie::Node first;                    // where the first piece of a word starts
  Trie::Node continuing;               // and where the others do
  std::array<int32_t, 128> ascii_ids;  // of one ASCII character as a word: punctuation
  AddedTokenMatcher raw;               // looked for in the text as it comes
  // Looked for in normalized text. To normalize all of a text first is slower than to do it on the way, and
  // if every one of these tokens starts with ASCII punctuation (as "<unk>" does) it is done only where a text
  // has such a character: CharKind::kTrigger.
  AddedTokenMatcher normalized;
  bool normalize_first = false;
  CharMap map;
  std::unique_ptr<const CharMap> plain;  // for text that is normalized; null if there are no such tokens
};

namespace {

struct Work : Tokenizer::Buffers {
  bool oversized() const override { return normalized.capacity() > Tokenizer::kKeptBytes; }

  std::string word;  // normalized: of words that the fast loop could not take
  size_t chars = 0;  // code points in `word` and `marks`; the ones above the limit are counted, not kept
  MarkBuffer marks;  // follow `word`, not yet in canonical order
  std::string normalized;  // a whole text, where normalized added tokens are looked for
};

}  // namespace

/// One call of encode.
class WordPiece::Encoding {
 public:
  Encoding(const Tables& tables, Work& buffers, std::vector<int32_t>& ids, size_t limit, StopToken* stop)
      : t_(tables),
        b_(buffers),
        ids_(ids),
        most_(limit > ids.max_size() - ids.size() ? ids.max_size() : ids.size() + limit),
        stop_(stop) {}

  void text(std::string_view text) {
    between_added_tokens(
        t_.raw, text, ids_, most_, stop_,
        [&](size_t begin) { return t_.normalized.empty() ? window_end(text, begin) : text.size(); },
        [&](size_t begin, size_t end, bool, bool) { return piece(text.substr(begin, end - begin)); });
  }

 private:
  enum class Outcome { kDone, kFull, kTriggered };

  // A window ends before an ASCII space, which ends a word and a run of marks under any options.
  static size_t window_end(std::string_view text, size_t begin) {
    for (size_t size = kWindow; size < text.size() - begin; size *= 2) {
      const size_t space = text.substr(begin, size).rfind(' ');
      if (space != std::string_view::npos && space > 0) return begin + space;
    }
    return text.size();
  }

  // Text between added tokens. Returns false if no more ids are wanted.
  bool piece(std::string_view text) {
    if (!t_.normalize_first) {
      const size_t count = ids_.size();
      const Outcome outcome = words(t_.map, text);
      if (outcome != Outcome::kTriggered) return outcome == Outcome::kDone;
      ids_.resize(count);
    }
    b_.normalized.clear();
    t_.map.normalize(text, b_.marks, b_.normalized);
    const std::string_view normalized = b_.normalized;
    return between_added_tokens(
        t_.normalized, normalized, ids_, most_, nullptr, [&](size_t) { return normalized.size(); },
        [&](size_t begin, size_t end, bool, bool) {
          return words(*t_.plain, normalized.substr(begin, end - begin)) == Outcome::kDone;
        });
  }

  Outcome words(const CharMap& map, std::string_view text) {
    const uint8_t* p = utf8::begin(text);
    const uint8_t* const end = utf8::end(text);
    b_.word.clear();
    b_.marks.clear();
    b_.chars = 0;
    while (p < end) {
      Outcome outcome = Outcome::kDone;
      switch (map.ascii_kind(*p)) {
        case CharKind::kSpace:
          ++p;
          continue;
        case CharKind::kWord:
          p = ascii_word(map, p, end, &outcome);
          break;
        case CharKind::kPunctuation:
          ids_.push_back(t_.ascii_ids[*p++]);
          break;
        case CharKind::kTrigger:
          return Outcome::kTriggered;
        default:
          p = any_word(map, p, end, &outcome);
      }
      if (outcome != Outcome::kDone) return outcome;
      if (ids_.size() > most_) return Outcome::kFull;
      if (++words_ % kPollEvery == 0 && stop_ != nullptr && stop_->poll()) return Outcome::kFull;
    }
    return Outcome::kDone;
  }

  // A word that starts with ASCII; most words end as they started. Returns where it ends.
  const uint8_t* ascii_word(const CharMap& map, const uint8_t* p, const uint8_t* end, Outcome* outcome) {
    const uint8_t* const begin = p;
    Trie::Node node = t_.first;
    const uint8_t* matched = p;
    uint32_t id = Trie::kNoValue;
    uint8_t folded = 0;
    while (p < end && (folded = map.fold(*p)) != 0 && t_.trie.step(node, folded)) {
      ++p;
      if (node.ends_key()) {
        matched = p;
        id = node.value();
      }
    }
    while (p < end && map.fold(*p) != 0) ++p;
    if (p < end) {
      const CharKind kind = map.ascii_kind(*p);
      if (kind == CharKind::kGeneral || kind == CharKind::kRemoved) {
        b_.chars = static_cast<size_t>(p - begin);
        const size_t kept = std::min(b_.chars, t_.max_chars);
        for (size_t i = 0; i < kept; ++i) b_.word.push_back(static_cast<char>(map.fold(begin[i])));
        return any_word(map, p, end, outcome);
      }
    }
    const size_t count = ids_.size();
    if (static_cast<size_t>(p - begin) > t_.max_chars || matched == begin) {
      ids_.push_back(t_.unknown);
      return p;
    }
    ids_.push_back(static_cast<int32_t>(id));
    if (matched != p) pieces(matched, p, t_.continuing, count, [&](uint8_t byte) { return map.fold(byte); });
    return p;
  }

  // Goes on with the word in `b_` to its end, through any characters, and through the character that ends it.
  const uint8_t* any_word(const CharMap& map, const uint8_t* p, const uint8_t* end, Outcome* outcome) {
    while (p < end) {
      const char32_t c = decode_or_throw(p, end);
      if (c < CharMap::kCompiled) {
        const CharMap::Entry& entry = map.entry(c);
        switch (entry.kind) {
          case CharKind::kWord:
            if (b_.chars < t_.max_chars) {
              if (!b_.marks.empty()) b_.marks.flush(b_.word);
              b_.word.append(reinterpret_cast<const char*>(entry.bytes), entry.size);
            }
            b_.chars += entry.chars;
            continue;
          case CharKind::kRemoved:
            continue;
          case CharKind::kSpace:
            end_word();
            return p;
          case CharKind::kPunctuation:
            end_word();
            single(entry.bytes, entry.size);
            return p;
          case CharKind::kTrigger:
            *outcome = Outcome::kTriggered;
            return p;
          default:
            break;
        }
      }
      if (general(map, c, outcome)) return p;
    }
    end_word();
    return p;
  }

  // Returns whether the word ended.
  bool general(const CharMap& map, char32_t c, Outcome* outcome) {
    NormalizedChar chars[CharMap::kMaxExpansion];
    const size_t count = map.expand(c, chars);
    bool ended = false;
    for (size_t i = 0; i < count; ++i) {
      const NormalizedChar& x = chars[i];
      if (x.kind == CharKind::kTrigger) {
        *outcome = Outcome::kTriggered;
        return true;
      }
      if (x.kind == CharKind::kWord) {
        // What comes after the limit cannot matter: the word is unknown, however its marks are sorted.
        if (b_.chars++ >= t_.max_chars) continue;
        if (x.rank != 0) {
          b_.marks.add(x);
          continue;
        }
        b_.marks.flush(b_.word);
        utf8::append(x.c, b_.word);
        continue;
      }
      end_word();
      ended = true;
      if (x.kind != CharKind::kSpace) {
        uint8_t bytes[utf8::kMaxBytes];
        single(bytes, utf8::encode(x.c, bytes));
      }
    }
    // What followed the boundary is the start of the next word, in the buffer: that is not the end.
    return ended && b_.chars == 0;
  }

  void end_word() {
    if (b_.chars == 0) return;
    if (b_.chars > t_.max_chars) {
      ids_.push_back(t_.unknown);
      b_.marks.clear();
    } else {
      b_.marks.flush(b_.word);
      whole(utf8::begin(b_.word), utf8::end(b_.word));
    }
    b_.word.clear();
    b_.chars = 0;
  }

  void single(const uint8_t* bytes, size_t size) {
    if (t_.max_chars == 0) {
      ids_.push_back(t_.unknown);
    } else {
      whole(bytes, bytes + size);
    }
  }

  void whole(const uint8_t* begin, const uint8_t* end) {
    pieces(begin, end, t_.first, ids_.size(), [](uint8_t byte) { return byte; });
  }

  // The longest pieces from `p` on, the first one from `node`. If there is a gap, everything from ids_[count]
  // on is replaced by the unknown token.
  template <typename Fold>
  void pieces(const uint8_t* p, const uint8_t* end, Trie::Node node, size_t count, Fold fold) {
    while (p < end) {
      uint32_t id = Trie::kNoValue;
      const uint8_t* matched = p;
      for (const uint8_t* q = p; q < end && t_.trie.step(node, fold(*q));) {
        ++q;
        if (node.ends_key()) {
          id = node.value();
          matched = q;
        }
      }
      if (matched == p) {
        ids_.resize(count);
        ids_.push_back(t_.unknown);
        return;
      }
      ids_.push_back(static_cast<int32_t>(id));
      p = matched;
      node = t_.continuing;
    }
  }

  const Tables& t_;
  Work& b_;
  std::vector<int32_t>& ids_;
  const size_t most_;
  StopToken* stop_;
  size_t words_ = 0;
};

WordPiece::WordPiece(WordPieceOptions options) : tables_(std::make_unique<const Tables>(options)) {}
WordPiece::~WordPiece() = default;

std::shared_ptr<Tokenizer::Buffers> WordPiece::make_buffers() const { return std::make_shared<Work>(); }

void WordPiece::encode_with(std::string_view text, Buffers& buffers, std::vector<int32_t>& ids, size_t limit,
                            StopToken* stop) const {
  Encoding(*tables_, static_cast<Work&>(buffers), ids, limit, stop).text(text);
}

size_t WordPiece::vocab_size() const { return tables_->vocab_size; }

}  // namespace embedkit
