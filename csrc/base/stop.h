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
  /// `asked` tells whether the caller wants to stop (a pending Ctrl-C). It is called on the constructing
  /// thread only, and seldom, since it may wait for the interpreter.
  explicit StopToken(std::function<bool()> asked = nullptr) : asked_(std::move(asked)) {}

  void stop() { stopped_.store(true, std::memory_order_relaxed); }

  /// True once anybody has stopped; to be called between two layers.
  bool poll() {
    if (asked_ && std::this_thread::get_id() == owner_) {
      const auto now = std::chrono::steady_clock::now();
      if (now - last_ > kInterval) {
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
  static constexpr std::chrono::milliseconds kInterval{25};

  std::function<bool()> asked_;
  std::thread::id owner_ = std::this_thread::get_id();
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::atomic<bool> stopped_{false};
  bool interrupted_ = false;
};

}  // namespace embedkit
