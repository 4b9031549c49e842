// Random vocabularies, merges, scores, character maps and texts; BPE and Unigram are compared with what one
// would write down first: subword_fuzz [iterations [seed]].
#include <algorithm>
#include <map>
#include <memory>
#include <random>

#include "base/error.h"
#include "check.h"
#include "text/subword.h"
#include "text/utf8.h"

namespace embedkit::test {
namespace {

using Random = std::mt19937_64;
using Ids = std::vector<int32_t>;

size_t below(Random& random, size_t bound) { return random() % bound; }

// Those after the first kWellFormed are not UTF-8.
const std::vector<std::string> kFragments = {"a",
                                             "b",
                                             "ab",
                                             "ba",
                                             "aab",
                                             "1",
                                             " ",
                                             "  ",
                                             "\n",
                                             "\r\n",
                                             "'s",
                                             "'LL",
                                             "\u2581",
                                             "\u00e9",
                                             "e\u0301",
                                             "\u0301",
                                             "\u0340",
                                             "\u0344",
                                             "\u1e69",
                                             "\u0327",
                                             "\ufb01",
                                             "\uac00",
                                             "\u1100",
                                             "\u1161",
                                             "\u11a8",
                                             "\u4e2d",
                                             "\u0915",
                                             "\u094d",
                                             "\u200d",
                                             "\u00a9",
                                             "\u0600",
                                             "\U0001f44d",
                                             "\U0001d165",
                                             "<m>",
                                             "<M>",
                                             std::string(1, '\0'),
                                             "\x80",
                                             "\xc3",
                                             "\xe4\xb8",
                                             "\xed\xa0\x80",
                                             "\xf4\x90\x80\x80",
                                             "\xff"};
const size_t kWellFormed = kFragments.size() - 6;

std::string random_text(Random& random, size_t most, bool well_formed) {
  std::string text;
  for (size_t count = below(random, most); count > 0; --count) {
    const size_t bound = !well_formed && below(random, 40) == 0 ? kFragments.size() : kWellFormed;
    text += kFragments[below(random, bound)];
  }
  return text;
}

std::string bytes_token(uint8_t byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
}

BpeOptions random_bpe(Random& random) {
  BpeOptions options;
  std::map<std::string, int32_t> ids;
  const auto add = [&](const std::string& token) {
    if (ids.emplace(token, static_cast<int32_t>(ids.size() * 3)).second)
      options.vocab.emplace_back(token, ids[token]);
  };
  for (const char* token : {"<unk>", "a", "b", "1", " ", "\u2581", "\u00e9", "\u4e2d"}) {
    if (token[0] == '<' || below(random, 5) != 0) add(token);
  }
  options.byte_fallback = below(random, 3) == 0;
  if (options.byte_fallback) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (below(random, 20) != 0) add(bytes_token(static_cast<uint8_t>(byte)));
    }
  }
  for (size_t count = below(random, 60); count > 0; --count) {
    const std::string left = options.vocab[below(random, options.vocab.size())].first;
    const std::string right = options.vocab[below(random, options.vocab.size())].first;
    if (left.size() + right.size() > 24) continue;
    add(left + right);
    options.merges.emplace_back(left, right);
  }
  options.has_unknown = below(random, 4) != 0;
  options.unknown_token = "<unk>";
  options.fuse_unknown = below(random, 2) == 0;
  options.ignore_merges = below(random, 4) == 0;
  return options;
}

Ids naive_bpe(const BpeOptions& options, const std::string& word) {
  if (word.empty()) return {};
  std::map<std::string, int32_t> ids(options.vocab.begin(), options.vocab.end());
  std::map<int32_t, std::string> tokens;
  for (const auto& [token, id] : options.vocab) tokens[id] = token;
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t i = 0; i < options.merges.size(); ++i) ranks[options.merges[i]] = i;
  if (options.ignore_merges && ids.contains(word)) return {ids[word]};
  std::vector<std::string> symbols;
  bool pending = false;
  for (const uint8_t* p = utf8::begin(word); p < utf8::end(word);) {
    const uint8_t* const at = p;
    utf8::decode(p, utf8::end(word));
    const std::string c(at, p);
    const auto has = [&](char byte) { return ids.contains(bytes_token(static_cast<uint8_t>(byte))); };
    if (ids.contains(c)) {
      if (pending) symbols.emplace_back("<unk>");
      pending = false;
      symbols.push_back(c);
    } else if (options.byte_fallback && std::all_of(c.begin(), c.end(), has)) {
      for (const char byte : c) symbols.push_back(bytes_token(static_cast<uint8_t>(byte)));
    } else if (options.has_unknown) {
      if (pending && !options.fuse_unknown) symbols.emplace_back("<unk>");
      pending = true;
    }
  }
  if (pending) symbols.emplace_back("<unk>");
  while (true) {
    size_t best = symbols.size(), rank = options.merges.size();
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto place = ranks.find({symbols[i], symbols[i + 1]});
      if (place != ranks.end() && place->second < rank) {
        rank = place->second;
        best = i;
      }
    }
    if (best == symbols.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  Ids out;
  for (const std::string& symbol : symbols) out.push_back(ids[symbol]);
  return out;
}

UnigramOptions random_unigram(Random& random) {
  UnigramOptions options;
  options.vocab = {"<unk>"};
  for (size_t count = below(random, 80); count > 0; --count) {
    const std::string token = random_text(random, 4, true);
    if (!token.empty()) options.vocab.push_back(token);
  }
  options.byte_fallback = below(random, 3) == 0;
  if (options.byte_fallback) {
    for (unsigned byte = 0; byte < 256; ++byte)
      options.vocab.push_back(bytes_token(static_cast<uint8_t>(byte)));
  }
  for (size_t i = 0; i < options.vocab.size(); ++i)
    options.scores.push_back(-static_cast<double>(below(random, 40)) / 4);
  return options;
}

// The score of the best path, over every cut between characters.
double best_score(const UnigramOptions& options, const std::string& word) {
  std::map<std::string, double> scores;
  double least = 0;
  for (size_t i = 0; i < options.vocab.size(); ++i) {
    scores[options.vocab[i]] = options.scores[i];
    least = std::min(least, options.scores[i]);
  }
  std::vector<double> best(word.size() + 1, -1e300);
  best[0] = 0;
  for (size_t begin = 0; begin < word.size();) {
    const uint8_t* p = utf8::begin(word) + begin;
    utf8::decode(p, utf8::end(word));
    const auto next = static_cast<size_t>(p - utf8::begin(word));
    for (size_t end = begin + 1; end <= word.size(); ++end) {
      const auto place = scores.find(word.substr(begin, end - begin));
      if (place != scores.end()) best[end] = std::max(best[end], best[begin] + place->second);
    }
    if (!scores.contains(word.substr(begin, next - begin)))
      best[next] = std::max(best[next], best[begin] + least - 10);
    begin = next;
  }
  return best.back();
}

Ids encode(const Tokenizer& tokenizer, const std::string& text, size_t limit = Tokenizer::kNoLimit) {
  Tokenizer::Scratch scratch;
  Ids ids;
  tokenizer.encode(text, scratch, ids, limit);
  return ids;
}

void check_models(Random& random) {
  const BpeOptions options = random_bpe(random);
  const Bpe bpe(options);
  const auto buffers = bpe.make_buffers();
  const UnigramOptions pieces = random_unigram(random);
  const Unigram unigram(pieces);
  const auto other = unigram.make_buffers();
  for (int i = 0; i < 20; ++i) {
    const std::string word = random_text(random, below(random, 10) == 0 ? 200 : 12, true);
    if (word.empty()) continue;
    Ids ids;
    bpe.encode(word, *buffers, ids, nullptr);
    CHECK(ids == naive_bpe(options, word));
    ids.clear();
    unigram.encode(word, *other, ids, nullptr);
    CHECK(!ids.empty());
    if (pieces.byte_fallback) continue;
    double score = 0;  // without unknown pieces, which are fused
    for (const int32_t id : ids) score += id == 0 ? -1e9 : pieces.scores[static_cast<size_t>(id)];
    CHECK(score <= best_score(pieces, word) + 1e-9);
    if (score > -1e8) CHECK(score >= best_score(pieces, word) - 1e-9);
  }
}

SubwordOptions random_steps(Random& random) {
  using N = NormalizerStep::Kind;
  using S = SplitStep::Kind;
  SubwordOptions options;
  const N normalizers[] = {N::kNfc, N::kNfd, N::kNfkc, N::kNfkd, N::kLowercase, N::kStripAccents, N::kNmt};
  for (size_t count = below(random, 4); count > 0; --count) {
    NormalizerStep step{normalizers[below(random, 7)], "", "", false, false};
    switch (below(random, 8)) {
      case 0:
        step = {N::kReplace, " ", "\u2581", false, false};
        break;
      case 1:
        step = {below(random, 2) == 0 ? N::kReplaceRuns : N::kReplaceBreaks, "", " ", false, false};
        break;
      case 2:
        step = {N::kStrip, "", "", true, true};
        break;
      case 3:
        step = {N::kPrepend, "", "\u2581", false, false};
        break;
      default:
        break;
    }
    options.normalizer.push_back(step);
  }
  const S splits[] = {S::kPattern,     S::kString,    S::kWhitespace, S::kDigits,
                      S::kPunctuation, S::kMetaspace, S::kPrefixSpace};
  for (size_t count = below(random, 4); count > 0; --count) {
    SplitStep step{splits[below(random, 7)]};
    step.pattern = static_cast<SplitPattern>(below(random, 4));
    step.behavior = static_cast<SplitBehavior>(below(random, 5));
    if (step.kind == S::kMetaspace) step.behavior = SplitBehavior::kMergedWithNext;
    step.scheme = below(random, 2) == 0 ? PrependScheme::kAlways : PrependScheme::kNever;
    step.text = below(random, 2) == 0 ? " " : "\u2581";
    options.splits.push_back(step);
  }
  const bool normalized = below(random, 3) == 0;
  options.added_tokens.push_back({"<m>", 7, false, below(random, 2) == 0, below(random, 2) == 0, normalized});
  return options;
}

void check_texts(Random& random) {
  const auto model = std::make_shared<const Bpe>(random_bpe(random));
  const Subword tokenizer(model, random_steps(random));
  for (int i = 0; i < 20; ++i) {
    const std::string text = random_text(random, below(random, 30) == 0 ? 3'000 : 30, false);
    if (utf8::find_invalid(text) != std::string::npos) {
      CHECK_THROWS(encode(tokenizer, text), InvalidArgument);
      continue;
    }
    const Ids whole = encode(tokenizer, text);
    const size_t limit = below(random, whole.size() + 2);
    const Ids first = encode(tokenizer, text, limit);
    CHECK(first.size() >= std::min(limit, whole.size()) && first.size() <= whole.size());
    CHECK(std::equal(first.begin(), first.end(), whole.begin()));
  }
}

// A damaged map is refused or harmless.
void check_charsmaps(Random& random) {
  std::string bytes;
  const size_t units = 1 + below(random, 600);
  const auto word = [&](uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(value >> shift));
  };
  word(below(random, 10) == 0 ? static_cast<uint32_t>(random()) : static_cast<uint32_t>(units * 4));
  for (size_t i = 0; i < units; ++i) {
    // Often what passes for a unit: its label, perhaps a leaf, an offset close by.
    const auto label = static_cast<uint32_t>(i & 0xFF);
    word(below(random, 4) == 0 ? static_cast<uint32_t>(random())
                               : static_cast<uint32_t>(below(random, 700)) << 10 |
                                     static_cast<uint32_t>(below(random, 2)) << 8 | label);
  }
  bytes += random_text(random, 8, below(random, 4) != 0);
  if (below(random, 8) == 0) bytes.resize(below(random, bytes.size() + 1));
  try {
    const Charsmap map(bytes);
    for (int i = 0; i < 10; ++i) {
      const std::string text = random_text(random, 30, true);
      std::string out;
      map.apply(text, out, size_t{1} << 20);
      CHECK_EQ(utf8::find_invalid(out), std::string::npos);
    }
  } catch (const InvalidArgument&) {
  }
}

int run(size_t iterations, uint64_t seed) {
  Random random(seed);
  const Charsmap circle(std::string("\x08\0\0\0\0\0\x02\0\x81\x04\x02\0", 12));  // a path that leads back
  for (size_t done = 0; done < iterations; done += 40) {
    check_models(random);
    check_texts(random);
    check_charsmaps(random);
  }
  return report();
}

}  // namespace
}  // namespace embedkit::test

int main(int argc, char** argv) {
  const size_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20'000;
  return embedkit::test::run(iterations, argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
}
