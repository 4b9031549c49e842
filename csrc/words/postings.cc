#include "words/postings.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"

namespace embedkit {

namespace {

constexpr double kK1 = 1.2;
constexpr double kB = 0.75;
constexpr int64_t kBlock = 4096;  // rows whose scores fit the first-level cache
constexpr int64_t kMerged = 512;  // rows of lists that are merged at a time: few, as most lists are short
constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

struct Posting {
  int64_t row;
  uint64_t text, title;  // how often the word is there
};

/// A posting within a block.
struct Held {
  uint32_t row;
  double frequency;
};

void put(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

class Writer {
 public:
  explicit Writer(int64_t after = -1) : last_(after) {}

  void add(const Posting& posting) {
    const auto gap = static_cast<uint64_t>(posting.row - last_ - 1);
    const bool once = posting.text == 1 && posting.title == 0;
    put(bytes_, 2 * gap + (once ? 0 : 1));
    if (!once) {
      put(bytes_, posting.text);
      put(bytes_, posting.title);
    }
    last_ = posting.row;
    ++rows_;
  }
  size_t rows() const { return rows_; }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
  int64_t last_;
  size_t rows_ = 0;
};

/// Reads a list; at its end the row is kEnd.
class Reader {
 public:
  Reader(std::string_view bytes, size_t rows) : at_(bytes.begin()), end_(bytes.end()), rows_(rows) { next(); }

  const Posting& now() const { return now_; }

  void next() {
    if (at_ == end_) {
      now_.row = kEnd;
      return;
    }
    const uint64_t head = number();
    const auto from = static_cast<uint64_t>(now_.row + 1);
    require(head >> 1 < rows_ - from, "a posting list is damaged: it goes beyond the last of ", rows_,
            " rows");
    now_ = {static_cast<int64_t>(from + (head >> 1)), 1, 0};
    if (head & 1) {
      now_.text = number();
      now_.title = number();
    }
  }

 private:
  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      require(at_ != end_, "a posting list is damaged: it ends within a number");
      const auto byte = static_cast<uint8_t>(*at_++);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw InvalidArgument("a posting list is damaged: a number has more than nine bytes");
  }

  std::string_view::const_iterator at_, end_;
  uint64_t rows_;
  Posting now_{-1, 0, 0};
};

/// The first row that a list goes on with; kEnd if all have ended.
int64_t first_row(std::span<const Reader> readers) {
  int64_t first = kEnd;
  for (const Reader& reader : readers) first = std::min(first, reader.now().row);
  return first;
}

bool better(const ScoredRow& one, const ScoredRow& other) {
  return one.score != other.score ? one.score > other.score : one.row < other.row;
}

/// The best rows of those added.
class Best {
 public:
  explicit Best(size_t limit) : limit_(limit) {}

  void add(const ScoredRow& row) {
    if (full_ && !better(row, worst_)) return;
    rows_.push_back(row);
    if (rows_.size() >= 2 * limit_) cut();
  }

  std::vector<ScoredRow> take() {
    if (rows_.size() > limit_) cut();
    std::sort(rows_.begin(), rows_.end(), better);
    return std::move(rows_);
  }

 private:
  void cut() {
    const auto last = rows_.begin() + static_cast<std::ptrdiff_t>(limit_) - 1;
    std::nth_element(rows_.begin(), last, rows_.end(), better);
    rows_.resize(limit_);
    worst_ = rows_.back();
    full_ = true;
  }

  size_t limit_;
  std::vector<ScoredRow> rows_;
  ScoredRow worst_{};
  bool full_ = false;
};

}  // namespace

std::string encode_postings(std::span<const int64_t> instances, int64_t after) {
  require(after >= -1 && after < int64_t{1} << 61, "after must be at least -1 and below 2^61, not ", after);
  Writer out(after);
  int64_t last = 2 * (after + 1);
  for (size_t i = 0; i < instances.size();) {
    Posting posting{instances[i] >> 1, 0, 0};
    for (; i < instances.size() && instances[i] >> 1 == posting.row; ++i) {
      require(instances[i] >= last, "instances must ascend, but ", instances[i], " is below ", last);
      last = instances[i];
      ++(last & 1 ? posting.text : posting.title);
    }
    out.add(posting);
  }
  return out.take();
}

std::pair<std::string, size_t> merge_postings(std::span<const std::string_view> lists, size_t rows) {
  std::vector<Reader> heap;  // the first row on top
  for (const std::string_view list : lists) {
    const Reader reader(list, rows);
    if (reader.now().row != kEnd) heap.push_back(reader);
  }
  const auto later = [](const Reader& a, const Reader& b) { return a.now().row > b.now().row; };
  std::make_heap(heap.begin(), heap.end(), later);
  Writer out;
  std::array<Posting, kMerged> sums;
  while (!heap.empty()) {
    const int64_t first = heap.front().now().row;
    const int64_t begin = first - first % kMerged, end = begin + kMerged;
    sums.fill({-1, 0, 0});
    while (!heap.empty() && heap.front().now().row < end) {
      std::pop_heap(heap.begin(), heap.end(), later);
      Reader& reader = heap.back();
      for (; reader.now().row < end; reader.next()) {
        const Posting& at = reader.now();
        Posting& sum = sums[static_cast<size_t>(at.row - begin)];
        sum = {at.row, sum.text + at.text, sum.title + at.title};
      }
      if (reader.now().row == kEnd) {
        heap.pop_back();
      } else {
        std::push_heap(heap.begin(), heap.end(), later);
      }
    }
    for (const Posting& sum : sums)
      if (sum.row >= 0) out.add(sum);
  }
  const size_t merged = out.rows();
  return {out.take(), merged};
}

std::vector<ScoredRow> bm25(std::span<const QueryWord> words, const Bm25Options& options) {
  const size_t rows = options.lengths.size();
  // A score must not round to 0, which stands for a row that was not seen yet.
  const auto usual = [](double value) { return value >= 1e-9 && value <= 1e9; };
  require(usual(options.average_length), "average_length must be from 1e-9 to 1e9, not ",
          options.average_length);
  require(usual(options.title_weight), "title_weight must be from 1e-9 to 1e9, not ", options.title_weight);
  require(options.limit > 0, "limit must be at least 1");
  if (options.allowed)
    require(options.allowed->size() >= (rows + 7) / 8, "allowed has ", options.allowed->size(),
            " bytes, and ", rows, " rows need ", (rows + 7) / 8);
  std::vector<Reader> readers;
  for (const QueryWord& word : words) {
    require(usual(word.weight), "the weight of a word must be from 1e-9 to 1e9, not ", word.weight);
    readers.emplace_back(word.postings, rows);
  }
  Best best(std::min(options.limit, std::max<size_t>(rows, 1)));
  std::array<double, kBlock> scores{};
  std::array<Held, kBlock> held;
  std::array<uint32_t, kBlock + 1> found;  // one more: a row is written before it is known to be new
  const double shortest = kK1 * (1 - kB), each = kK1 * kB / options.average_length;
  for (;;) {
    const int64_t first = first_row(readers);
    if (first == kEnd) return best.take();
    const int64_t begin = first - first % kBlock, end = begin + kBlock;
    size_t number = 0;
    for (size_t i = 0; i < readers.size(); ++i) {
      // read first, so that the lengths are on their way when they are needed
      size_t read = 0;
      for (Reader& reader = readers[i]; reader.now().row < end; reader.next()) {
        const Posting& at = reader.now();
        __builtin_prefetch(&options.lengths[static_cast<size_t>(at.row)]);
        held[read++] = {static_cast<uint32_t>(at.row - begin),
                        static_cast<double>(at.text) + options.title_weight * static_cast<double>(at.title)};
      }
      for (const Held& at : std::span(held).first(read)) {
        if (at.frequency == 0) continue;
        const double length = options.lengths[static_cast<size_t>(begin) + at.row];
        double& score = scores[at.row];
        found[number] = at.row;
        number += score == 0;
        score += words[i].weight * (at.frequency * (kK1 + 1) / (at.frequency + shortest + each * length));
      }
    }
    for (size_t i = 0; i < number; ++i) {
      const int64_t row = begin + found[i];
      double& score = scores[found[i]];
      if (!options.allowed || (*options.allowed)[static_cast<size_t>(row >> 3)] >> (row & 7) & 1)
        best.add({row, score});
      score = 0;
    }
  }
}

}  // namespace embedkit
