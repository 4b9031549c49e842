// The binding of the posting lists: embedkit._core.encode_postings, merge_postings and bm25.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "python/bind.h"
#include "python/gil.h"
#include "words/postings.h"

namespace py = pybind11;

namespace embedkit {

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style>;

template <typename T>
std::span<const T> values(const Array<T>& array, const char* name) {
  require(array.ndim() == 1, name, " must have one dimension, not ", array.ndim());
  return {array.data(), static_cast<size_t>(array.size())};
}

std::vector<std::string_view> views(const std::vector<py::bytes>& lists) {
  return {lists.begin(), lists.end()};
}

std::vector<py::bytes> encode(const Array<int64_t>& instances, const Array<int64_t>& counts, int64_t after) {
  std::span<const int64_t> rest = values(instances, "instances");
  std::vector<py::bytes> lists;
  for (const int64_t count : values(counts, "counts")) {
    require(count >= 0 && static_cast<size_t>(count) <= rest.size(), "counts must add up to the instances");
    lists.emplace_back(encode_postings(rest.first(static_cast<size_t>(count)), lists.empty() ? after : -1));
    rest = rest.subspan(static_cast<size_t>(count));
  }
  require(rest.empty(), "counts must add up to the instances");
  return lists;
}

std::pair<py::bytes, size_t> merge(const std::vector<py::bytes>& lists, size_t rows) {
  const std::vector<std::string_view> bytes = views(lists);
  std::pair<std::string, size_t> merged;
  {
    const GilRelease release;
    merged = merge_postings(bytes, rows);
  }
  return {py::bytes(merged.first), merged.second};
}

std::pair<py::array_t<int64_t>, py::array_t<double>> search(
    const std::vector<py::bytes>& lists, const std::vector<double>& weights, const Array<uint32_t>& lengths,
    double average_length, double title_weight, size_t limit, const std::optional<Array<uint8_t>>& allowed) {
  require(lists.size() == weights.size(), "there are ", lists.size(), " lists and ", weights.size(),
          " weights");
  const std::vector<std::string_view> bytes = views(lists);
  std::vector<QueryWord> words;
  for (size_t i = 0; i < bytes.size(); ++i) words.push_back({bytes[i], weights[i]});
  Bm25Options options{values(lengths, "lengths"), average_length, title_weight, limit, std::nullopt};
  if (allowed) options.allowed = values(*allowed, "allowed");
  std::vector<ScoredRow> best;
  {
    const GilRelease release;
    best = bm25(words, options);
  }
  py::array_t<int64_t> rows(static_cast<py::ssize_t>(best.size()));
  py::array_t<double> scores(static_cast<py::ssize_t>(best.size()));
  for (size_t i = 0; i < best.size(); ++i) {
    rows.mutable_data()[i] = best[i].row;
    scores.mutable_data()[i] = best[i].score;
  }
  return {rows, scores};
}

}  // namespace

void bind_words(py::module_& m) {
  m.def("encode_postings", &encode, py::arg("instances").noconvert(), py::arg("counts").noconvert(),
        py::arg("after") = -1);
  m.def("merge_postings", &merge, py::arg("lists"), py::arg("rows"));
  m.def("bm25", &search, py::arg("lists"), py::arg("weights"), py::arg("lengths").noconvert(),
        py::arg("average_length"), py::arg("title_weight"), py::arg("limit"), py::arg("allowed").none(true));
}

}  // namespace embedkit
