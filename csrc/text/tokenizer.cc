#include "text/tokenizer.h"

#include <atomic>

namespace embedkit {
namespace {

std::atomic<uint64_t> made{0};

}  // namespace

Tokenizer::Tokenizer() : number_(made.fetch_add(1, std::memory_order_relaxed) + 1) {}

void Tokenizer::encode(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids, size_t limit,
                       StopToken* stop) const {
  if (scratch.owner_ != number_) {
    scratch.drop();  // before new ones are made, which may fail
    scratch.buffers_ = make_buffers();
    scratch.owner_ = number_;
  }
  try {
    encode_with(text, *scratch.buffers_, ids, limit, stop);
  } catch (...) {
    scratch.drop();
    throw;
  }
  if (scratch.buffers_->oversized()) scratch.drop();
}

}  // namespace embedkit
