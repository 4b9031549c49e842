#include "base/sqlite_mutexes.h"

#include <chrono>
#include <thread>
#include <vector>

#include "base/platform.h"

namespace embedkit {
namespace {

// SQLITE_MUTEX_STATIC_MAIN to SQLITE_MUTEX_STATIC_VFS3 without those that are for applications. SQLite keeps
// them to itself, but gives them to who asks; the numbers are part of its interface, and never change.
constexpr int kKinds[] = {2, 3, 4, 5, 6, 7, 11, 12, 13};
constexpr auto kPatience = std::chrono::seconds(1);

SqliteMutexFunctions sqlite;
std::vector<void*> mutexes;
thread_local bool held = false;

bool enter_all() {
  size_t entered = 0;
  while (entered < mutexes.size() && sqlite.try_enter(mutexes[entered]) == 0) ++entered;
  if (entered == mutexes.size()) return true;
  while (entered > 0) sqlite.leave(mutexes[--entered]);
  return false;
}

void before_fork() {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  // One held while another is waited for might be the one that the other's holder needs.
  while (!(held = enter_all()) && std::chrono::steady_clock::now() < until) std::this_thread::yield();
}

void after_fork() {
  if (!held) return;
  for (void* mutex : mutexes) sqlite.leave(mutex);
  held = false;
}

}  // namespace

void hold_sqlite_over_forks(const SqliteMutexFunctions& functions) {
  if (!mutexes.empty()) return;
  sqlite = functions;
  for (const int kind : kKinds) mutexes.push_back(sqlite.alloc(kind));
  at_fork(before_fork, after_fork, after_fork);
}

}  // namespace embedkit
