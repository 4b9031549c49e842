#include "text/utf8.h"

#include "check.h"

namespace embedkit {
namespace {

void round_trip() {
  for (char32_t c = 0; c < 0x110000; ++c) {
    uint8_t bytes[utf8::kMaxBytes];
    const size_t size = utf8::encode(c, bytes);
    const uint8_t* p = bytes;
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    CHECK(utf8::decode(p, bytes + size) == (surrogate ? utf8::kInvalid : c));
    CHECK_EQ(static_cast<size_t>(p - bytes), surrogate ? 0 : size);
    for (size_t cut = 1; cut < size; ++cut) {
      p = bytes;
      CHECK(utf8::decode(p, bytes + cut) == utf8::kInvalid);
    }
  }
}

// Of all sequences of four bytes whose last two are trailing ones or edges of it, exactly the encoded ones
// decode.
void malformed() {
  size_t accepted = 0;
  for (unsigned first = 0x80; first < 0x100; ++first) {
    for (unsigned second = 0; second < 0x100; ++second) {
      for (const unsigned third : {0x7Fu, 0x80u, 0xBFu, 0xC0u}) {
        const uint8_t bytes[] = {static_cast<uint8_t>(first), static_cast<uint8_t>(second),
                                 static_cast<uint8_t>(third), 0x80};
        const uint8_t* p = bytes;
        const char32_t c = utf8::decode(p, bytes + 4);
        if (c == utf8::kInvalid) continue;
        ++accepted;
        uint8_t again[utf8::kMaxBytes];
        const size_t size = utf8::encode(c, again);
        CHECK_EQ(size, static_cast<size_t>(p - bytes));
        for (size_t i = 0; i < size; ++i) CHECK_EQ(+again[i], +bytes[i]);
      }
    }
  }
  // Two bytes: 30 leads × 64, third byte free (4). Three: (16 × 64 - 32 overlong - 32 surrogates) × 2.
  // Four: (4 × 64 + 16 - 16 overlong) × 2.
  CHECK_EQ(accepted, size_t{30 * 64 * 4 + (16 * 64 - 64) * 2 + (4 * 64) * 2});
  CHECK_EQ(utf8::find_invalid("aé\xffz"), size_t{3});
  CHECK_EQ(utf8::find_invalid("aéz中"), std::string_view::npos);
}

}  // namespace
}  // namespace embedkit

int main() {
  embedkit::round_trip();
  embedkit::malformed();
  return embedkit::test::report();
}
