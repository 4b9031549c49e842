// Options that Python gives in a dict.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "base/error.h"
#include "pipeline/token_window.h"

namespace embedkit {

/// Values of a dict by key; a missing key or a wrong type is the caller's error.
class Options {
 public:
  Options(const pybind11::dict& dict, const char* name) : dict_(dict), name_(name) {}

  template <typename T>
  T get(const char* key) const {
    if (!dict_.contains(key)) throw pybind11::value_error(concat(name_, " lacks '", key, "'"));
    return convert<T>(key);
  }

  template <typename T>
  T get(const char* key, T fallback) const {
    return dict_.contains(key) ? convert<T>(key) : fallback;
  }

 private:
  template <typename T>
  T convert(const char* key) const {
    try {
      return dict_[key].cast<T>();
    } catch (const pybind11::cast_error&) {
      throw pybind11::type_error(
          concat(name_, "['", key, "'] is ", std::string(pybind11::str(pybind11::repr(dict_[key])))));
    }
  }

  pybind11::dict dict_;
  const char* name_;
};

/// The value of a name; another name is the caller's error.
template <typename Value>
Value choose(const std::string& name, const char* what,
             std::initializer_list<std::pair<const char*, Value>> known) {
  std::string names;
  for (const auto& [key, value] : known) {
    if (name == key) return value;
    names += (names.empty() ? "" : ", ") + std::string(key);
  }
  throw pybind11::value_error(concat(what, " is '", name, "'; known are ", names));
}

/// What tokenization takes from the options of a call.
TokenizeOptions tokenize_options_of(const pybind11::dict& dict);

}  // namespace embedkit
