/* Loaded before libc (LD_PRELOAD): after fail_after(n, error, forever), the n-th call that changes a file fails with that
   errno, and with `forever` all later ones do. remaining() is 0 once it has. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/types.h>

static atomic_long left;
static atomic_int error_number, goes_on;

void fail_after(long calls, int error, int forever) {
  error_number = error;
  goes_on = forever;
  left = calls;
}

long remaining(void) { return left < 0 ? 0 : left; }

/* left: 0 is off, above 0 counts down, -1 fails for ever */
static int fails(void) {
  long now = atomic_load(&left);
  for (;;) {
    if (now == 0) return 0;
    if (now < 0) break;
    const long next = now > 1 ? now - 1 : goes_on ? -1 : 0;
    if (!atomic_compare_exchange_weak(&left, &now, next)) continue;
    if (now > 1) return 0;
    break;
  }
  errno = error_number;
  return 1;
}

#define CHANGES(type, name, failure, parameters, arguments) \
  type name parameters {                                    \
    static type(*real) parameters;                          \
    if (!real) *(void**)&real = dlsym(RTLD_NEXT, #name);    \
    return fails() ? failure : real arguments;              \
  }
#define CHANGES_FILE(type, name, failure, parameters, arguments) \
  type name parameters {                                         \
    static type(*real) parameters;                               \
    if (!real) *(void**)&real = dlsym(RTLD_NEXT, #name);         \
    return fd > 2 && fails() ? failure : real arguments;         \
  }

CHANGES_FILE(ssize_t, write, -1, (int fd, const void* from, size_t size), (fd, from, size))
CHANGES_FILE(ssize_t, pwrite, -1, (int fd, const void* from, size_t size, off_t at), (fd, from, size, at))
CHANGES_FILE(ssize_t, pwrite64, -1, (int fd, const void* from, size_t size, __off64_t at), (fd, from, size, at))
CHANGES_FILE(int, ftruncate, -1, (int fd, off_t size), (fd, size))
CHANGES_FILE(int, ftruncate64, -1, (int fd, __off64_t size), (fd, size))
CHANGES_FILE(int, fsync, -1, (int fd), (fd))
CHANGES_FILE(int, fdatasync, -1, (int fd), (fd))
CHANGES(int, rename, -1, (const char* from, const char* to), (from, to))
CHANGES(int, mkdir, -1, (const char* path, mode_t mode), (path, mode))
CHANGES(size_t, fwrite, 0, (const void* from, size_t size, size_t count, FILE* file), (from, size, count, file))
