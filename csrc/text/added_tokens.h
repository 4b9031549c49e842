// Added tokens: literal strings that are cut out of the text before the model sees it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
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

  using Normalize = std::function<std::string(std::string_view)>;

  /// Without `normalize`, of the tokens that are looked for in the text as it comes; with it of the others,
  /// as what it makes of them. Empty ones are never found, of equal ones the lowest id is. Throws
  /// InvalidArgument for a token that cannot be.
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens, const Normalize& normalize = nullptr);

  bool empty() const { return tokens_.empty(); }
  /// Whether a token starts with the byte.
  bool starts(uint8_t byte) const { return first_[byte]; }

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

/// Calls `piece(begin, end, first, last)` with what is between the tokens of `text`, and appends their ids.
///
/// What is between two tokens may come in parts: `first` and `last` say whether it starts and ends with this
/// one, and `window_end(begin)` where a part that starts at `begin` or later ends at the latest. Returns
/// false once a piece does, there are more than `most` ids, or `stop` is stopped.
template <class WindowEnd, class Piece>
bool between_added_tokens(const AddedTokenMatcher& matcher, std::string_view text, std::vector<int32_t>& ids,
                          size_t most, StopToken* stop, WindowEnd&& window_end, Piece&& piece) {
  size_t begin = 0;  // of what is not encoded yet
  size_t from = 0;   // where the search for added tokens goes on
  size_t until = 0;  // the end of the window
  bool first = true;
  while (begin < text.size() || from < text.size()) {
    if (stop != nullptr && stop->poll()) return false;
    // Once a window, not once a match: the search for its end may read all that is left.
    if (std::max(begin, from) >= until) until = window_end(std::max(begin, from));
    AddedTokenMatcher::Match match;
    const bool found = matcher.find(text, from, until, begin, &match, &from);
    // White space that lstrip takes may be encoded already, at the end of a window: it has no ids.
    const size_t end = found ? match.begin : until;
    if (begin < end) {
      if (!piece(begin, end, first, found || end == text.size())) return false;
      first = false;
    }
    begin = std::max(begin, end);
    if (!found) continue;
    // A match whose text another one's rstrip has swallowed leaves nothing.
    if (match.begin < match.end) ids.push_back(match.id);
    if (ids.size() > most) return false;
    begin = match.end;
    from = match.next;
    first = true;
  }
  return true;
}

}  // namespace embedkit
