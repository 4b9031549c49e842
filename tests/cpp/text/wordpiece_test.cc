#include "text/wordpiece.h"

#include <thread>

#include "base/error.h"
#include "base/stop.h"
#include "check.h"
#include "text/naive.h"

namespace embedkit::test {
namespace {

using Ids = std::vector<int32_t>;

WordPieceOptions small() {
  WordPieceOptions options;
  options.vocab = {"[UNK]", "[SEP]", "the", "##s", "cat", "##ti",
                   "##tis", "##t",   "e",   "中",  ",",   "\U00016ff0"};
  options.added_tokens.push_back({"[SEP]", 1, false, false, false, false});
  return options;
}

void known_texts() {
  const WordPiece tokenizer(small());
  CHECK_EQ(tokenizer.vocab_size(), size_t{12});
  CHECK(encode(tokenizer, "The CATS,the") == (Ids{2, 4, 3, 10, 2}));
  CHECK(encode(tokenizer, "the[SEP]the [sep]") == (Ids{2, 1, 2, 0, 0, 0}));
  CHECK(encode(tokenizer, "cattis cattist catx") == (Ids{4, 6, 4, 6, 7, 0}));
  CHECK(encode(tokenizer, "É e\u0301中e") == (Ids{8, 8, 9, 8}));
  CHECK(encode(tokenizer, "") == Ids{});
  CHECK(encode(tokenizer, " \t\u200b\u3000") == Ids{});
  CHECK(encode(tokenizer, std::string("t\0he", 4)) == Ids{2});
}

void refused() {
  WordPieceOptions options = small();
  options.vocab.clear();
  CHECK_THROWS(WordPiece(options), InvalidArgument);
  options.vocab = {"a"};
  CHECK_THROWS(WordPiece(options), InvalidArgument);
  options.vocab = {"[UNK]", "a", "a"};
  CHECK_THROWS(WordPiece(options), InvalidArgument);
  options.vocab = {"[UNK]", "\xff"};
  CHECK_THROWS(WordPiece(options), InvalidArgument);
  options = small();
  options.added_tokens.push_back({"\u200b", 2, false, false, false, true});  // normalization removes it
  CHECK_THROWS(WordPiece(options), InvalidArgument);
  const WordPiece tokenizer(small());
  for (const char* text : {"\xff", "the \xe4\xb8", "a\xed\xa0\x80", "\xc3[SEP]"}) {
    CHECK_THROWS(encode(tokenizer, text), InvalidArgument);
  }
  CHECK(encode(tokenizer, "the") == Ids{2});
}

// The first ids under a limit are those of the whole text, and what follows is not read.
void limits() {
  for (const bool normalized : {false, true}) {
    WordPieceOptions options = small();
    if (normalized) options.added_tokens.push_back({"<e>", 8, false, true, true, true});
    const WordPiece tokenizer(options);
    std::string text = "the cats, \u00e9[SEP] 中 cattis <e> < ";
    for (int i = 0; i < 3; ++i) text += text;
    const Ids whole = encode(tokenizer, text);
    for (size_t limit = 0; limit < whole.size() + 2; ++limit) {
      const Ids first = encode(tokenizer, text, limit);
      CHECK(first.size() >= std::min(limit, whole.size()));
      CHECK(first.size() <= limit + 3);  // a word of three pieces
      CHECK(std::equal(first.begin(), first.end(), whole.begin()));
      CHECK(limit >= whole.size() || first.size() > limit);  // so that the caller sees that there is more
    }
  }
  const WordPiece tokenizer(small());
  std::string text = "the ";
  while (text.size() < (size_t{1} << 20)) text += text;
  text += "\xff";
  CHECK_EQ(encode(tokenizer, text, 10).size(), size_t{11});
  CHECK_THROWS(encode(tokenizer, text), InvalidArgument);
}

// A text with normalized added tokens is worked on as a whole.
void stops_within_a_text() {
  WordPieceOptions options = small();
  options.added_tokens.push_back({"<e>", 8, false, false, false, true});
  const WordPiece tokenizer(options);
  std::string text = "the cats ";
  while (text.size() < (size_t{1} << 20)) text += text;
  int asked = 0;
  StopToken stop([&] { return ++asked == 2; }, std::chrono::milliseconds(0));
  WordPiece::Scratch scratch;
  Ids ids;
  tokenizer.encode(text, scratch, ids, WordPiece::kNoLimit, &stop);
  CHECK_EQ(asked, 2);
  CHECK(!ids.empty() && ids.size() < 20'000);
}

// Windows of a long text, cut at spaces, between marks, inside added tokens.
void long_texts() {
  const WordPieceOptions options = small();
  const WordPiece tokenizer(options);
  const NaiveWordPiece naive(options);
  for (const std::string unit :
       {"the cats[SEP], ", "[SEP]", "[SE P]", "é\U00016ff0\u0301 ", "中", " ", "the,cats"}) {
    for (size_t shift = 0; shift < 6; ++shift) {
      std::string text(shift, 'e');
      while (text.size() < 70'000) text += unit;
      CHECK(encode(tokenizer, text) == naive.encode(text));
    }
  }
}

// Words without end take no memory beyond the limit of a word.
void words_without_end() {
  const WordPiece tokenizer(small());
  for (const std::string unit : {"a", "é", "\u0301", "\U00016ff0", "e\u200b", "\u0327\U00016ff0"}) {
    std::string text;
    while (text.size() < 3'000'000) text += unit;
    const Ids ids = encode(tokenizer, text + " the");
    CHECK(ids == (unit == "\u0301" ? Ids{2} : Ids{0, 2}));
  }
}

// Linear in the text: each of these takes well under a second, and would take minutes if it were quadratic.
void many_matches() {
  const WordPiece tokenizer(small());
  for (const std::string unit : {"[SEP]", "[SEP", "[", "[SEP]a", ",", "  ", "cattis"}) {
    std::string text;
    while (text.size() < 3'000'000) text += unit;
    CHECK(encode(tokenizer, text).size() <= text.size());
  }
}

void threads() {
  const WordPiece tokenizer(small());
  const std::string text = "The cats, \u00e9\u0301 [SEP] cattis 中 ";
  const Ids expected = encode(tokenizer, text);
  std::vector<std::thread> threads;
  std::vector<int> equal(4);
  for (int& mine : equal) {
    threads.emplace_back([&] {
      WordPiece::Scratch scratch;
      for (int i = 0; i < 2'000; ++i) {
        Ids ids;
        tokenizer.encode(text, scratch, ids);
        mine += ids == expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : equal) CHECK_EQ(count, 2'000);
}

}  // namespace
}  // namespace embedkit::test

int main() {
  using namespace embedkit::test;
  known_texts();
  refused();
  limits();
  stops_within_a_text();
  long_texts();
  words_without_end();
  many_matches();
  threads();
  return report();
}
