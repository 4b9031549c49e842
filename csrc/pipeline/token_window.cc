#include "pipeline/token_window.h"

#include <algorithm>

#include "base/error.h"
#include "base/first_error.h"

namespace embedkit {
namespace {

constexpr size_t kChunkTexts = 32;
constexpr size_t kChunkBytes = 8192;

/// Content tokens of a sequence.
size_t room(const TokenizeOptions& options) {
  return options.max_length - options.prefix_ids.size() - options.suffix_ids.size();
}

}  // namespace

void TokenizeOptions::validate() const {
  const size_t special = prefix_ids.size() + suffix_ids.size();
  require(max_length > special, "max_length is ", max_length, "; it must exceed the ", special,
          " special tokens");
  require(threads >= 1, "threads is ", threads, "; it must be at least 1");
}

void TokenWindow::begin(const TokenSource& source, const TokenizeOptions& options, size_t first,
                        size_t texts) {
  texts_ = texts;
  chunks_.clear();
  for (size_t i = 0; i < texts;) {
    Chunk chunk{first + i, 0, {}};
    for (size_t bytes = 0; i < texts && chunk.count < kChunkTexts && bytes < kChunkBytes; ++i, ++chunk.count)
      bytes += source.bytes(first + i);
    chunks_.push_back(std::move(chunk));
  }
  next_chunk_.store(0, std::memory_order_relaxed);
  arenas_.resize(static_cast<size_t>(options.threads));
  for (auto& arena : arenas_) arena.clear();
}

void TokenWindow::tokenize(const TokenSource& source, const TokenizeOptions& options, const Member& member,
                           Scratch& scratch, StopToken& stop) {
  const size_t limit = options.overflow == Overflow::kTruncate && !options.truncate_left
                           ? room(options) + 1
                           : WordPiece::kNoLimit;
  for (size_t c; (c = next_chunk_.fetch_add(1, std::memory_order_relaxed)) < chunks_.size();) {
    if (stop.poll()) return;
    Chunk& chunk = chunks_[c];
    for (size_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
      scratch.content.clear();
      source.append(i, scratch.words, scratch.content, limit, stop);
      add(i, static_cast<size_t>(member.index), scratch.content, options, chunk);
    }
  }
}

/// Cuts the content of a text to max_length and stores it with its special tokens.
void TokenWindow::add(size_t text, size_t member, const std::vector<int32_t>& content,
                      const TokenizeOptions& options, Chunk& chunk) {
  std::vector<int32_t>& arena = arenas_[member];
  const auto store = [&](size_t begin, size_t end) {
    const size_t offset = arena.size();
    arena.insert(arena.end(), options.prefix_ids.begin(), options.prefix_ids.end());
    arena.insert(arena.end(), content.begin() + static_cast<ptrdiff_t>(begin),
                 content.begin() + static_cast<ptrdiff_t>(end));
    arena.insert(arena.end(), options.suffix_ids.begin(), options.suffix_ids.end());
    const bool continues = options.overflow == Overflow::kWindow && begin > 0;
    chunk.sequences.push_back(
        {text, member, offset, arena.size() - offset, continues ? 0 : options.pool_skip});
  };
  const size_t size = content.size();
  const size_t most = room(options);
  if (size <= most) {
    store(0, size);
    return;
  }
  switch (options.overflow) {
    case Overflow::kTruncate:
      ++chunk.truncated;
      options.truncate_left ? store(size - most, size) : store(0, most);
      return;
    case Overflow::kError:
      throw InvalidArgument(concat("texts[", options.first_text + text, "] has ",
                                   size + options.max_length - most, " tokens, more than max_length ",
                                   options.max_length,
                                   "; shorten it, or pass on_overflow=\"truncate\" or \"window\""));
    case Overflow::kWindow:
      for (size_t begin = 0; begin < size; begin += most) store(begin, std::min(begin + most, size));
      return;
  }
}

void TokenWindow::finish() {
  sequences_.clear();
  tokens_ = 0;
  truncated_ = 0;
  for (const Chunk& chunk : chunks_) {
    sequences_.insert(sequences_.end(), chunk.sequences.begin(), chunk.sequences.end());
    truncated_ += chunk.truncated;
  }
  for (const Sequence& s : sequences_) tokens_ += s.length;
}

void tokenize(const TokenSource& source, const TokenizeOptions& options, StopToken& stop,
              TokenWindow& window) {
  options.validate();
  window.begin(source, options, 0, source.size());
  FirstError error(stop);
  ThreadPool::shared().run(options.threads, [&](Member member) {
    error.guard([&] {
      TokenWindow::Scratch scratch;
      window.tokenize(source, options, member, scratch, stop);
    });
  });
  error.rethrow();
  if (stop.poll()) throw Interrupted();
  window.finish();
}

size_t pack(const TokenWindow& window, std::span<const int64_t> order, int32_t padding_idx, size_t vocab_size,
            const PackTarget& target) {
  const std::vector<Sequence>& sequences = window.sequences();
  require(target.cu_seqlens.size() > order.size(), "cu_seqlens has room for ", target.cu_seqlens.size(),
          " bounds, ", order.size(), " sequences have one more than there are of them");
  require(target.positions.empty() || target.positions.size() == target.ids.size(), "positions has ",
          target.positions.size(), " elements, ids ", target.ids.size());
  size_t used = 0;
  target.cu_seqlens[0] = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    require(order[i] >= 0 && static_cast<size_t>(order[i]) < sequences.size(), "sequence ", order[i],
            " of a window of ", sequences.size());
    const Sequence& s = sequences[static_cast<size_t>(order[i])];
    require(s.length <= target.ids.size() - used, "the sequences have more tokens than the ",
            target.ids.size(), " that ids has room for");
    const int32_t* ids = window.ids(s);
    int32_t position = padding_idx;
    for (size_t t = 0; t < s.length; ++t) {
      const int32_t id = ids[t];
      require(id >= 0 && static_cast<size_t>(id) < vocab_size, "token id ", id,
              " is outside the model's table of ", vocab_size, " tokens; the tokenizer is another model's");
      target.ids[used + t] = id;
      if (!target.positions.empty())
        target.positions[used + t] = id == padding_idx ? padding_idx : ++position;
    }
    used += s.length;
    target.cu_seqlens[i + 1] = static_cast<int32_t>(used);
  }
  std::fill(target.cu_seqlens.begin() + static_cast<ptrdiff_t>(order.size()) + 1, target.cu_seqlens.end(),
            static_cast<int32_t>(used));
  std::fill(target.ids.begin() + static_cast<ptrdiff_t>(used), target.ids.end(), 0);
  if (!target.positions.empty())
    std::fill(target.positions.begin() + static_cast<ptrdiff_t>(used), target.positions.end(), 0);
  return used;
}

}  // namespace embedkit
