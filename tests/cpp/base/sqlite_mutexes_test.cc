// A fork waits until no other thread holds a mutex of SQLite, so that the child can take them all; a second
// at most.
#include "base/sqlite_mutexes.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "check.h"

using namespace embedkit;
using Clock = std::chrono::steady_clock;

namespace {

std::mutex mutexes[16];

bool all_are_free() {
  for (std::mutex& mutex : mutexes) {
    if (!mutex.try_lock()) return false;
    mutex.unlock();
  }
  return true;
}

/// Forks while another thread holds the mutex of `kind` for `time`; whether the child finds all of them free.
bool child_finds_all_free(int kind, std::chrono::milliseconds time) {
  std::promise<void> held;
  std::thread holder([&] {
    const std::lock_guard<std::mutex> lock(mutexes[kind]);
    held.set_value();
    std::this_thread::sleep_for(time);
  });
  held.get_future().wait();
  const pid_t child = fork();
  if (child == 0) _exit(all_are_free() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  holder.join();
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

int main() {
#if !defined(__SANITIZE_THREAD__)       // the thread sanitizer does not follow a fork of several threads
  for (int call = 0; call < 2; ++call)  // the second has no effect
    hold_sqlite_over_forks({
        [](int kind) -> void* { return &mutexes[kind]; },
        [](void* mutex) { return static_cast<std::mutex*>(mutex)->try_lock() ? 0 : 5; },
        [](void* mutex) { static_cast<std::mutex*>(mutex)->unlock(); },
    });
  CHECK(child_finds_all_free(3, std::chrono::milliseconds(100)));
  CHECK(child_finds_all_free(13, std::chrono::milliseconds(100)));
  CHECK(all_are_free());
  const auto begin = Clock::now();
  CHECK(!child_finds_all_free(3, std::chrono::seconds(3)));
  CHECK(Clock::now() - begin < std::chrono::seconds(6));
  CHECK(child_finds_all_free(6, std::chrono::milliseconds(0)));
  CHECK(all_are_free());
#endif
  return test::report();
}
