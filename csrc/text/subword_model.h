// A model of words: one word of normalized text in, token ids out.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/stop.h"

namespace embedkit {

class SubwordModel {
 public:
  struct Buffers {
    virtual ~Buffers() = default;
  };

  virtual ~SubwordModel() = default;
  virtual std::unique_ptr<Buffers> make_buffers() const = 0;

  /// Appends the ids of `word`, which is valid UTF-8 and not empty. Ends early, with none or part of them,
  /// once stopped.
  virtual void encode(std::string_view word, Buffers& buffers, std::vector<int32_t>& ids,
                      StopToken* stop) const = 0;

  /// A string at which every word may be cut in two without changing the ids, unless two of it meet there:
  /// empty if there is none.
  virtual std::string_view boundary() const { return {}; }
};

/// The token that stands for a byte where a character is unknown and the model has byte_fallback.
inline std::string byte_token(unsigned byte) {
  char text[8];
  std::snprintf(text, sizeof text, "<0x%02X>", byte);
  return text;
}

}  // namespace embedkit
