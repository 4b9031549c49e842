// The normal forms of Unicode (UAX 15), with the data of `tokenizers`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace embedkit {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

class Composer {
 public:
  /// Appends `text` in the form to `out`; false, with nothing appended, if it has that form already. Throws
  /// InvalidArgument if it is not UTF-8.
  bool normalize(std::string_view text, NormalForm form, std::string& out);

 private:
  struct Mark {
    char32_t c;
    uint8_t rank;  ///< unicode::Record::rank
  };

  void add(char32_t c, NormalForm form);
  void flush(bool compose, std::string& out);

  std::vector<Mark> segment_;  // decomposed; what stands before is done
};

}  // namespace embedkit
