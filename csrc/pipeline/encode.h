// Texts -> vectors: tokenize, pack, encode and deliver, on the threads of one gang.
//
// Texts go through in windows of bounded size. Within a window the members first tokenize chunks of texts,
// then one of them sorts the sequences by length and cuts batches of a token budget, then the members encode
// whole batches, each by itself, longest first and with shrinking batches at the end, so that all finish
// together. When there is too little work for that (a lone query), the whole gang works on one batch, layer
// by layer. A vector is bitwise the same either way, since the kernels never split a sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/stop.h"
#include "encoder/encoder.h"
#include "text/wordpiece.h"

namespace embedkit {

enum class Overflow { kTruncate, kError, kWindow };

struct EncodeOptions {
  int threads = 1;
  size_t batch_size = 0;  ///< most texts per batch, 0 for no cap
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
  size_t max_length = 512;  ///< tokens of a sequence, prefix and suffix counted
  Overflow overflow = Overflow::kTruncate;
  bool truncate_left = false;  ///< keep the end of a text that is too long
  size_t pool_skip = 0;        ///< leading tokens left out of the pooling
  size_t truncate_dim = 0;     ///< 0 for all
  bool normalize = false;
  size_t first_text = 0;  ///< the caller's index of text 0, for messages
};

struct EncodeStats {
  size_t tokens = 0;     ///< encoded, special tokens included
  size_t truncated = 0;  ///< texts that lost tokens
};

/// Where token ids come from: our own tokenizer, or another one's ids.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual size_t size() const = 0;
  /// A rough size of text i in bytes, to share out the work.
  virtual size_t bytes(size_t i) const = 0;
  /// Appends the content ids of text i (no special tokens); may end beyond `limit` ids or when stopped.
  /// Thread-safe.
  virtual void append(size_t i, WordPiece::Scratch& scratch, std::vector<int32_t>& ids, size_t limit,
                      StopToken& stop) const = 0;
};

class TextSource final : public TokenSource {
 public:
  TextSource(const WordPiece& tokenizer, const std::vector<std::string_view>& texts)
      : tokenizer_(tokenizer), texts_(texts) {}
  size_t size() const override { return texts_.size(); }
  size_t bytes(size_t i) const override { return texts_[i].size(); }
  void append(size_t i, WordPiece::Scratch& scratch, std::vector<int32_t>& ids, size_t limit,
              StopToken& stop) const override {
    tokenizer_.encode(texts_[i], scratch, ids, limit, &stop);
  }

 private:
  const WordPiece& tokenizer_;
  const std::vector<std::string_view>& texts_;
};

class IdSource final : public TokenSource {
 public:
  explicit IdSource(const std::vector<std::vector<int32_t>>& ids) : ids_(ids) {}
  size_t size() const override { return ids_.size(); }
  size_t bytes(size_t i) const override { return 4 * ids_[i].size(); }
  void append(size_t i, WordPiece::Scratch&, std::vector<int32_t>& ids, size_t, StopToken&) const override {
    ids.insert(ids.end(), ids_[i].begin(), ids_[i].end());
  }

 private:
  const std::vector<std::vector<int32_t>>& ids_;
};

/// Dimension of the vectors that `encode` writes. Throws InvalidArgument if truncate_dim is larger than the
/// model's.
size_t output_dimension(const Encoder& encoder, const EncodeOptions& options);

/// Writes the vectors of all texts, in their order, to `out`: (texts, output_dimension), row-major.
///
/// A text of more than max_length tokens is truncated, refused, or (kWindow) cut into windows of max_length
/// tokens whose vectors are averaged, weighted by their tokens, and normalised again if the model's last
/// module is Normalize. Throws InvalidArgument for a text that is too long (kError) or an id that the model
/// does not know, Interrupted when `stop` says so; an error of any thread stops the others and is thrown
/// here.
EncodeStats encode(const Encoder& encoder, const TokenSource& source, const EncodeOptions& options,
                   float* out, StopToken& stop);

/// The same up to the hidden states: out[i] becomes (tokens of text i, hidden_size). kWindow is refused.
EncodeStats encode_tokens(const Encoder& encoder, const TokenSource& source, const EncodeOptions& options,
                          std::vector<std::vector<float>>& out, StopToken& stop);

}  // namespace embedkit
