// BERT normalization + WordPiece: the token ids of Hugging Face's `tokenizers`, for every Unicode text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/stop.h"

namespace embedkit {

/// A token that is matched in the text before WordPiece sees it (`added_tokens` of tokenizer.json).
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
};

struct WordPieceOptions {
  std::vector<std::string> vocab;  ///< position = id
  std::vector<AddedToken> added_tokens;
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
  std::string unknown_token = "[UNK]";
  std::string continuing_prefix = "##";
  size_t max_chars_per_word = 100;  ///< a longer word is one unknown token; in code points
};

/// Immutable after construction and safe to share between threads; each thread brings its own Scratch.
class WordPiece {
 public:
  /// Buffers reused from text to text, so that no text allocates in steady state.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(Scratch&&) noexcept;
    Scratch& operator=(Scratch&&) noexcept;

   private:
    friend class WordPiece;
    struct Buffers;
    std::unique_ptr<Buffers> buffers_;
  };

  static constexpr size_t kNoLimit = ~size_t{0};

  /// Throws InvalidArgument for an empty vocabulary, a repeated token or a missing unknown token.
  explicit WordPiece(WordPieceOptions options);
  ~WordPiece();
  WordPiece(const WordPiece&) = delete;
  WordPiece& operator=(const WordPiece&) = delete;

  /// Appends the ids of `text` to `ids`: no template tokens ([CLS], [SEP]), no truncation. May stop once more
  /// than `limit` ids have been appended; the first `limit` ids are then those of the whole text. Also ends,
  /// with part of the ids, soon after `stop` is stopped. Throws InvalidArgument if `text` is not valid UTF-8.
  void encode(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids, size_t limit = kNoLimit,
              StopToken* stop = nullptr) const;

  size_t vocab_size() const;

 private:
  struct Tables;
  std::unique_ptr<const Tables> tables_;
};

}  // namespace embedkit
