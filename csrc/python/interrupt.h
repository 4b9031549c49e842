#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <functional>

#include "base/error.h"
#include "base/stop.h"
#include "python/gil.h"

namespace embedkit {

/// Asks the interpreter for a pending Ctrl-C, which only the main thread receives; the exception is kept
/// until `rethrow`.
class InterruptPoll {
 public:
  std::function<bool()> callback() {
    const pybind11::object main = pybind11::module_::import("threading").attr("main_thread")();
    if (main.attr("ident").cast<unsigned long>() != PyThread_get_thread_ident()) return nullptr;
    return [this] { return asked(); };
  }
  void rethrow() {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  bool asked() {
    const pybind11::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) return false;
    error_ = std::make_exception_ptr(pybind11::error_already_set());
    return true;
  }

  std::exception_ptr error_;
};

/// Runs `body` without the GIL; a Ctrl-C, which stops it, is raised.
template <class Body>
void heard(Body&& body) {
  InterruptPoll poll;
  StopToken stop(poll.callback());
  try {
    const GilRelease release;
    body(stop);
    stop.poll();
  } catch (const Interrupted&) {
    poll.rethrow();
    throw;
  }
  poll.rethrow();  // of a body that returns when it is stopped
}

}  // namespace embedkit
