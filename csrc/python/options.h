// Structs of the core as frozen classes of Python: made from keywords, read by attributes, changed by
// `replace`.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace embedkit {

/// Names of values, as they appear in Python.
template <typename Value>
using Names = std::vector<std::pair<const char*, Value>>;

/// The value of a name; another name is the caller's error.
template <typename Value>
Value choose(const std::string& name, const char* what, const Names<Value>& known) {
  for (const auto& [key, value] : known)
    if (name == key) return value;
  std::string names;
  for (const auto& [key, value] : known) names += (names.empty() ? "" : ", ") + std::string(key);
  throw pybind11::value_error(concat(what, " is '", name, "'; expected one of ", names));
}

/// One keyword of T.
template <typename T>
struct Field {
  const char* name;
  std::function<void(T&, const pybind11::object&)> set;     ///< may throw cast_error
  std::function<pybind11::object(const T&)> get = nullptr;  ///< null: the value cannot be read back
  bool required = false;
};

/// Marks a field that must be given.
template <typename T>
Field<T> required(Field<T> field) {
  field.required = true;
  return field;
}

template <typename T, typename Base, typename Value>
Field<T> field(const char* name, Value Base::* member) {
  return {name, [=](T& to, const pybind11::object& value) { to.*member = value.cast<Value>(); },
          [=](const T& from) { return pybind11::cast(from.*member); }};
}

/// A field whose values have names.
template <typename T, typename Base, typename Value>
Field<T> field(const char* name, Value Base::* member, const Names<Value>& known) {
  return {name,
          [=](T& to, const pybind11::object& value) {
            to.*member = choose<Value>(value.cast<std::string>(), name, known);
          },
          [=](const T& from) -> pybind11::object {
            for (const auto& [key, value] : known)
              if (value == from.*member) return pybind11::str(key);
            throw InternalError(concat("a value of ", name, " has no name"));
          }};
}

/// Binds T as the frozen class `name`.
///
/// An unknown keyword, a missing one and a value of the wrong type are TypeErrors that name it; what `check`
/// throws about the whole comes on top.
template <typename T>
void bind_options(pybind11::module_& m, const char* name, const std::vector<Field<T>>& fields,
                  const std::function<void(const T&)>& check) {
  namespace py = pybind11;
  const auto assign = [=](T& to, const py::kwargs& given) {
    for (const auto& [key, value] : given) {
      const auto wanted = py::cast<std::string>(key);
      const auto found = std::find_if(fields.begin(), fields.end(),
                                      [&](const Field<T>& field) { return wanted == field.name; });
      if (found == fields.end()) {
        std::string known;
        for (const Field<T>& field : fields) known += (known.empty() ? "" : ", ") + std::string(field.name);
        throw py::type_error(concat(name, " has no option '", wanted, "'; it has ", known));
      }
      try {
        found->set(to, py::reinterpret_borrow<py::object>(value));
      } catch (const py::cast_error&) {
        throw py::type_error(concat(name, ": ", wanted, " is ", std::string(py::str(py::repr(value)))));
      }
    }
    check(to);
  };
  py::class_<T> bound(m, name);
  bound.def(py::init([=](const py::kwargs& given) {
    for (const Field<T>& field : fields)
      if (field.required && !given.contains(field.name))
        throw py::type_error(concat(name, " lacks '", field.name, "'"));
    T made{};
    assign(made, given);
    return made;
  }));
  bound.def("replace", [=](const T& self, const py::kwargs& changes) {
    T copy = self;
    assign(copy, changes);
    return copy;
  });
  bound.def("__repr__", [=](const T& self) {
    std::string text;
    for (const Field<T>& field : fields)
      if (field.get)
        text += (text.empty() ? "" : ", ") +
                concat(field.name, "=", std::string(py::str(py::repr(field.get(self)))));
    return concat(name, "(", text, ")");
  });
  for (const Field<T>& field : fields)
    if (field.get) bound.def_property_readonly(field.name, field.get);
}

}  // namespace embedkit
