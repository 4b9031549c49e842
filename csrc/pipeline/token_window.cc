#include "pipeline/token_window.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/first_error.h"

namespace embedkit {
namespace {

constexpr size_t kChunkTexts = 32;
constexpr size_t kChunkBytes = 8192;
constexpr size_t kKeptIds = size_t{1} << 18;  // of a text whose buffer is kept for the next one

/// Content tokens of a sequence.
size_t room(const TokenizeOptions& options) { return options.max_length - options.special_tokens(); }

/// Ids that a source need not go beyond.
size_t limit(const TokenizeOptions& options) {
  return options.overflow == Overflow::kTruncate && !options.truncate_left ? room(options) + 1
                                                                           : Tokenizer::kNoLimit;
}

/// Leading tokens left out of the pooling in the sequence of content tokens `begin` up to `end`, of `size`.
size_t pool_skip(const TokenizeOptions& options, size_t size, size_t begin, size_t end) {
  const size_t most = options.max_length - options.suffix_ids.size();
  if (options.overflow != Overflow::kWindow) return std::min(options.pool_skip, most);
  const size_t prefix = options.prefix_ids.size();
  const size_t prompt = options.pool_skip - std::min(options.pool_skip, prefix);
  if (begin > 0 && begin >= prompt) return 0;
  // A window of nothing but the prompt counts for nothing, except the last one: a text has a vector.
  if (end <= prompt && end < size) return options.max_length;
  return std::min(options.pool_skip - begin, most);
}

/// How many tokens of each text of a pair are kept: `truncation="longest_first"` of the `tokenizers` package,
/// whose odd token goes to the longer text (to the second if both are equally long).
std::pair<size_t, size_t> fit_pair(size_t first, size_t second, size_t room) {
  if (first + second <= room) return {first, second};
  const size_t shorter = std::min({first, second, room / 2});
  return first > second ? std::pair{room - shorter, shorter} : std::pair{shorter, room - shorter};
}

/// Throws InvalidArgument for an id that the model does not know.
void check_ids(std::span<const int32_t> ids, size_t vocab_size) {
  uint32_t largest = 0;  // a negative id is larger than any other
  for (const int32_t id : ids) largest = std::max(largest, static_cast<uint32_t>(id));
  require(ids.empty() || largest < vocab_size, "token id ", static_cast<int32_t>(largest),
          " is outside the model's table of ", vocab_size, " tokens; the tokenizer is another model's");
}

void count_positions(std::span<const int32_t> ids, int32_t padding_idx, std::span<int32_t> positions) {
  if (padding_idx < 0) {
    std::iota(positions.begin(), positions.end(), 0);
    return;
  }
  int32_t position = padding_idx;
  for (size_t t = 0; t < ids.size(); ++t) positions[t] = ids[t] == padding_idx ? padding_idx : ++position;
}

}  // namespace

void TokenizeOptions::validate() const {
  const size_t special = special_tokens();
  require(max_length > special && max_length < size_t{1} << 31, "max_length is ", max_length,
          "; it must exceed the ", special, " special tokens, and be below 2^31");
  require(threads >= 1, "threads is ", threads, "; it must be at least 1");
  if (!pair) return;
  require(overflow == Overflow::kTruncate && pool_skip == 0,
          "a pair of texts that is too long can only be truncated");
  require(!pair->typed || (pair->prefix_types.size() == prefix_ids.size() &&
                           pair->between_types.size() == pair->between_ids.size() &&
                           pair->suffix_types.size() == suffix_ids.size()),
          "the pair template has not one token type for each of its ids");
}

size_t TokenizeOptions::special_tokens() const {
  return prefix_ids.size() + suffix_ids.size() + (pair ? pair->between_ids.size() : 0);
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

void TokenWindow::tokenize(const TokenSource& source, const TokenizeOptions& options, const Worker& worker,
                           Scratch& scratch, StopToken& stop) {
  const auto index = static_cast<size_t>(worker.index);
  for (size_t c; (c = next_chunk_.fetch_add(1, std::memory_order_relaxed)) < chunks_.size();) {
    if (stop.poll()) return;
    Chunk& chunk = chunks_[c];
    for (size_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
      scratch.content.clear();
      source.append(i, scratch.words, scratch.content, limit(options), stop);
      options.pair ? add_pair(source, i, index, scratch, options, chunk, stop)
                   : add(i, index, scratch.content, options, chunk);
      if (scratch.content.size() > kKeptIds) std::vector<int32_t>().swap(scratch.content);
    }
  }
}

/// Cuts the content of a text to max_length and stores it with its special tokens.
void TokenWindow::add(size_t text, size_t worker, const std::vector<int32_t>& content,
                      const TokenizeOptions& options, Chunk& chunk) {
  std::vector<int32_t>& arena = arenas_[worker];
  const auto store = [&](size_t begin, size_t end) {
    const size_t offset = arena.size();
    arena.insert(arena.end(), options.prefix_ids.begin(), options.prefix_ids.end());
    arena.insert(arena.end(), content.begin() + static_cast<ptrdiff_t>(begin),
                 content.begin() + static_cast<ptrdiff_t>(end));
    arena.insert(arena.end(), options.suffix_ids.begin(), options.suffix_ids.end());
    const size_t length = arena.size() - offset;
    chunk.sequences.push_back({text, worker, offset, length, pool_skip(options, content.size(), begin, end)});
  };
  const size_t size = content.size();
  const size_t most = room(options);
  if (options.unknown_id >= 0)
    chunk.unknown +=
        3 * static_cast<size_t>(std::count(content.begin(), content.end(), options.unknown_id)) > size;
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

/// Takes the second text of a pair, cuts both to max_length and stores them with their special tokens.
void TokenWindow::add_pair(const TokenSource& source, size_t text, size_t worker, Scratch& scratch,
                           const TokenizeOptions& options, Chunk& chunk, StopToken& stop) {
  std::vector<int32_t>& content = scratch.content;
  const size_t most = room(options);
  size_t first = content.size();
  source.append_second(text, scratch.words, content, limit(options), stop);
  if (most % 2 == 1 && limit(options) != Tokenizer::kNoLimit && first > most &&
      content.size() - first > most) {
    // The tokens of both were counted up to the limit only, and which is longer decides on the odd one.
    content.clear();
    source.append(text, scratch.words, content, Tokenizer::kNoLimit, stop);
    first = content.size();
    source.append_second(text, scratch.words, content, Tokenizer::kNoLimit, stop);
  }
  const size_t second = content.size() - first;
  const auto [kept_first, kept_second] = fit_pair(first, second, most);
  chunk.truncated += kept_first + kept_second < first + second;
  std::vector<int32_t>& arena = arenas_[worker];
  const size_t offset = arena.size();
  const auto put = [&](const std::vector<int32_t>& ids, size_t begin, size_t count) {
    const auto from = ids.begin() + static_cast<ptrdiff_t>(begin);
    arena.insert(arena.end(), from, from + static_cast<ptrdiff_t>(count));
  };
  const bool left = options.truncate_left;
  const PairTemplate& pair = *options.pair;
  put(options.prefix_ids, 0, options.prefix_ids.size());
  put(content, left ? first - kept_first : 0, kept_first);
  put(pair.between_ids, 0, pair.between_ids.size());
  put(content, left ? content.size() - kept_second : first, kept_second);
  put(options.suffix_ids, 0, options.suffix_ids.size());
  chunk.sequences.push_back({text, worker, offset, arena.size() - offset, 0, kept_first});
}

void TokenWindow::finish() {
  sequences_.clear();
  tokens_ = 0;
  truncated_ = 0;
  unknown_ = 0;
  for (const Chunk& chunk : chunks_) {
    sequences_.insert(sequences_.end(), chunk.sequences.begin(), chunk.sequences.end());
    truncated_ += chunk.truncated;
    unknown_ += chunk.unknown;
  }
  for (const Sequence& s : sequences_) tokens_ += s.length;
}

void tokenize(const TokenSource& source, const TokenizeOptions& options, StopToken& stop,
              TokenWindow& window) {
  options.validate();
  window.begin(source, options, 0, source.size());
  FirstError error(stop);
  Finished finished;
  ThreadPool::shared().run(options.threads, [&](Worker worker) {
    error.guard([&] {
      TokenWindow::Scratch scratch;
      window.tokenize(source, options, worker, scratch, stop);
    });
    finished.wait(worker, stop);
  });
  error.rethrow();
  if (stop.poll()) throw Interrupted();
  window.finish();
}

size_t pack(const TokenWindow& window, std::span<const int64_t> order, int32_t padding_idx, size_t vocab_size,
            const PackTarget& target) {
  const std::vector<Sequence>& sequences = window.sequences();
  const std::span<int32_t> bounds = target.cu_seqlens;
  const size_t step = target.skips ? 2 : 1;
  require((!target.skips || bounds.size() % 2 == 1) && bounds.size() > step * order.size(),
          "cu_seqlens has room for ", bounds.size(), " bounds, ", order.size(), " sequences have ",
          step * order.size() + 1);
  require(target.positions.empty() || target.positions.size() == target.ids.size(), "positions has ",
          target.positions.size(), " elements, ids ", target.ids.size());
  size_t used = 0;
  size_t bound = 0;
  bounds[bound++] = 0;
  for (const int64_t index : order) {
    require(index >= 0 && static_cast<size_t>(index) < sequences.size(), "sequence ", index,
            " of a window of ", sequences.size());
    const Sequence& s = sequences[static_cast<size_t>(index)];
    require(s.length <= target.ids.size() - used, "the sequences have more tokens than the ",
            target.ids.size(), " that ids has room for");
    const std::span<const int32_t> ids(window.ids(s), s.length);
    check_ids(ids, vocab_size);
    std::copy(ids.begin(), ids.end(), target.ids.begin() + static_cast<ptrdiff_t>(used));
    if (!target.positions.empty())
      count_positions(ids, padding_idx, target.positions.subspan(used, s.length));
    if (target.skips) bounds[bound++] = static_cast<int32_t>(used + std::min(s.pool_skip, s.length));
    used += s.length;
    bounds[bound++] = static_cast<int32_t>(used);
  }
  std::fill(bounds.begin() + static_cast<ptrdiff_t>(bound), bounds.end(), static_cast<int32_t>(used));
  std::fill(target.ids.begin() + static_cast<ptrdiff_t>(used), target.ids.end(), 0);
  if (!target.positions.empty())
    std::fill(target.positions.begin() + static_cast<ptrdiff_t>(used), target.positions.end(), 0);
  if (target.tiles.block != 0) attention_tiles(bounds, step, target.ids.size(), target.tiles);
  return used;
}

}  // namespace embedkit
