// Python strings as UTF-8 views that stay valid while the GIL is released.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>
#include <vector>

namespace embedkit {

/// UTF-8 views of Python strings and the references that keep them alive. ASCII strings are not copied; of
/// any other a `bytes` is made and held here, so that nothing is cached on the user's object. Destroy it with
/// the GIL held.
class Texts {
 public:
  /// `texts`: a list or tuple of str. `name` stands for it in messages ("texts[3] is int, not str").
  /// Throws TypeError for anything else, and ValueError naming index and position of a lone surrogate.
  explicit Texts(pybind11::handle texts, const std::string& name = "texts");

  const std::vector<std::string_view>& views() const { return views_; }
  size_t size() const { return views_.size(); }

 private:
  pybind11::tuple strings_;  // our own references: the caller's list may change while the GIL is released
  std::vector<pybind11::object> encoded_;
  std::vector<std::string_view> views_;
};

/// The same for a lone str; `keep` receives the object that owns the bytes.
std::string_view utf8_view(pybind11::handle text, pybind11::object& keep, const std::string& name = "text");

}  // namespace embedkit
