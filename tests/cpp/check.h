// The checks of the C++ unit tests: a failed one prints where and what, and the program exits with 1 at its
// end.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>

namespace embedkit::test {

inline int failures = 0;

inline void fail(const char* file, int line, const std::string& what) {
  ++failures;
  if (failures <= 20) std::cerr << file << ":" << line << ": " << what << "\n";
}

inline int report() {
  if (failures != 0) std::cerr << failures << " checks failed\n";
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace embedkit::test

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) embedkit::test::fail(__FILE__, __LINE__, "not so: " #condition); \
  } while (0)

#define CHECK_EQ(a, b)                                           \
  do {                                                           \
    const auto& check_a = (a);                                   \
    const auto& check_b = (b);                                   \
    if (!(check_a == check_b)) {                                 \
      std::ostringstream text;                                   \
      text << #a " is " << check_a << ", " #b " is " << check_b; \
      embedkit::test::fail(__FILE__, __LINE__, text.str());      \
    }                                                            \
  } while (0)

#define CHECK_THROWS(expression, type)                                                       \
  do {                                                                                       \
    bool caught = false;                                                                     \
    try {                                                                                    \
      (void)(expression);                                                                    \
    } catch (const type&) {                                                                  \
      caught = true;                                                                         \
    }                                                                                        \
    if (!caught) embedkit::test::fail(__FILE__, __LINE__, "no " #type " from " #expression); \
  } while (0)
