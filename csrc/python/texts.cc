#include "python/texts.h"

#include <cstdio>

#include "base/error.h"

namespace embedkit {
namespace {

namespace py = pybind11;

[[noreturn]] void refuse_surrogate(PyObject* text, const std::string& name) {
  py::error_scope scope;  // takes the UnicodeEncodeError away; ours says which text it is
  const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
  Py_ssize_t position = 0;
  Py_UCS4 c = 0;
  for (; position < length; ++position) {
    c = PyUnicode_READ_CHAR(text, position);
    if (c >= 0xD800 && c <= 0xDFFF) break;
  }
  char code[16];
  std::snprintf(code, sizeof code, "U+%04X", static_cast<unsigned>(c));
  throw py::value_error(concat(name, " holds a lone surrogate (", code, ") at position ", position,
                               ", which is not text; decode the input with errors=\"replace\""));
}

// The view of a string; unless it is ASCII, `keep` receives the new `bytes` that owns it.
template <typename Keep, typename Name>
std::string_view view_of(PyObject* text, const Keep& keep, const Name& name) {
  if (!PyUnicode_Check(text)) {
    throw py::type_error(concat(name(), " is ", Py_TYPE(text)->tp_name, ", not str"));
  }
#if PY_VERSION_HEX < 0x030C0000
  if (PyUnicode_READY(text) != 0) throw py::error_already_set();
#endif
  if (PyUnicode_IS_ASCII(text)) {
    return {reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(text)),
            static_cast<size_t>(PyUnicode_GET_LENGTH(text))};
  }
  PyObject* bytes = PyUnicode_AsUTF8String(text);
  if (bytes == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) throw py::error_already_set();
    refuse_surrogate(text, name());
  }
  keep(py::reinterpret_steal<py::object>(bytes));
  return {PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes))};
}

}  // namespace

Texts::Texts(py::handle texts, const std::string& name) {
  if (!PyList_Check(texts.ptr()) && !PyTuple_Check(texts.ptr())) {
    throw py::type_error(concat(name, " is ", Py_TYPE(texts.ptr())->tp_name, ", not a list of str"));
  }
  strings_ = py::reinterpret_steal<py::tuple>(PySequence_Tuple(texts.ptr()));
  if (!strings_) throw py::error_already_set();
  const size_t count = strings_.size();
  views_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    views_.push_back(view_of(
        PyTuple_GET_ITEM(strings_.ptr(), i), [&](py::object bytes) { encoded_.push_back(std::move(bytes)); },
        [&] { return concat(name, "[", i, "]"); }));
  }
}

std::string_view utf8_view(py::handle text, py::object& keep, const std::string& name) {
  keep = py::reinterpret_borrow<py::object>(text);
  return view_of(text.ptr(), [&](py::object bytes) { keep = std::move(bytes); }, [&] { return name; });
}

}  // namespace embedkit
