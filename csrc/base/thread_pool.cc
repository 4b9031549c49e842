#include "base/thread_pool.h"

#include <algorithm>
#include <exception>

#include "base/platform.h"

namespace embedkit {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int cpus() {
  static const int count = default_threads();
  return count;
}

// A few microseconds: longer than the waits between two stages of balanced work. Past it the processor is
// shared with somebody else, who may be the one waited for.
constexpr int kSpins = 256;
// An idle helper stays awake for about as long as two queries in a row are apart.
constexpr int kIdleSpins = 8192;

}  // namespace

// With more workers than processors, some always wait for one that is not running: spinning is useless then.
Barrier::Barrier(int workers) : workers_(workers), spins_(workers <= cpus() ? kSpins : 0) {}

void Barrier::wait(bool counted) {
  const unsigned generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == workers_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; spins < spins_; ++spins) {
    if (generation_.load(std::memory_order_acquire) != generation) return;
    relax();
  }
  if (generation_.load(std::memory_order_acquire) != generation) return;
  const auto begin = std::chrono::steady_clock::now();
  while (generation_.load(std::memory_order_acquire) == generation) std::this_thread::yield();
  const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - begin;
  if (counted) waited_.fetch_add(waited.count(), std::memory_order_relaxed);
}

namespace {

struct Call {
  const std::function<void(Worker)>* body;
  Barrier* barrier;
  int count;
  std::atomic<int> running;
};

struct Task {
  Call* call;
  int index;
};

}  // namespace

struct ThreadPool::Helper {
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<bool> posted{false};
  bool idle = true;  // guarded by the pool's mutex
  Task task{};
};

void ThreadPool::loop(ThreadPool* pool, Helper* helper) {
  for (;;) {
    for (int spins = 0; spins < kIdleSpins && !helper->posted.load(std::memory_order_acquire); ++spins)
      relax();
    if (!helper->posted.load(std::memory_order_acquire)) {
      std::unique_lock lock(helper->mutex);
      helper->wake.wait(lock, [&] { return helper->posted.load(std::memory_order_acquire); });
    }
    const Task task = helper->task;
    helper->posted.store(false, std::memory_order_relaxed);
    (*task.call->body)({task.index, task.call->count, task.call->barrier});
    {
      std::lock_guard lock(pool->mutex_);
      helper->idle = true;
    }
    task.call->running.fetch_sub(1, std::memory_order_release);  // the call may be gone after this
  }
}

bool ThreadPool::start_helper() {
  helpers_.push_back(std::make_unique<Helper>());
  try {
    std::thread(loop, this, helpers_.back().get()).detach();
    return true;
  } catch (const std::exception&) {  // too many threads, or no memory for one
    helpers_.pop_back();
    return false;
  }
}

std::chrono::nanoseconds ThreadPool::run(int threads, const std::function<void(Worker)>& body) {
  std::vector<Helper*> chosen;
  if (threads > 1) {
    std::lock_guard lock(mutex_);
    const size_t wanted = static_cast<size_t>(threads) - 1;
    chosen.reserve(wanted);
    // Calls at the same time share the processors, and each has threads of its own while there are
    // processors.
    auto idle = static_cast<size_t>(
        std::count_if(helpers_.begin(), helpers_.end(), [](const auto& helper) { return helper->idle; }));
    const size_t most = std::max(wanted, static_cast<size_t>(cpus()) - 1);
    for (; idle < wanted && helpers_.size() < most && start_helper(); ++idle) {
    }
    for (auto& helper : helpers_) {
      if (chosen.size() == wanted) break;
      if (helper->idle) {
        helper->idle = false;
        chosen.push_back(helper.get());
      }
    }
  }
  const int count = static_cast<int>(chosen.size()) + 1;
  Barrier barrier(count);
  Call call{&body, &barrier, count, static_cast<int>(chosen.size())};
  for (int i = 1; i < count; ++i) {
    Helper* helper = chosen[static_cast<size_t>(i) - 1];
    {
      std::lock_guard lock(helper->mutex);
      helper->task = {&call, i};
      helper->posted.store(true, std::memory_order_release);
    }
    helper->wake.notify_one();
  }
  body({0, count, &barrier});
  for (int spins = 0; call.running.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
  return barrier.waited() / std::max(1, count - 1);
}

ThreadPool& ThreadPool::shared() {
  // Never destroyed: helpers may still wait on it while the process exits. In a forked child the parent's
  // pool has no threads and its locks may be held forever, so the child starts with a new one.
  static std::atomic<ThreadPool*> pool{nullptr};
  [[maybe_unused]] static const bool registered =
      (at_fork(nullptr, nullptr, [] { pool.store(nullptr); }), true);
  ThreadPool* current = pool.load(std::memory_order_acquire);
  if (current == nullptr) {
    auto* fresh = new ThreadPool();
    if (pool.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
  }
  return *current;
}

}  // namespace embedkit
