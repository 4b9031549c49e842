// One pool of helper threads for the whole process, used by gangs: the calling thread and whoever is idle.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/aligned.h"

namespace embedkit {

/// Lets the members of a gang wait for each other; spins, since the waits between two layers are
/// microseconds.
class Barrier {
 public:
  explicit Barrier(int members);
  void wait();

 private:
  const int members_;
  const int spins_;
  alignas(kCacheLine) std::atomic<int> arrived_{0};
  alignas(kCacheLine) std::atomic<unsigned> generation_{0};
};

/// One thread's place in a gang. All members run the same function; `sync` waits for all of them.
struct Member {
  int index;  ///< 0 is the calling thread
  int count;
  Barrier* barrier;

  void sync() const {
    if (count > 1) barrier->wait();
  }
};

class ThreadPool {
 public:
  /// The process' pool. After a fork the child gets a new one: threads do not survive a fork.
  static ThreadPool& shared();

  /// Runs `body` as a gang of the calling thread and at most `threads - 1` idle helpers, never waiting for a
  /// busy one, and returns when all have returned. `body` must not throw.
  void run(int threads, const std::function<void(Member)>& body);

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

 private:
  struct Helper;

  ThreadPool() = default;
  /// False if the system grants no more threads: gangs are then smaller.
  bool start_helper();
  static void loop(ThreadPool* pool, Helper* helper);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Helper>> helpers_;
};

}  // namespace embedkit
