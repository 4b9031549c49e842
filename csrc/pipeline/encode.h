// Texts -> vectors: tokenize, pack, encode and deliver, on the workers of one call.
//
// Texts go through in windows of bounded size. Within a window the workers first tokenize chunks of texts,
// then one of them sorts the sequences by length and cuts batches of a token budget, then the workers encode
// whole batches, each by itself, longest first and with shrinking batches at the end, so that all finish
// together. When there is too little work for that (a lone query), all workers share one batch, layer
// by layer. A vector is bitwise the same either way, since the kernels never split a sum.
#pragma once

#include <cstddef>
#include <vector>

#include "base/stage_clock.h"
#include "base/stop.h"
#include "encoder/encoder.h"
#include "pipeline/token_window.h"

namespace embedkit {

struct EncodeOptions : TokenizeOptions {
  size_t batch_size = 0;    ///< most texts per batch, 0 for no cap
  size_t truncate_dim = 0;  ///< 0 for all
  bool normalize = false;
  bool token_embeddings = false;  ///< for callers: `encode_tokens` is wanted, not `encode`
  bool profile = false;           ///< fill EncodeStats::stages
};

struct EncodeStats {
  size_t tokens = 0;           ///< encoded, special tokens included
  size_t truncated = 0;        ///< texts that lost tokens
  size_t unknown = 0;          ///< texts of more than a third unknown_id
  StageClock::Times stages{};  ///< seconds by stage, summed over the threads
};

/// Dimension of the vectors that `encode` writes. Throws InvalidArgument if truncate_dim is larger than the
/// model's.
size_t output_dimension(const Encoder& encoder, const EncodeOptions& options);

/// Writes the vectors of all texts, in their order, to `out`: (texts, output_dimension), row-major.
///
/// A text of more than max_length tokens is truncated, refused, or (kWindow) cut into windows of max_length
/// tokens whose vectors are averaged, weighted by their tokens, and normalized again if the model's last
/// module is Normalize. Throws InvalidArgument for a text that is too long (kError) or an id that the model
/// does not know, Interrupted when `stop` says so; an error of any thread stops the others and is thrown
/// here.
EncodeStats encode(const Encoder& encoder, const TokenSource& source, const EncodeOptions& options,
                   float* out, StopToken& stop);

/// The same up to the hidden states: out[i] becomes (tokens of text i, hidden_size). kWindow is refused.
EncodeStats encode_tokens(const Encoder& encoder, const TokenSource& source, const EncodeOptions& options,
                          std::vector<std::vector<float>>& out, StopToken& stop);

}  // namespace embedkit
