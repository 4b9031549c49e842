#pragma once

#include <atomic>
#include <exception>
#include <mutex>

#include "base/error.h"
#include "base/stop.h"

namespace embedkit {

/// Keeps the first error of any worker and stops the others.
class FirstError {
 public:
  explicit FirstError(StopToken& stop) : stop_(stop) {}

  /// Runs `body` unless one has failed.
  template <class Body>
  void guard(Body&& body) {
    if (failed()) return;
    try {
      body();
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_.store(true, std::memory_order_relaxed);
      stop_.stop();
    }
  }

  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  /// For one thread, when all workers have returned.
  void rethrow() const {
    if (stop_.interrupted()) throw Interrupted();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  StopToken& stop_;
  std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
};

}  // namespace embedkit
