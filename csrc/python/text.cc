// The binding of the tokenizer: embedkit._core.WordPiece.
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python/bind.h"
#include "python/gil.h"
#include "python/options.h"
#include "python/texts.h"
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

py::list encode(const WordPiece& tokenizer, const py::object& text) {
  py::object keep;
  const std::string_view view = utf8_view(text, keep);
  std::vector<int32_t> ids;
  {
    const GilRelease release;
    WordPiece::Scratch scratch;
    tokenizer.encode(view, scratch, ids);
  }
  return list_of(ids.data(), ids.size());
}

py::list encode_batch(const WordPiece& tokenizer, const py::object& texts) {
  const Texts batch(texts);
  std::vector<int32_t> ids;
  std::vector<size_t> ends;
  {
    const GilRelease release;
    WordPiece::Scratch scratch;
    ends.reserve(batch.size());
    for (const std::string_view text : batch.views()) {
      tokenizer.encode(text, scratch, ids);
      ends.push_back(ids.size());
    }
  }
  py::list result(batch.size());
  size_t begin = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    PyList_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i),
                    list_of(ids.data() + begin, ends[i] - begin).release().ptr());
    begin = ends[i];
  }
  return result;
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
  py::class_<WordPiece, std::shared_ptr<WordPiece>>(
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
           py::arg("continuing_prefix") = "##", py::arg("max_chars_per_word") = 100)
      .def("encode", &encode, py::arg("text"), "Content ids of a text: no template tokens, no truncation.")
      .def("encode_batch", &encode_batch, py::arg("texts"),
           "Content ids of each text of a list; the GIL is released meanwhile.")
      .def_property_readonly("vocab_size", &WordPiece::vocab_size);
}

}  // namespace embedkit
