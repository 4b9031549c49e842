#include "text/tokenizer.h"

#include <algorithm>
#include <new>
#include <stdexcept>

#include "check.h"

namespace embedkit {
namespace {

struct Bytes : Tokenizer::Buffers {
  explicit Bytes(int& alive) : alive_(alive) { ++alive_; }
  ~Bytes() override { --alive_; }
  bool oversized() const override { return longest > kMost; }

  static constexpr size_t kMost = 10;
  size_t longest = 0;
  int& alive_;
};

/// Gives a text's bytes; fails to make buffers, or to encode, on demand.
class ByteTokenizer final : public Tokenizer {
 public:
  size_t vocab_size() const override { return 256; }

  bool makes = true;
  bool encodes = true;
  mutable int alive = 0;

 protected:
  std::shared_ptr<Buffers> make_buffers() const override {
    if (!makes) throw std::bad_alloc();
    return std::make_shared<Bytes>(alive);
  }
  void encode_with(std::string_view text, Buffers& buffers, std::vector<int32_t>& ids, size_t,
                   StopToken*) const override {
    auto& own = static_cast<Bytes&>(buffers);
    own.longest = std::max(own.longest, text.size());
    if (!encodes) throw std::runtime_error("no");
    ids.insert(ids.end(), text.begin(), text.end());
  }
};

size_t length_of(const Tokenizer& tokenizer, std::string_view text, Tokenizer::Scratch& scratch) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, scratch, ids);
  return ids.size();
}

void test_a_failure_leaves_a_usable_scratch() {
  ByteTokenizer first, second;
  Tokenizer::Scratch scratch;
  CHECK_EQ(length_of(first, "abc", scratch), 3u);
  second.makes = false;
  CHECK_THROWS(length_of(second, "abc", scratch), std::bad_alloc);
  CHECK_EQ(length_of(first, "abcd", scratch), 4u);
  first.encodes = false;
  CHECK_THROWS(length_of(first, "abc", scratch), std::runtime_error);
  CHECK_EQ(first.alive, 0);
  first.encodes = true;
  CHECK_EQ(length_of(first, "abcde", scratch), 5u);
}

void test_buffers_of_a_long_text_are_not_kept() {
  ByteTokenizer tokenizer;
  Tokenizer::Scratch scratch;
  length_of(tokenizer, "abc", scratch);
  CHECK_EQ(tokenizer.alive, 1);
  length_of(tokenizer, "a text of many bytes", scratch);
  CHECK_EQ(tokenizer.alive, 0);
  CHECK_EQ(length_of(tokenizer, "abc", scratch), 3u);
  CHECK_EQ(tokenizer.alive, 1);
}

}  // namespace
}  // namespace embedkit

int main() {
  embedkit::test_a_failure_leaves_a_usable_scratch();
  embedkit::test_buffers_of_a_long_text_are_not_kept();
  return embedkit::test::report();
}
