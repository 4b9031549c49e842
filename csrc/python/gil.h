#pragma once

#include <Python.h>

#include <chrono>
#include <thread>

namespace embedkit {

/// Releases the GIL for a scope.
///
/// While the interpreter exits, Python before 3.14 ends a thread that asks for the GIL by pthread_exit, which
/// unwinds the stack; through C++ that holds Python objects this would abort the process. Such a thread stops
/// here instead and goes with the process, as it does in Python 3.14.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(24));
    }
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace embedkit
