// The words of a collection: for each, the rows (texts) that hold it, as bytes; and BM25 over some of them.
//
// A posting list has, for each row in order, the gap to the row before and how often the word is in the
// text and in the title, as variable-length integers of 7 bits a byte, lowest first:
//
//   2 * gap                     once in the text
//   2 * gap + 1, text, title    otherwise
//
// where gap is the number of rows between (the first row: those before it). Most postings take one or two
// bytes. A list is read from a file: every number in it is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace embedkit {

/// The posting list of one word, or what follows in it after the row `after`.
///
/// `instances` are 2 * row for a word in a title and 2 * row + 1 for one in a text, in ascending order, one
/// for each time it is there. Throws InvalidArgument if they are not, or a row is not above `after`.
std::string encode_postings(std::span<const int64_t> instances, int64_t after = -1);

/// The posting list of the words of `lists` together, and the number of its rows.
///
/// Beside that list, the memory does not grow with the number of rows. Throws InvalidArgument if a list is
/// damaged or has a row of `rows` or more.
std::pair<std::string, size_t> merge_postings(std::span<const std::string_view> lists, size_t rows);

/// A word of a query.
struct QueryWord {
  std::string_view postings;
  double weight;  // above 0
};

struct Bm25Options {
  std::span<const uint32_t> lengths;                // words of each row
  double average_length;                            // above 0
  double title_weight;                              // of a word in a title, where one in a text counts 1
  size_t limit;                                     // most rows returned
  std::optional<std::span<const uint8_t>> allowed;  // a bit for each row, lowest first; nullopt: all are
};

struct ScoredRow {
  int64_t row;
  double score;
};

/// The best rows by BM25 (Robertson and Zaragoza 2009, k1 = 1.2, b = 0.75), best first, ties by row:
///
///   Σ weight · f (k1 + 1) / (f + k1 (1 - b + b · length / average_length)),   f = text + title_weight ·
///   title
///
/// which is SQLite's bm25() but for rounding. The memory does not grow with the number of rows. Throws
/// InvalidArgument if a list is damaged or the options do not fit.
std::vector<ScoredRow> bm25(std::span<const QueryWord> words, const Bm25Options& options);

}  // namespace embedkit
