#include "text/subword.h"

#include "base/stop.h"
#include "check.h"
#include "text/bpe.h"

namespace embedkit::test {
namespace {

// Cut at punctuation first, a text is worked on as a whole.
void stops_within_a_text() {
  BpeOptions bpe;
  bpe.vocab = {{"a", 0}, {" ", 1}, {",", 2}};
  SubwordOptions options;
  options.splits.push_back({SplitStep::Kind::kPunctuation});
  options.vocab_size = 3;
  const Subword tokenizer(std::make_shared<Bpe>(std::move(bpe)), std::move(options));
  std::string text = "a a,";
  while (text.size() < (size_t{1} << 20)) text += text;
  int asked = 0;
  StopToken stop([&] { return ++asked == 2; }, std::chrono::milliseconds(0));
  Subword::Scratch scratch;
  std::vector<int32_t> ids;
  tokenizer.encode(text, scratch, ids, Subword::kNoLimit, &stop);
  CHECK_EQ(asked, 2);
  CHECK(!ids.empty() && ids.size() < 20'000);
}

}  // namespace
}  // namespace embedkit::test

int main() {
  embedkit::test::stops_within_a_text();
  return embedkit::test::report();
}
