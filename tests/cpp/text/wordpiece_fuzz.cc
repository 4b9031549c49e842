// Mutates texts at random and compares with the naive tokenizer: wordpiece_fuzz [iterations [seed]].
#include <algorithm>
#include <random>

#include "base/error.h"
#include "check.h"
#include "text/naive.h"

namespace embedkit::test {
namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t bound) { return random() % bound; }

// Those after the first kWellFormed are not UTF-8.
const std::vector<std::string>& fragments() {
  static const std::vector<std::string> all = {" ",
                                               "a",
                                               "b",
                                               "ab",
                                               "A",
                                               "ing",
                                               "[SEP]",
                                               "[SE",
                                               "[",
                                               "]",
                                               "-",
                                               ".",
                                               "\n",
                                               "\t",
                                               std::string(1, '\0'),
                                               "\x7f",
                                               "é",
                                               "e\u0301",
                                               "\u0301",
                                               "\u0327",
                                               "\u0345",
                                               "\U00016ff0",
                                               "\U0001d165",
                                               "\u302e",
                                               "İ",
                                               "ß",
                                               "Σ",
                                               "ǅ",
                                               "≠",
                                               "\u1fef",
                                               "\u037e",
                                               "中",
                                               "文",
                                               "\uf900",
                                               "\U0002f800",
                                               "が",
                                               "가",
                                               "각",
                                               "ж",
                                               "Й",
                                               "\u200b",
                                               "\ufeff",
                                               "\ufffd",
                                               "\u3000",
                                               "\u2028",
                                               "\u0085",
                                               "\u00a0",
                                               "。",
                                               "“",
                                               "👍",
                                               "\ue000",
                                               "\U000e0001",
                                               "\u0378",
                                               "ᄀ",
                                               "ᅡ",
                                               "\x80",
                                               "\xc3",
                                               "\xe4\xb8",
                                               "\xf0\x9f",
                                               "\xed\xa0\x80",
                                               "\xf4\x90\x80\x80",
                                               "\xc0\x80",
                                               "\xff"};
  return all;
}

const size_t kWellFormed = fragments().size() - 8;

std::string random_text(Random& random) {
  std::string text;
  const size_t count = below(random, below(random, 50) == 0 ? 400 : 12);
  for (size_t i = 0; i < count; ++i) {
    text += fragments()[below(random, below(random, 60) == 0 ? fragments().size() : kWellFormed)];
  }
  for (size_t mutations = below(random, 20) == 0 ? 1 + below(random, 3) : 0; mutations > 0 && !text.empty();
       --mutations) {
    const size_t at = below(random, text.size());
    switch (below(random, 3)) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + below(random, 3));
        break;
      default:
        text.insert(at, text.substr(below(random, text.size()), 1 + below(random, 120)));
    }
  }
  return text;
}

WordPieceOptions random_options(Random& random) {
  WordPieceOptions options;
  options.clean_text = below(random, 4) != 0;
  options.handle_chinese_chars = below(random, 4) != 0;
  options.strip_accents = below(random, 4) != 0;
  options.lowercase = below(random, 4) != 0;
  options.continuing_prefix = below(random, 8) == 0 ? "" : "##";
  options.max_chars_per_word = below(random, 3) == 0 ? below(random, 8) : 100;
  std::vector<std::string> vocab = {"[UNK]", "[SEP]"};
  const size_t size = below(random, 120);
  for (size_t i = 0; i < size; ++i) {
    std::string token = below(random, 2) == 0 ? options.continuing_prefix : "";
    for (size_t part = 1 + below(random, 3); part > 0; --part) {
      token += fragments()[below(random, kWellFormed)];
    }
    vocab.push_back(token);
  }
  std::sort(vocab.begin() + 2, vocab.end());
  vocab.erase(std::unique(vocab.begin() + 2, vocab.end()), vocab.end());
  std::erase_if(vocab, [&](const std::string& token) {
    return &token > &vocab[1] && (token == "[SEP]" || token == "[UNK]");
  });
  options.vocab = std::move(vocab);
  options.added_tokens.push_back({"[SEP]", 1, false, false, false, false});
  if (below(random, 2) == 0) {
    const auto id = static_cast<int32_t>(options.vocab.size());
    options.added_tokens.push_back(
        {fragments()[1 + below(random, 40)] + "b", id, false, false, false, false});
  }
  return options;
}

void check_text(const WordPiece& tokenizer, const NaiveWordPiece& naive, const std::string& text,
                Random& random, WordPiece::Scratch& scratch) {
  std::vector<int32_t> ids = {-7};
  if (utf8::find_invalid(text) != std::string::npos) {
    CHECK_THROWS(tokenizer.encode(text, scratch, ids), InvalidArgument);
    return;
  }
  tokenizer.encode(text, scratch, ids);
  CHECK_EQ(ids.front(), -7);
  ids.erase(ids.begin());
  CHECK(ids == naive.encode(text));
  CHECK(ids == encode(tokenizer, text));

  const size_t limit = below(random, ids.size() + 2);
  std::vector<int32_t> first = encode(tokenizer, text, limit);
  CHECK(first.size() >= std::min(limit, ids.size()) && first.size() <= ids.size());
  CHECK(std::equal(first.begin(), first.end(), ids.begin()));
}

int run(size_t iterations, uint64_t seed) {
  Random random(seed);
  WordPiece::Scratch scratch;
  for (size_t done = 0; done < iterations;) {
    const WordPieceOptions options = random_options(random);
    const WordPiece tokenizer(options);
    const NaiveWordPiece naive(options);
    for (int i = 0; i < 200 && done < iterations; ++i, ++done) {
      check_text(tokenizer, naive, random_text(random), random, scratch);
    }
  }
  return report();
}

}  // namespace
}  // namespace embedkit::test

int main(int argc, char** argv) {
  const size_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20'000;
  return embedkit::test::run(iterations, argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
}
