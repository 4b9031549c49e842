// The bindings of the tokenizers: embedkit._core.WordPiece and embedkit._core.Subword.
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/stop.h"
#include "python/bind.h"
#include "python/gil.h"
#include "python/interrupt.h"
#include "python/options.h"
#include "python/texts.h"
#include "text/bpe.h"
#include "text/subword.h"
#include "text/unigram.h"
#include "text/wordpiece.h"

namespace embedkit {
namespace {

namespace py = pybind11;

py::list list_of(const int32_t* ids, size_t count) {
  py::list list(count);
  for (size_t i = 0; i < count; ++i) {
    PyObject* id = PyLong_FromLong(ids[i]);
    if (id == nullptr) throw py::error_already_set();
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), id);
  }
  return list;
}

py::list encode(const Tokenizer& tokenizer, const py::object& text) {
  py::object keep;
  const std::string_view view = utf8_view(text, keep);
  std::vector<int32_t> ids;
  heard([&](StopToken& stop) {
    Tokenizer::Scratch scratch;
    tokenizer.encode(view, scratch, ids, Tokenizer::kNoLimit, &stop);
  });
  return list_of(ids.data(), ids.size());
}

py::list encode_batch(const Tokenizer& tokenizer, const py::object& texts) {
  const Texts batch(texts);
  std::vector<int32_t> ids;
  std::vector<size_t> ends;
  heard([&](StopToken& stop) {
    Tokenizer::Scratch scratch;
    ends.reserve(batch.size());
    for (const std::string_view text : batch.views()) {
      tokenizer.encode(text, scratch, ids, Tokenizer::kNoLimit, &stop);
      if (stop.poll()) return;
      ends.push_back(ids.size());
    }
  });
  py::list result(batch.size());
  size_t begin = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    PyList_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i),
                    list_of(ids.data() + begin, ends[i] - begin).release().ptr());
    begin = ends[i];
  }
  return result;
}

const Names<NormalizerStep::Kind> kNormalizers = {{"nfc", NormalizerStep::Kind::kNfc},
                                                  {"nfd", NormalizerStep::Kind::kNfd},
                                                  {"nfkc", NormalizerStep::Kind::kNfkc},
                                                  {"nfkd", NormalizerStep::Kind::kNfkd},
                                                  {"lowercase", NormalizerStep::Kind::kLowercase},
                                                  {"strip_accents", NormalizerStep::Kind::kStripAccents},
                                                  {"nmt", NormalizerStep::Kind::kNmt},
                                                  {"replace", NormalizerStep::Kind::kReplace},
                                                  {"replace_runs", NormalizerStep::Kind::kReplaceRuns},
                                                  {"replace_breaks", NormalizerStep::Kind::kReplaceBreaks},
                                                  {"prepend", NormalizerStep::Kind::kPrepend},
                                                  {"strip", NormalizerStep::Kind::kStrip},
                                                  {"charsmap", NormalizerStep::Kind::kCharsmap}};
const Names<SplitStep::Kind> kSplits = {
    {"pattern", SplitStep::Kind::kPattern},         {"string", SplitStep::Kind::kString},
    {"whitespace", SplitStep::Kind::kWhitespace},   {"digits", SplitStep::Kind::kDigits},
    {"punctuation", SplitStep::Kind::kPunctuation}, {"metaspace", SplitStep::Kind::kMetaspace},
    {"prefix_space", SplitStep::Kind::kPrefixSpace}};
const Names<SplitPattern> kPatterns = {{"gpt2", SplitPattern::kGpt2},
                                       {"cl100k", SplitPattern::kCl100k},
                                       {"qwen2", SplitPattern::kQwen2},
                                       {"qwen3_5", SplitPattern::kQwen35}};
const Names<SplitBehavior> kBehaviors = {{"removed", SplitBehavior::kRemoved},
                                         {"isolated", SplitBehavior::kIsolated},
                                         {"merged_with_previous", SplitBehavior::kMergedWithPrevious},
                                         {"merged_with_next", SplitBehavior::kMergedWithNext},
                                         {"contiguous", SplitBehavior::kContiguous}};
const Names<PrependScheme> kSchemes = {
    {"always", PrependScheme::kAlways}, {"first", PrependScheme::kFirst}, {"never", PrependScheme::kNever}};

/// A field of text, which has no lone surrogates, or of bytes.
template <typename T>
Field<T> text_field(const char* name, std::string T::* member) {
  Field<T> made = field<T>(name, member);
  made.get = nullptr;
  made.set = [=](T& to, const py::object& value) {
    if (py::isinstance<py::bytes>(value)) {
      to.*member = value.cast<std::string>();
      return;
    }
    py::object keep;
    to.*member = utf8_view(value, keep, name);
  };
  return made;
}

std::vector<std::string> strings(const py::object& list, const char* name) {
  const Texts texts(list, name);
  return {texts.views().begin(), texts.views().end()};
}

std::shared_ptr<SubwordModel> make_bpe(const py::object& vocab, const std::vector<int32_t>& ids,
                                       const py::object& lefts, const py::object& rights,
                                       const std::optional<std::string>& unknown_token, bool byte_level,
                                       bool byte_fallback, bool fuse_unknown, bool ignore_merges) {
  BpeOptions options;
  std::vector<std::string> tokens = strings(vocab, "vocab");
  require(tokens.size() == ids.size(), "vocab has ", tokens.size(), " tokens, ids has ", ids.size());
  for (size_t i = 0; i < tokens.size(); ++i) options.vocab.emplace_back(std::move(tokens[i]), ids[i]);
  std::vector<std::string> left = strings(lefts, "lefts"), right = strings(rights, "rights");
  require(left.size() == right.size(), "lefts has ", left.size(), " tokens, rights has ", right.size());
  for (size_t i = 0; i < left.size(); ++i)
    options.merges.emplace_back(std::move(left[i]), std::move(right[i]));
  options.has_unknown = unknown_token.has_value();
  options.unknown_token = unknown_token.value_or("");
  options.byte_level = byte_level;
  options.byte_fallback = byte_fallback;
  options.fuse_unknown = fuse_unknown;
  options.ignore_merges = ignore_merges;
  const GilRelease release;
  return std::make_shared<Bpe>(options);
}

std::shared_ptr<SubwordModel> make_unigram(const py::object& vocab, std::vector<double> scores,
                                           int32_t unknown_id, bool byte_fallback) {
  const UnigramOptions options{strings(vocab, "vocab"), std::move(scores), unknown_id, byte_fallback};
  const GilRelease release;
  return std::make_shared<Unigram>(options);
}

void bind_subword(py::module_& m) {
  using N = NormalizerStep;
  bind_options<N>(
      m, "NormalizerStep",
      {required(field<N>("kind", &N::kind, kNormalizers)), text_field<N>("pattern", &N::pattern),
       text_field<N>("content", &N::content), field<N>("left", &N::left), field<N>("right", &N::right)},
      [](const N&) {});
  using S = SplitStep;
  bind_options<S>(m, "SplitStep",
                  {required(field<S>("kind", &S::kind, kSplits)), field<S>("pattern", &S::pattern, kPatterns),
                   text_field<S>("text", &S::text), field<S>("behavior", &S::behavior, kBehaviors),
                   field<S>("scheme", &S::scheme, kSchemes), field<S>("split", &S::split)},
                  [](const S&) {});
  py::class_<SubwordModel, std::shared_ptr<SubwordModel>>(m, "SubwordModel")
      .def_static("bpe", &make_bpe, py::arg("vocab"), py::arg("ids"), py::arg("lefts"), py::arg("rights"),
                  py::kw_only(), py::arg("unknown_token"), py::arg("byte_level"), py::arg("byte_fallback"),
                  py::arg("fuse_unknown"), py::arg("ignore_merges"))
      .def_static("unigram", &make_unigram, py::arg("vocab"), py::arg("scores"), py::kw_only(),
                  py::arg("unknown_id"), py::arg("byte_fallback"));
  py::class_<Subword, Tokenizer, std::shared_ptr<Subword>>(
      m, "Subword", "Normalizers, pre-tokenizers and a model of words, with the ids of `tokenizers`.")
      .def(py::init([](std::shared_ptr<SubwordModel> model, std::vector<AddedToken> added_tokens,
                       std::vector<NormalizerStep> normalizer, std::vector<SplitStep> splits,
                       size_t vocab_size) {
             SubwordOptions options{std::move(normalizer), std::move(splits), std::move(added_tokens),
                                    vocab_size};
             return std::make_shared<Subword>(std::move(model), std::move(options));
           }),
           py::arg("model").none(false), py::arg("added_tokens"), py::arg("normalizer"), py::arg("splits"),
           py::kw_only(), py::arg("vocab_size"));
}

}  // namespace

void bind_text(py::module_& m) {
  using T = AddedToken;
  Field<T> content = field<T>("content", &T::content);
  content.set = [](T& to, const py::object& value) {
    py::object keep;
    to.content = utf8_view(value, keep, "the content of an added token");
  };
  bind_options<T>(
      m, "AddedToken",
      {required(content), required(field<T>("id", &T::id)),
       required(field<T>("single_word", &T::single_word)), required(field<T>("lstrip", &T::lstrip)),
       required(field<T>("rstrip", &T::rstrip)), required(field<T>("normalized", &T::normalized))},
      [](const T&) {});
  py::class_<Tokenizer, std::shared_ptr<Tokenizer>>(m, "Tokenizer", "Text in, token ids out.")
      .def("encode", &encode, py::arg("text"), "Content ids of a text: no template tokens, no truncation.")
      .def("encode_batch", &encode_batch, py::arg("texts"),
           "Content ids of each text of a list; the GIL is released meanwhile.")
      .def_property_readonly("vocab_size", &Tokenizer::vocab_size);
  py::class_<WordPiece, Tokenizer, std::shared_ptr<WordPiece>>(
      m, "WordPiece", "BERT normalization and WordPiece, with the ids of `tokenizers`.")
      .def(py::init([](const py::object& vocab, std::vector<AddedToken> added_tokens, bool clean_text,
                       bool handle_chinese_chars, bool strip_accents, bool lowercase,
                       std::string unknown_token, std::string continuing_prefix, size_t max_chars_per_word) {
             WordPieceOptions options;
             const Texts tokens(vocab, "vocab");
             options.vocab.assign(tokens.views().begin(), tokens.views().end());
             options.added_tokens = std::move(added_tokens);
             options.clean_text = clean_text;
             options.handle_chinese_chars = handle_chinese_chars;
             options.strip_accents = strip_accents;
             options.lowercase = lowercase;
             options.unknown_token = std::move(unknown_token);
             options.continuing_prefix = std::move(continuing_prefix);
             options.max_chars_per_word = max_chars_per_word;
             return std::make_shared<WordPiece>(std::move(options));
           }),
           py::arg("vocab"), py::arg("added_tokens"), py::kw_only(), py::arg("clean_text") = true,
           py::arg("handle_chinese_chars") = true, py::arg("strip_accents") = true,
           py::arg("lowercase") = true, py::arg("unknown_token") = "[UNK]",
           py::arg("continuing_prefix") = "##", py::arg("max_chars_per_word") = 100);
  bind_subword(m);
}

}  // namespace embedkit
