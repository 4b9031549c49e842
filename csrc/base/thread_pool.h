// One pool of helper threads for the whole process. A call runs on workers: its own thread and idle helpers.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/aligned.h"
#include "base/stop.h"

namespace embedkit {

/// Lets the workers of a call wait for each other; spins, since the waits between two layers are
/// microseconds.
class Barrier {
 public:
  explicit Barrier(int workers);
  void wait(bool counted = true);
  /// How long workers waited, all together, beyond the spinning, where it is counted: for one that was not
  /// running.
  std::chrono::nanoseconds waited() const {
    return std::chrono::nanoseconds(waited_.load(std::memory_order_relaxed));
  }

 private:
  const int workers_;
  const int spins_;
  std::atomic<int64_t> waited_{0};
  alignas(kCacheLine) std::atomic<int> arrived_{0};
  alignas(kCacheLine) std::atomic<unsigned> generation_{0};
};

/// Part of some items: `begin` up to `end`.
struct Share {
  size_t begin;
  size_t end;

  size_t size() const { return end - begin; }
  Share shifted(size_t by) const { return {begin + by, end + by}; }
};

/// One of the threads that run a call. All workers run the same function; `sync` waits for all of them.
struct Worker {
  int index;  ///< 0 is the calling thread
  int count;
  Barrier* barrier;

  /// This worker's part of `items`.
  Share share(size_t items) const {
    const auto i = static_cast<size_t>(index), n = static_cast<size_t>(count);
    return {items * i / n, items * (i + 1) / n};
  }
  void sync(bool counted = true) const {
    if (count > 1) barrier->wait(counted);
  }
};

/// Where the workers of a call have finished a part of it. The calling thread goes on asking for a Ctrl-C
/// until all have: another may be at a text of 100 MB.
class Finished {
 public:
  void reset() { count_.store(0, std::memory_order_relaxed); }
  void wait(const Worker& worker, StopToken& stop) {
    count_.fetch_add(1, std::memory_order_acq_rel);
    if (worker.index != 0) return;
    while (count_.load(std::memory_order_acquire) < worker.count) {
      stop.poll();
      std::this_thread::yield();
    }
  }

 private:
  std::atomic<int> count_{0};
};

class ThreadPool {
 public:
  /// The pool of the process. After a fork the child gets a new one: threads do not survive a fork.
  static ThreadPool& shared();

  /// Runs `body` on the calling thread and at most `threads - 1` idle helpers, never waiting for a
  /// busy one, and returns when all have returned: how long one worker waited for another, what
  /// `Barrier::waited` says by the number of those that wait. `body` must not throw.
  std::chrono::nanoseconds run(int threads, const std::function<void(Worker)>& body);

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

 private:
  struct Helper;

  ThreadPool() = default;
  /// False if the system grants no more threads: calls then run on fewer workers.
  bool start_helper();
  static void loop(ThreadPool* pool, Helper* helper);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Helper>> helpers_;
};

/// Whether the workers of a lone text may wait for each other. Where other processes use the processors, too,
/// they often wait for one that is not running, and a single worker is faster: after such a call the next
/// ones, each time more of them, have one. Helpers fall asleep meanwhile, and the call that wakes them is
/// late on a quiet machine, too: of short waits it takes two in a row. Thread-safe.
class LoneCalls {
 public:
  /// Asks for one call.
  bool may_share() {
    int left = alone_.load(std::memory_order_relaxed);
    while (left > 0)
      if (alone_.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) return false;
    return true;
  }
  /// Tells of a call that was shared: how long a worker waited, and how long it took. Two workers that wait
  /// half of the time are no faster than one.
  void shared(std::chrono::nanoseconds waited, std::chrono::nanoseconds took) {
    const int next = next_.load(std::memory_order_relaxed);
    if (waited <= took / 2) {
      late_.store(false, std::memory_order_relaxed);
      next_.store(std::max(next / 2, kFirst), std::memory_order_relaxed);
    } else if (waited >= kWaking || late_.load(std::memory_order_relaxed)) {
      late_.store(false, std::memory_order_relaxed);
      alone_.store(next, std::memory_order_relaxed);
      next_.store(std::min(2 * next, kMost), std::memory_order_relaxed);
    } else {
      late_.store(true, std::memory_order_relaxed);
    }
  }

 private:
  static constexpr int kFirst = 8;
  static constexpr int kMost = 256;
  /// Longer than a sleeping helper takes to wake up.
  static constexpr std::chrono::microseconds kWaking{500};

  std::atomic<int> alone_{0};      ///< calls with one worker that are left
  std::atomic<bool> late_{false};  ///< whether the last shared call waited
  std::atomic<int> next_{kFirst};  ///< calls with one worker after the next late one
};

}  // namespace embedkit
