// Where the time of an encode call goes: a clock for each thread, charged at the end of each stage. A thread
// without one pays a load and a branch.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>

namespace embedkit {

enum class Stage { kTokenize, kQuantize, kProducts, kAttention, kElementWise, kPool, kHandOver, kWait };
constexpr std::array<const char*, 8> kStageNames = {"tokenize",     "quantize", "products",  "attention",
                                                    "element-wise", "pool",     "hand-over", "wait"};

class StageClock {
 public:
  using Clock = std::chrono::steady_clock;
  /// Seconds by stage.
  using Times = std::array<double, kStageNames.size()>;

  /// Makes a clock the thread's for a scope and starts it; null leaves the thread without.
  class Running {
   public:
    explicit Running(StageClock* clock) : before_(current_) {
      current_ = clock;
      if (clock != nullptr) clock->last_ = Clock::now();
    }
    ~Running() { current_ = before_; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    StageClock* before_;
  };

  /// Charges the time since the thread's last call to `stage`.
  static void lap(Stage stage) {
    if (current_ != nullptr) current_->charge(stage);
  }

  const Times& times() const { return times_; }

 private:
  void charge(Stage stage) {
    const Clock::time_point now = Clock::now();
    times_[static_cast<size_t>(stage)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

  inline static thread_local StageClock* current_ = nullptr;
  Clock::time_point last_;
  Times times_{};
};

}  // namespace embedkit
