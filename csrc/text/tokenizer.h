// What every tokenizer of the core is: text in, token ids out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/stop.h"

namespace embedkit {

/// A token that is matched in the text before the model sees it (`added_tokens` of tokenizer.json).
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
};

/// Immutable after construction and safe to share between threads; each thread brings its own Scratch.
class Tokenizer {
 public:
  /// What a kind of tokenizer keeps between texts.
  struct Buffers {
    virtual ~Buffers() = default;
    /// Whether a long text has made them so large that they are not kept for the next one.
    virtual bool oversized() const = 0;
  };
  static constexpr size_t kKeptBytes = size_t{1} << 18;  // of a piece of text whose buffers are kept

  /// Buffers reused from text to text, so that no text allocates in steady state. It may serve several
  /// tokenizers one after another, and outlive them.
  class Scratch {
   private:
    friend class Tokenizer;
    void drop() {
      owner_ = 0;
      buffers_.reset();
    }
    std::shared_ptr<Buffers> buffers_;
    uint64_t owner_ = 0;
  };

  static constexpr size_t kNoLimit = ~size_t{0};

  Tokenizer();
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Appends the ids of `text` to `ids`: no template tokens ([CLS], [SEP]), no truncation. May stop once more
  /// than `limit` ids have been appended; the first `limit` ids are then those of the whole text. Also ends,
  /// with part of the ids, soon after `stop` is stopped. Throws InvalidArgument if `text` is not valid UTF-8.
  void encode(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids, size_t limit = kNoLimit,
              StopToken* stop = nullptr) const;

  virtual size_t vocab_size() const = 0;

 protected:
  virtual std::shared_ptr<Buffers> make_buffers() const = 0;
  virtual void encode_with(std::string_view text, Buffers& buffers, std::vector<int32_t>& ids, size_t limit,
                           StopToken* stop) const = 0;

 private:
  const uint64_t number_;  // of this tokenizer, never used again: an address may be
};

}  // namespace embedkit
