// Texts -> sequences of token ids as the encoder takes them: tokenized, cut to length, with special tokens.
//
// The first half of the pipeline. `encode` goes on with it on the same threads; a backend outside the core (a
// GPU, ONNX) takes windows one after another and packs batches of them into memory of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/stop.h"
#include "base/thread_pool.h"
#include "pipeline/attention_tiles.h"
#include "text/tokenizer.h"

namespace embedkit {

enum class Overflow { kTruncate, kError, kWindow };

/// The ids between the two texts of a pair (prefix_ids and suffix_ids go around both), and the token
/// types.
struct PairTemplate {
  std::vector<int32_t> between_ids;
  bool typed = false;                 ///< whether the model gets token types; else all are 0
  std::vector<int32_t> prefix_types;  ///< as many as prefix_ids, and so on
  std::vector<int32_t> between_types;
  std::vector<int32_t> suffix_types;
  int32_t first_type = 0;  ///< of the first text's tokens
  int32_t second_type = 0;
};

struct TokenizeOptions {
  int threads = 1;
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
  size_t max_length = 512;  ///< tokens of a sequence, prefix and suffix counted
  Overflow overflow = Overflow::kTruncate;
  bool truncate_left = false;  ///< keep the end of a text that is too long
  size_t pool_skip = 0;        ///< leading tokens of a text left out of the pooling, prefix_ids counted
  size_t first_text = 0;       ///< the caller's index of text 0, for messages
  int32_t unknown_id = -1;     ///< what stands for words that the model does not know; -1 for none
  /// Each text is a pair. One that is too long loses tokens as "longest_first" says: the shorter text is kept
  /// whole where it fits into half of the room, else each gets half of it.
  std::optional<PairTemplate> pair;

  /// Around a text or a pair.
  size_t special_tokens() const;
  /// Throws InvalidArgument for what no text could be encoded with.
  void validate() const;
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
  virtual void append(size_t i, Tokenizer::Scratch& scratch, std::vector<int32_t>& ids, size_t limit,
                      StopToken& stop) const = 0;
  /// The same for the second text of pair i; sources of single texts have none.
  virtual void append_second(size_t, Tokenizer::Scratch&, std::vector<int32_t>&, size_t, StopToken&) const {}
};

class TextSource final : public TokenSource {
 public:
  TextSource(const Tokenizer& tokenizer, const std::vector<std::string_view>& texts)
      : tokenizer_(tokenizer), texts_(texts) {}
  size_t size() const override { return texts_.size(); }
  size_t bytes(size_t i) const override { return texts_[i].size(); }
  void append(size_t i, Tokenizer::Scratch& scratch, std::vector<int32_t>& ids, size_t limit,
              StopToken& stop) const override {
    tokenizer_.encode(texts_[i], scratch, ids, limit, &stop);
  }

 private:
  const Tokenizer& tokenizer_;
  const std::vector<std::string_view>& texts_;
};

class IdSource final : public TokenSource {
 public:
  explicit IdSource(const std::vector<std::vector<int32_t>>& ids) : ids_(ids) {}
  size_t size() const override { return ids_.size(); }
  size_t bytes(size_t i) const override { return 4 * ids_[i].size(); }
  void append(size_t i, Tokenizer::Scratch&, std::vector<int32_t>& ids, size_t, StopToken&) const override {
    ids.insert(ids.end(), ids_[i].begin(), ids_[i].end());
  }

 private:
  const std::vector<std::vector<int32_t>>& ids_;
};

/// Pair i is text i of one source and text i of another, which must have as many.
class PairSource final : public TokenSource {
 public:
  PairSource(const TokenSource& first, const TokenSource& second) : first_(first), second_(second) {}
  size_t size() const override { return first_.size(); }
  size_t bytes(size_t i) const override { return first_.bytes(i) + second_.bytes(i); }
  void append(size_t i, Tokenizer::Scratch& scratch, std::vector<int32_t>& ids, size_t limit,
              StopToken& stop) const override {
    first_.append(i, scratch, ids, limit, stop);
  }
  void append_second(size_t i, Tokenizer::Scratch& scratch, std::vector<int32_t>& ids, size_t limit,
                     StopToken& stop) const override {
    second_.append(i, scratch, ids, limit, stop);
  }

 private:
  const TokenSource& first_;
  const TokenSource& second_;
};

/// A sequence of a window: where its ids are and what it belongs to.
struct Sequence {
  size_t text;    ///< position in the source
  size_t worker;  ///< whose arena holds the ids
  size_t offset;
  size_t length;
  /// Leading tokens left out of the pooling: those of the prompt that it holds, or more than it has if it is
  /// all prompt.
  size_t pool_skip;
  size_t first = 0;  ///< content tokens of a pair's first text
};

/// The sequences of some texts of a source.
///
/// Filled by the workers of a call: one calls `begin`, then all call `tokenize`, and when all have returned
/// one calls `finish`.
class TokenWindow {
 public:
  /// What one thread needs to tokenize.
  struct Scratch {
    Tokenizer::Scratch words;
    std::vector<int32_t> content;
  };

  /// Empties the window and shares out the texts `first` up to `first + texts`.
  void begin(const TokenSource& source, const TokenizeOptions& options, size_t first, size_t texts);
  /// Takes chunks of texts until none is left. Throws InvalidArgument for a text that is too long (kError).
  void tokenize(const TokenSource& source, const TokenizeOptions& options, const Worker& worker,
                Scratch& scratch, StopToken& stop);
  void finish();

  /// In the order of the texts; the windows of a text (kWindow) follow each other.
  const std::vector<Sequence>& sequences() const { return sequences_; }
  const int32_t* ids(const Sequence& s) const { return arenas_[s.worker].data() + s.offset; }
  size_t texts() const { return texts_; }
  size_t tokens() const { return tokens_; }        ///< special tokens included
  size_t truncated() const { return truncated_; }  ///< texts that lost tokens
  size_t unknown() const { return unknown_; }      ///< texts of more than a third `unknown_id`; no pairs

 private:
  /// Texts that one worker tokenizes at a time.
  struct Chunk {
    size_t first;
    size_t count;
    std::vector<Sequence> sequences;
    size_t truncated = 0;
    size_t unknown = 0;
  };

  void add(size_t text, size_t worker, const std::vector<int32_t>& content, const TokenizeOptions& options,
           Chunk& chunk);
  void add_pair(const TokenSource& source, size_t text, size_t worker, Scratch& scratch,
                const TokenizeOptions& options, Chunk& chunk, StopToken& stop);

  std::vector<Chunk> chunks_;
  std::atomic<size_t> next_chunk_{0};
  std::vector<std::vector<int32_t>> arenas_;  // token ids, one arena a worker
  std::vector<Sequence> sequences_;
  size_t texts_ = 0;
  size_t tokens_ = 0;
  size_t truncated_ = 0;
  size_t unknown_ = 0;
};

/// Fills `window` with all texts of the source, on workers of its own. Throws Interrupted when `stop` says
/// so; an error of any thread stops the others and is thrown here.
void tokenize(const TokenSource& source, const TokenizeOptions& options, StopToken& stop,
              TokenWindow& window);

/// Where `pack` writes a batch: memory of the caller.
struct PackTarget {
  std::span<int32_t> ids;         ///< (tokens); filled up with 0
  std::span<int32_t> positions;   ///< (tokens) rows of the position table, filled up with 0; or empty
  std::span<int32_t> cu_seqlens;  ///< (sequences + 1), filled up with empty sequences
  /// Whether cu_seqlens has two entries a sequence after the first, (2 * sequences + 1): where its pooled
  /// tokens begin, and its end.
  bool skips = false;
  TileTarget tiles{};  ///< of the whole batch, the filling counted in; or empty
};

/// Lays the sequences of the window that `order` names end to end and returns the number of their tokens.
/// Positions count as in the encoder: see EncoderConfig::padding_idx. Throws InvalidArgument for a batch that
/// does not fit, a sequence that is not there, or an id of `vocab_size` or more.
size_t pack(const TokenWindow& window, std::span<const int64_t> order, int32_t padding_idx, size_t vocab_size,
            const PackTarget& target);

}  // namespace embedkit
