#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

namespace embedkit {

/// Carries "stop" from the caller, or from a failed thread, to all threads of one call.
class StopToken {
 public:
  /// `asked` returns whether the caller wants to stop (a pending Ctrl-C). It is called on the constructing
  /// thread only, and seldom, since it may wait for the interpreter.
  explicit StopToken(std::function<bool()> asked = nullptr,
                     std::chrono::milliseconds interval = std::chrono::milliseconds(25))
      : asked_(std::move(asked)), interval_(interval) {}

  void stop() { stopped_.store(true, std::memory_order_relaxed); }

  /// True once anybody has stopped; to be called between two layers.
  bool poll() {
    if (asked_ && std::this_thread::get_id() == owner_) {
      if (std::chrono::steady_clock::now() - last_ >= interval_) {
        if (asked_()) {
          interrupted_ = true;
          stop();
        }
        last_ = std::chrono::steady_clock::now();
      }
    }
    return stopped_.load(std::memory_order_relaxed);
  }

  /// Whether it was the caller who stopped; for the constructing thread.
  bool interrupted() const { return interrupted_; }

 private:
  std::function<bool()> asked_;
  std::chrono::milliseconds interval_;
  std::thread::id owner_ = std::this_thread::get_id();
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::atomic<bool> stopped_{false};
  bool interrupted_ = false;
};

}  // namespace embedkit
