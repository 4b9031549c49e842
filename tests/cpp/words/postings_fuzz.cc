// Random words of random rows: their lists, merged lists and BM25 are compared with what one would write down
// first, and damaged lists are refused or read as other ones: postings_fuzz [iterations [seed]].
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "words/postings.h"

namespace embedkit::test {
namespace {

using Random = std::mt19937_64;
using Instances = std::vector<int64_t>;

constexpr double kTitleWeight = 3;

size_t below(Random& random, size_t bound) { return random() % bound; }

Instances random_instances(Random& random, size_t rows, size_t most) {
  Instances instances(below(random, most + 1));
  for (int64_t& one : instances) one = static_cast<int64_t>(below(random, 2 * rows));
  std::sort(instances.begin(), instances.end());
  return instances;
}

std::vector<ScoredRow> naive_bm25(const std::vector<Instances>& words, const std::vector<double>& weights,
                                  const Bm25Options& options) {
  std::map<int64_t, double> scores;
  for (size_t i = 0; i < words.size(); ++i) {
    std::map<int64_t, double> frequencies;
    for (const int64_t one : words[i]) frequencies[one >> 1] += one & 1 ? 1 : options.title_weight;
    for (const auto& [row, f] : frequencies) {
      const double length = options.lengths[static_cast<size_t>(row)];
      scores[row] += weights[i] * (f * 2.2 / (f + 1.2 * (0.25 + 0.75 * length / options.average_length)));
    }
  }
  std::vector<ScoredRow> found;
  for (const auto& [row, score] : scores)
    if (!options.allowed || (*options.allowed)[static_cast<size_t>(row / 8)] >> (row % 8) & 1)
      found.push_back({row, score});
  return found;
}

void check_search(Random& random) {
  const size_t rows = 1 + below(random, below(random, 2) ? 40 : 20'000);
  std::vector<uint32_t> lengths(rows);
  for (uint32_t& length : lengths) length = static_cast<uint32_t>(1 + below(random, 300));
  std::vector<Instances> words(1 + below(random, 5));
  std::vector<std::string> lists;
  std::vector<double> weights;
  for (Instances& word : words) {
    word = random_instances(random, rows, below(random, 2) ? 30 : 3 * rows);
    lists.push_back(encode_postings(word));
    const size_t cut = below(random, word.size() + 1);
    if (cut > 0 && cut < word.size() && word[cut - 1] >> 1 != word[cut] >> 1) {
      const std::span<const int64_t> all(word);
      CHECK(encode_postings(all.first(cut)) + encode_postings(all.subspan(cut), word[cut - 1] >> 1) ==
            lists.back());
    }
    weights.push_back(0.001 * static_cast<double>(1 + below(random, 9000)));
  }
  std::vector<QueryWord> query;
  for (size_t i = 0; i < words.size(); ++i) query.push_back({lists[i], weights[i]});
  std::vector<uint8_t> allowed;
  if (below(random, 2)) {
    allowed.resize((rows + 7) / 8);
    for (uint8_t& byte : allowed) byte = static_cast<uint8_t>(random());
  }
  const size_t limit = 1 + below(random, below(random, 2) ? 10 : 2 * rows);
  Bm25Options options{lengths, 150, kTitleWeight, limit, std::nullopt};
  if (!allowed.empty()) options.allowed = allowed;
  const std::vector<ScoredRow> found = bm25(query, options);
  std::vector<ScoredRow> expected = naive_bm25(words, weights, options);
  const size_t most = std::min(limit, expected.size());
  CHECK_EQ(found.size(), most);
  std::map<int64_t, double> score_of;
  for (const ScoredRow& one : expected) score_of[one.row] = one.score;
  std::sort(expected.begin(), expected.end(),
            [](const ScoredRow& a, const ScoredRow& b) { return a.score > b.score; });
  for (size_t i = 0; i < found.size() && i < expected.size(); ++i) {
    CHECK(std::abs(found[i].score - expected[i].score) < 1e-9);
    CHECK(score_of.count(found[i].row) && std::abs(found[i].score - score_of[found[i].row]) < 1e-9);
    const ScoredRow* before = i ? &found[i - 1] : nullptr;
    CHECK(!before || before->score > found[i].score ||
          (before->score == found[i].score && before->row < found[i].row));
  }

  const std::vector<std::string_view> some(lists.begin(), lists.end());
  Instances all;
  for (const Instances& word : words) all.insert(all.end(), word.begin(), word.end());
  std::sort(all.begin(), all.end());
  const auto [merged, held] = merge_postings(some, rows);
  CHECK(merged == encode_postings(all));
  Instances distinct = all;
  for (int64_t& one : distinct) one >>= 1;
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  CHECK_EQ(held, distinct.size());
}

void check_damage(Random& random) {
  const size_t rows = 1 + below(random, 400);
  std::string list = encode_postings(random_instances(random, rows, 60));
  const std::vector<uint32_t> lengths(rows, 7);
  for (size_t i = 0; i <= below(random, 4); ++i) {
    if (list.empty() || below(random, 3) == 0)
      list.insert(below(random, list.size() + 1), 1, static_cast<char>(random()));
    else if (below(random, 3) == 0)
      list.resize(below(random, list.size()));
    else
      list[below(random, list.size())] = static_cast<char>(random());
  }
  const std::vector<QueryWord> query{{list, 1.0}, {list, 2.0}};
  try {
    const std::vector<ScoredRow> found = bm25(query, {lengths, 7, kTitleWeight, 10, std::nullopt});
    for (const ScoredRow& one : found)
      CHECK(one.row >= 0 && static_cast<size_t>(one.row) < rows && std::isfinite(one.score));
    const std::vector<std::string_view> both{list, list};
    CHECK(merge_postings(both, rows).second <= rows);
  } catch (const InvalidArgument&) {
  }
}

template <typename Call>
void check_refused(Call&& call) {
  bool refused = false;
  try {
    call();
  } catch (const InvalidArgument&) {
    refused = true;
  }
  CHECK(refused);
}

void check_arguments() {
  const std::vector<uint32_t> lengths(9, 7);
  const std::string list = encode_postings(Instances{1, 3, 17});
  const std::vector<QueryWord> query{{list, 1.0}}, weightless{{list, 0.0}};
  const std::vector<uint8_t> short_bits(1);
  CHECK_EQ(bm25(query, {lengths, 7, 3, 9, std::nullopt}).size(), 3u);
  CHECK(bm25({}, {lengths, 7, 3, 9, std::nullopt}).empty());
  CHECK(bm25({}, {{}, 7, 3, 9, std::nullopt}).empty());
  check_refused([] { encode_postings(Instances{4, 2}); });
  check_refused([] { encode_postings(Instances{-1}); });
  check_refused([] { encode_postings(Instances{9, 11}, 4); });
  check_refused([] { encode_postings(Instances{}, -2); });
  check_refused([&] { bm25(query, {lengths, 0, 3, 9, std::nullopt}); });
  check_refused([&] { bm25(query, {lengths, std::nan(""), 3, 9, std::nullopt}); });
  check_refused([&] { bm25(query, {lengths, 7, 0, 9, std::nullopt}); });
  check_refused([&] { bm25(query, {lengths, 7, 3, 0, std::nullopt}); });
  check_refused([&] { bm25(query, {lengths, 7, 3, 9, std::span<const uint8_t>(short_bits)}); });
  check_refused([&] { bm25(weightless, {lengths, 7, 3, 9, std::nullopt}); });
  check_refused([&] { bm25(query, {{}, 7, 3, 9, std::nullopt}); });
}

}  // namespace
}  // namespace embedkit::test

int main(int argc, char** argv) {
  const size_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20'000;
  embedkit::test::Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  embedkit::test::check_arguments();
  for (size_t i = 0; i < iterations && embedkit::test::failures == 0; ++i) {
    if (i % 50 == 0) embedkit::test::check_search(random);
    embedkit::test::check_damage(random);
  }
  return embedkit::test::report();
}
