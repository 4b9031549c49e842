// Added tokens: literal strings that are cut out of the text before the model sees it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/trie.h"

namespace embedkit {

/// Finds a set of added tokens as `tokenizers` does: leftmost, the longest at a position, without overlap.
class AddedTokenMatcher {
 public:
  struct Match {
    /// Bytes, with the white space that lstrip and rstrip swallow; nothing is left (begin >= end) of a token
    /// that the rstrip of the one before has swallowed.
    size_t begin, end;
    size_t next;  ///< where the search goes on: the end of the token proper
    int32_t id;
  };

  /// `patterns[i]` is what to look for to find `tokens[i]`; empty ones are never found, of equal ones the
  /// lowest id is.
  AddedTokenMatcher(const std::vector<AddedToken>& tokens, const std::vector<std::string>& patterns);

  bool empty() const { return tokens_.empty(); }

  /// Looks for the first token that starts in [from, until) of `text`. `taken`: the end of the match before,
  /// which lstrip does not reach past. Returns false if there is none; `*stopped` is then where the search
  /// ended, which is past `until` when a token that was refused (single_word) reaches over it.
  bool find(std::string_view text, size_t from, size_t until, size_t taken, Match* match,
            size_t* stopped) const;

 private:
  size_t next_candidate(std::string_view text, size_t from, size_t until) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::string> patterns_;
  std::array<bool, 256> first_{};
  int only_first_ = -1;  // the first byte, if all patterns share it
  std::unique_ptr<const Trie> trie_;
};

}  // namespace embedkit
