#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "text/utf8.h"

namespace embedkit {
namespace {

constexpr size_t kFew = 192;  // symbols of a word that are merged without a heap
constexpr size_t kPollEvery = 1 << 14;
constexpr std::string_view kSpaceMark = "\u2581";

// Bytes that stand for themselves in the alphabet; the others follow at U+0100.
bool is_printed(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

std::array<int16_t, 0x144> bytes_by_char() {
  std::array<int16_t, 0x144> bytes;
  bytes.fill(-1);
  size_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte)
    bytes[is_printed(byte) ? byte : next++] = static_cast<int16_t>(byte);
  return bytes;
}

}  // namespace

bool bytes_of_alphabet(std::string_view token, std::string& bytes) {
  static const std::array<int16_t, 0x144> by_char = bytes_by_char();
  bytes.clear();
  for (const uint8_t* p = utf8::begin(token); p < utf8::end(token);) {
    const char32_t c = utf8::decode(p, utf8::end(token));
    if (c >= by_char.size() || by_char[c] < 0) return false;
    bytes.push_back(static_cast<char>(by_char[c]));
  }
  return true;
}

struct Bpe::Buffers : SubwordModel::Buffers {
  struct Symbol {
    int32_t id;
    uint32_t previous, next;  // kEnd at the sides
    uint32_t rank;            // of the pair with the next one
    int32_t merged;           // and what it becomes
  };
  std::vector<int32_t> ids;
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;  // rank << 32 | position
};

Bpe::Bpe(const BpeOptions& options)
    : byte_level_(options.byte_level),
      byte_fallback_(options.byte_fallback),
      fuse_unknown_(options.fuse_unknown) {
  require(!options.vocab.empty(), "the vocabulary is empty");
  require(!(byte_level_ && byte_fallback_), "byte_fallback is not known to a byte-level vocabulary");
  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(options.vocab.size());
  for (const auto& [token, id] : options.vocab) {
    require(id >= 0, "the token \"", token, "\" has the id ", id);
    require(utf8::find_invalid(token) == std::string_view::npos, "the token of id ", id,
            " is not valid UTF-8");
    require(ids.emplace(token, id).second, "the token \"", token, "\" is repeated");
  }
  const auto id_of = [&](const std::string& token) {
    const auto place = ids.find(token);
    return place == ids.end() ? kMissing : place->second;
  };
  if (options.has_unknown) {
    unknown_ = id_of(options.unknown_token);
    require(unknown_ != kMissing, "the unknown token \"", options.unknown_token,
            "\" is not in the vocabulary");
  }
  bytes_.fill(kMissing);
  ascii_.fill(kMissing);
  std::string bytes;
  for (const auto& [token, id] : options.vocab) {
    if (byte_level_) {
      if (bytes_of_alphabet(token, bytes) && bytes.size() == 1) bytes_[static_cast<uint8_t>(bytes[0])] = id;
      if (options.ignore_merges && bytes_of_alphabet(token, bytes)) whole_.emplace_back(bytes, id);
      continue;
    }
    if (options.ignore_merges) whole_.emplace_back(token, id);
    const uint8_t* p = utf8::begin(token);
    if (token.empty()) continue;
    const char32_t c = utf8::decode(p, utf8::end(token));
    if (p != utf8::end(token)) continue;
    if (c < 0x80) {
      ascii_[c] = id;
    } else {
      chars_.emplace_back(c, id);
    }
  }
  std::sort(chars_.begin(), chars_.end());
  std::sort(whole_.begin(), whole_.end());
  if (byte_fallback_) {
    for (unsigned byte = 0; byte < 256; ++byte) bytes_[byte] = id_of(byte_token(byte));
  }

  require(options.merges.size() < (size_t{1} << 31), "there are ", options.merges.size(), " merges");
  const size_t slots = std::bit_ceil(std::max<size_t>(2 * options.merges.size(), 16));
  merges_.resize(slots);
  shift_ = 64 - static_cast<unsigned>(std::countr_zero(slots));
  bool crosses = false;
  std::string whole;
  for (size_t rank = 0; rank < options.merges.size(); ++rank) {
    const auto& [left, right] = options.merges[rank];
    const int32_t a = id_of(left), b = id_of(right);
    require(a != kMissing, "the merge ", rank, " joins \"", left, "\", which is not in the vocabulary");
    require(b != kMissing, "the merge ", rank, " joins \"", right, "\", which is not in the vocabulary");
    whole.assign(left).append(right);
    const int32_t id = id_of(whole);
    require(id != kMissing, "the merge ", rank, " makes \"", whole, "\", which is not in the vocabulary");
    require(!left.empty() && !right.empty(), "the merge ", rank, " joins nothing");
    add_merge({uint64_t{static_cast<uint32_t>(a)} << 32 | static_cast<uint32_t>(b),
               static_cast<uint32_t>(rank), id});
    crosses |= right.starts_with(kSpaceMark) && !left.ends_with(kSpaceMark);
  }
  // Where no merge joins a space mark to what stands before it, the words of a text are merged by themselves.
  const bool clean = !options.has_unknown || options.unknown_token.find(kSpaceMark) == std::string::npos;
  if (!byte_level_ && !options.ignore_merges && !crosses && clean &&
      id_of(std::string(kSpaceMark)) != kMissing)
    boundary_ = kSpaceMark;
}

void Bpe::add_merge(const Merge& merge) {
  const size_t mask = merges_.size() - 1;
  size_t at = (merge.pair * 0x9E3779B97F4A7C15ull) >> shift_;
  while (merges_[at].pair != kFree && merges_[at].pair != merge.pair) at = (at + 1) & mask;
  merges_[at] = merge;
}

const Bpe::Merge* Bpe::find(int32_t left, int32_t right) const {
  const uint64_t pair = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  const size_t mask = merges_.size() - 1;
  for (size_t at = (pair * 0x9E3779B97F4A7C15ull) >> shift_;; at = (at + 1) & mask) {
    if (merges_[at].pair == pair) return &merges_[at];
    if (merges_[at].pair == kFree) return nullptr;
  }
}

int32_t Bpe::id_of(char32_t c) const {
  if (c < 0x80) return ascii_[c];
  const auto place = std::lower_bound(chars_.begin(), chars_.end(), std::pair{c, int32_t{0}});
  return place != chars_.end() && place->first == c ? place->second : kMissing;
}

void Bpe::symbols(std::string_view word, std::vector<int32_t>& out) const {
  out.clear();
  bool pending = false;  // unknown characters that are not in `out` yet: tokens of bytes overtake them
  const auto unknown = [&] {
    if (unknown_ == kMissing) return;
    if (pending && !fuse_unknown_) out.push_back(unknown_);
    pending = true;
  };
  const auto known = [&](int32_t id) {
    if (pending) out.push_back(unknown_);
    pending = false;
    out.push_back(id);
  };
  if (byte_level_) {
    for (const char c : word) {
      const int32_t id = bytes_[static_cast<uint8_t>(c)];
      id == kMissing ? unknown() : known(id);
    }
  } else {
    for (const uint8_t* p = utf8::begin(word); p < utf8::end(word);) {
      const uint8_t* const at = p;
      if (const int32_t id = id_of(utf8::decode(p, utf8::end(word))); id != kMissing) {
        known(id);
        continue;
      }
      if (byte_fallback_ && std::all_of(at, p, [&](uint8_t byte) { return bytes_[byte] != kMissing; })) {
        for (const uint8_t* byte = at; byte < p; ++byte) out.push_back(bytes_[*byte]);
      } else {
        unknown();
      }
    }
  }
  if (pending) out.push_back(unknown_);
}

std::unique_ptr<SubwordModel::Buffers> Bpe::make_buffers() const { return std::make_unique<Buffers>(); }

void Bpe::encode(std::string_view word, SubwordModel::Buffers& buffers, std::vector<int32_t>& ids,
                 StopToken* stop) const {
  auto& b = static_cast<Buffers&>(buffers);
  if (!whole_.empty()) {
    const auto place =
        std::lower_bound(whole_.begin(), whole_.end(), word,
                         [](const auto& entry, std::string_view key) { return entry.first < key; });
    if (place != whole_.end() && place->first == word) {
      ids.push_back(place->second);
      return;
    }
  }
  symbols(word, b.ids);
  if (b.ids.size() > kFew) {
    merge_many(b, stop);
  } else if (b.ids.size() > 1) {
    merge_few(b);
  }
  ids.insert(ids.end(), b.ids.begin(), b.ids.end());
}

// The pair of the lowest rank, the leftmost of equal ones, again and again. The ranks of a word's pairs lie
// in an array, so that the lowest one is found some at a time; what is merged stays there without a rank.
void Bpe::merge_few(Buffers& b) const {
  constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
  constexpr size_t kStep = 16;
  std::array<int32_t, kFew> ranks;
  std::array<int32_t, kFew> merged;
  std::array<uint8_t, kFew> previous, next;
  static_assert(kFew < 256 && kFew % kStep == 0);
  std::vector<int32_t>& ids = b.ids;
  const size_t count = ids.size();
  const auto refresh = [&](size_t left, size_t right) {
    const Merge* const merge = find(ids[left], ids[right]);
    ranks[left] = merge == nullptr ? kNoRank : static_cast<int32_t>(merge->rank);
    if (merge != nullptr) merged[left] = merge->id;
  };
  for (size_t i = 0; i + 1 < count; ++i) {
    refresh(i, i + 1);
    next[i] = static_cast<uint8_t>(i + 1);
    previous[i + 1] = static_cast<uint8_t>(i);
  }
  const size_t padded = (count + kStep - 1) / kStep * kStep;
  std::fill(ranks.begin() + static_cast<ptrdiff_t>(count) - 1, ranks.begin() + static_cast<ptrdiff_t>(padded),
            kNoRank);
  next[count - 1] = static_cast<uint8_t>(count);
  while (true) {
    std::array<int32_t, kStep> lowest;
    std::copy_n(ranks.begin(), kStep, lowest.begin());
    for (size_t i = kStep; i < padded; i += kStep)
      for (size_t j = 0; j < kStep; ++j) lowest[j] = std::min(lowest[j], ranks[i + j]);
    const int32_t rank = *std::min_element(lowest.begin(), lowest.end());
    if (rank == kNoRank) break;
    size_t at = 0;
    while (ranks[at] != rank) ++at;
    const size_t right = next[at], after = next[right];
    ids[at] = merged[at];
    ids[right] = kMissing;
    ranks[right] = kNoRank;
    next[at] = static_cast<uint8_t>(after);
    if (after < count) {
      previous[after] = static_cast<uint8_t>(at);
      refresh(at, after);
    } else {
      ranks[at] = kNoRank;
    }
    if (at > 0) refresh(previous[at], at);
  }
  std::erase(ids, kMissing);
}

// The same on a linked list, with a heap of the pairs: O(n log n).
void Bpe::merge_many(Buffers& b, StopToken* stop) const {
  constexpr uint32_t kEnd = ~0u;
  constexpr uint32_t kNoRank = ~0u;
  const size_t count = b.ids.size();
  require(count < kEnd, "a word of the text has ", count, " characters");
  auto& symbols = b.symbols;
  auto& heap = b.heap;
  symbols.resize(count);
  heap.clear();
  const auto refresh = [&](uint32_t at, bool push) {
    auto& symbol = symbols[at];
    const Merge* const merge = symbol.next == kEnd ? nullptr : find(symbol.id, symbols[symbol.next].id);
    symbol.rank = merge == nullptr ? kNoRank : merge->rank;
    if (merge == nullptr) return;
    symbol.merged = merge->id;
    heap.push_back(uint64_t{merge->rank} << 32 | at);
    if (push) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (uint32_t i = 0; i < count; ++i) {
    symbols[i] = {b.ids[i], i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1, kNoRank, 0};
  }
  for (uint32_t i = 0; i + 1 < count; ++i) refresh(i, false);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  for (size_t done = 0; !heap.empty(); ++done) {
    if (done % kPollEvery == 0 && stop != nullptr && stop->poll()) return;
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto at = static_cast<uint32_t>(top);
    auto& symbol = symbols[at];
    if (symbol.rank != top >> 32) continue;  // the pair is gone
    auto& right = symbols[symbol.next];
    symbol.id = symbol.merged;
    symbol.next = right.next;
    right.rank = kNoRank;
    if (symbol.next != kEnd) symbols[symbol.next].previous = at;
    refresh(at, true);
    if (symbol.previous != kEnd) refresh(symbol.previous, true);
  }
  b.ids.clear();
  for (uint32_t i = 0; i != kEnd; i = symbols[i].next) b.ids.push_back(symbols[i].id);
}

}  // namespace embedkit
