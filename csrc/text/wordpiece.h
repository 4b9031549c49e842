// BERT normalization + WordPiece: the token ids of Hugging Face's `tokenizers`, for every Unicode text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace embedkit {

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

class WordPiece final : public Tokenizer {
 public:
  /// Throws InvalidArgument for an empty vocabulary, a repeated token or a missing unknown token.
  explicit WordPiece(WordPieceOptions options);
  ~WordPiece() override;

  size_t vocab_size() const override;

 protected:
  std::shared_ptr<Buffers> make_buffers() const override;
  void encode_with(std::string_view text, Buffers& buffers, std::vector<int32_t>& ids, size_t limit,
                   StopToken* stop) const override;

 private:
  struct Tables;
  class Encoding;

  std::unique_ptr<const Tables> tables_;
};

}  // namespace embedkit
