#include "text/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "text/utf8.h"

namespace embedkit {
namespace {

constexpr double kUnknownPenalty = 10.0;
constexpr size_t kPollEvery = 1 << 14;  // a power of two

size_t size_of_char(uint8_t lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

}  // namespace

struct Unigram::Buffers : SubwordModel::Buffers {
  /// The best path to a position.
  struct Node {
    double score;
    int32_t id;
    uint32_t size;  ///< bytes of its last piece; 0: not reached
  };
  std::vector<Node> nodes;
  std::vector<uint32_t> ends;  // of the pieces of the best path, the last one first
};

Unigram::Unigram(const UnigramOptions& options)
    : scores_(options.scores), unknown_(options.unknown_id), byte_fallback_(options.byte_fallback) {
  const size_t size = options.vocab.size();
  require(size > 0, "the vocabulary is empty");
  require(size < Trie::kNoValue, "the vocabulary has ", size, " tokens; the limit is ", Trie::kNoValue - 1);
  require(scores_.size() == size, "there are ", scores_.size(), " scores of ", size, " tokens");
  require(unknown_ >= 0 && static_cast<size_t>(unknown_) < size, "the unknown token has the id ", unknown_,
          " in a vocabulary of ", size);
  double least = std::numeric_limits<double>::infinity();
  std::unordered_map<std::string_view, uint32_t> last;
  last.reserve(size);
  for (size_t id = 0; id < size; ++id) {
    const std::string& token = options.vocab[id];
    require(utf8::find_invalid(token) == std::string_view::npos, "the token of id ", id,
            " is not valid UTF-8");
    require(std::isfinite(scores_[id]), "the score of the token \"", token, "\" is not a finite number");
    least = std::min(least, scores_[id]);
    if (!token.empty()) last[token] = static_cast<uint32_t>(id);
  }
  unknown_score_ = least - kUnknownPenalty;
  trie_ = std::make_unique<const Trie>(std::vector<Trie::Entry>(last.begin(), last.end()));
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto place = last.find(byte_token(byte));
    bytes_[byte] = place == last.end() ? -1 : static_cast<int32_t>(place->second);
  }
}

std::unique_ptr<SubwordModel::Buffers> Unigram::make_buffers() const { return std::make_unique<Buffers>(); }

// Neighbouring pieces that are unknown: together they may be a token after all (of a score so low that the
// path did not take it).
void Unigram::add_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  const Trie::Node whole = trie_->find(text);
  if (whole.ends_key()) {
    ids.push_back(static_cast<int32_t>(whole.value()));
    return;
  }
  const auto known = [&](char c) { return bytes_[static_cast<uint8_t>(c)] >= 0; };
  if (byte_fallback_ && std::all_of(text.begin(), text.end(), known)) {
    for (const char c : text) ids.push_back(bytes_[static_cast<uint8_t>(c)]);
  } else {
    ids.push_back(unknown_);
  }
}

void Unigram::encode(std::string_view word, SubwordModel::Buffers& buffers, std::vector<int32_t>& ids,
                     StopToken* stop) const {
  auto& b = static_cast<Buffers&>(buffers);
  const size_t size = word.size();
  require(size < ~uint32_t{0}, "a word of the text has ", size, " bytes");
  b.nodes.assign(size + 1, {0.0, 0, 0});
  const uint8_t* const text = utf8::begin(word);
  auto* const nodes = b.nodes.data();
  // The first of equal paths stays: the one whose last piece starts earlier.
  for (size_t start = 0, done = 0; start < size; ++done) {
    if (done % kPollEvery == kPollEvery - 1 && stop != nullptr && stop->poll()) return;
    const double until = nodes[start].score;
    const auto offer = [&](size_t end, double score, int32_t id) {
      if (nodes[end].size == 0 || score > nodes[end].score)
        nodes[end] = {score, id, static_cast<uint32_t>(end - start)};
    };
    const size_t next = start + size_of_char(text[start]);
    bool single = false;
    Trie::Node node = trie_->root();
    for (size_t p = start; p < size && trie_->step(node, text[p]);) {
      ++p;
      if (!node.ends_key()) continue;
      const uint32_t id = node.value();
      offer(p, scores_[id] + until, static_cast<int32_t>(id));
      single |= p == next;
    }
    if (!single) offer(next, unknown_score_ + until, unknown_);
    start = next;
  }
  b.ends.clear();
  for (size_t end = size; end > 0; end -= nodes[end].size) b.ends.push_back(static_cast<uint32_t>(end));
  size_t unknown_from = 0;  // of a run of unknown pieces that ends at `at`
  size_t at = 0;
  for (size_t i = b.ends.size(); i-- > 0;) {
    const size_t end = b.ends[i];
    if (nodes[end].id != unknown_) {
      if (unknown_from < at) add_unknown(word.substr(unknown_from, at - unknown_from), ids);
      ids.push_back(nodes[end].id);
      unknown_from = end;
    }
    at = end;
  }
  if (unknown_from < at) add_unknown(word.substr(unknown_from, at - unknown_from), ids);
}

}  // namespace embedkit
