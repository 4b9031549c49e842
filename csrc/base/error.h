// Two kinds of check: what the caller got wrong (InvalidArgument) and what this library got wrong
// (InternalError).
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace embedkit {

/// The caller's input is not acceptable; the message names the input and the remedy.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// An invariant of this library is broken.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Work was stopped at the caller's request (Ctrl-C).
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

/// Throws InvalidArgument with the concatenated parts unless `condition` holds.
template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]]
    throw InvalidArgument(concat(parts...));
}

/// Throws InternalError unless `condition` holds.
inline void invariant(bool condition, const char* what) {
  if (!condition) [[unlikely]]
    throw InternalError(concat("embedkit internal error: ", what));
}

}  // namespace embedkit
