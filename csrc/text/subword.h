// BPE and Unigram with the normalizers and pre-tokenizers around them: the token ids of Hugging Face's
// `tokenizers`, for every Unicode text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/splitter.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

namespace embedkit {

struct SubwordOptions {
  std::vector<NormalizerStep> normalizer;
  std::vector<SplitStep> splits;
  std::vector<AddedToken> added_tokens;
  size_t vocab_size = 0;  ///< the highest id of the vocabulary plus one
};

class Subword final : public Tokenizer {
 public:
  /// Throws InvalidArgument for options that cannot be.
  Subword(std::shared_ptr<const SubwordModel> model, SubwordOptions options);
  ~Subword() override;

  size_t vocab_size() const override;

 protected:
  std::shared_ptr<Buffers> make_buffers() const override;
  void encode_with(std::string_view text, Buffers& buffers, std::vector<int32_t>& ids, size_t limit,
                   StopToken* stop) const override;

 private:
  struct Tables;
  struct Work;
  struct Pool;
  class Encoding;

  std::unique_ptr<const Tables> tables_;
  std::shared_ptr<Pool> pool_;
};

}  // namespace embedkit
