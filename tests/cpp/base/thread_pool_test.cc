// Every worker runs once, barriers hold the workers of a call together, calls of several threads do not
// disturb each other, and a forked child has a pool of its own.
#include "base/thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"

using namespace embedkit;

namespace {

bool call_counts(int threads) {
  std::atomic<int> ran{0};
  std::vector<int> steps(64, 0);
  std::atomic<bool> together{true};
  ThreadPool::shared().run(threads, [&](Worker worker) {
    ran += 1;
    for (int round = 1; round <= 50; ++round) {
      steps[static_cast<size_t>(worker.index)] = round;
      worker.sync();
      for (int m = 0; m < worker.count; ++m)
        if (steps[static_cast<size_t>(m)] != round) together = false;
      worker.sync();
    }
    if (worker.count > threads) together = false;
  });
  return together && ran >= 1 && ran <= threads;
}

/// How many calls in a row may not be shared.
int alone(LoneCalls& calls) {
  int count = 0;
  while (!calls.may_share()) ++count;
  return count;
}

void test_lone_calls() {
  using std::chrono::microseconds;
  LoneCalls calls;
  CHECK_EQ(alone(calls), 0);
  calls.shared(microseconds(20), microseconds(100));
  CHECK_EQ(alone(calls), 0);
  for (const int expected : {8, 16, 32, 64, 128, 256, 256}) {
    calls.shared(microseconds(60), microseconds(100));
    CHECK_EQ(alone(calls), 0);
    calls.shared(microseconds(60), microseconds(100));
    CHECK_EQ(alone(calls), expected);
  }
  for (const int expected : {128, 32, 8, 8}) {
    calls.shared(microseconds(0), microseconds(100));
    CHECK_EQ(alone(calls), 0);
    calls.shared(microseconds(1500), microseconds(2000));
    CHECK_EQ(alone(calls), expected);
    calls.shared(microseconds(0), microseconds(100));
    calls.shared(microseconds(0), microseconds(100));
  }
}

void test_waiting_is_measured() {
  const std::chrono::milliseconds late(200);  // more than a busy machine delays a thread
  for (const bool counted : {true, false}) {
    bool helped = false;
    const auto waited = ThreadPool::shared().run(2, [&](Worker worker) {
      if (worker.index == 1) {
        helped = true;
        std::this_thread::sleep_for(late);
      }
      worker.sync(counted);
    });
    CHECK(!helped || (waited > late / 2) == counted);
  }
}

}  // namespace

int main() {
  test_lone_calls();
  test_waiting_is_measured();
  for (const int threads : {1, 2, 3, 5}) CHECK(call_counts(threads));

  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat) wrong += call_counts(3) ? 0 : 1;
    });
  for (std::thread& caller : callers) caller.join();
  CHECK_EQ(wrong.load(), 0);

#if !defined(__SANITIZE_THREAD__)  // the thread sanitizer does not follow a fork of several threads
  const pid_t child = fork();
  if (child == 0) _exit(call_counts(3) ? 0 : 1);
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(call_counts(2));
#endif
  return test::report();
}
