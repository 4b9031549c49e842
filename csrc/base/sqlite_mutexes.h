#pragma once

namespace embedkit {

/// SQLite's functions of these names, in the library that the process uses.
struct SqliteMutexFunctions {
  void* (*alloc)(int kind);
  int (*try_enter)(void* mutex);
  void (*leave)(void* mutex);
};

/// Has every later fork of this process wait until no other thread is in SQLite's allocator or another of its
/// global parts, up to a second. In the child their mutexes would stay locked forever: the next call of
/// SQLite would not return, whichever connection it is of. Further calls have no effect.
void hold_sqlite_over_forks(const SqliteMutexFunctions& functions);

}  // namespace embedkit
