// The binding of what the core asks of the system: embedkit._core.default_threads and others.
#include "base/platform.h"

#include <pybind11/pybind11.h>

#include <cstdint>

#include "base/sqlite_mutexes.h"
#include "python/bind.h"
#include "python/gil.h"

namespace py = pybind11;

namespace embedkit {

void bind_platform(py::module_& m) {
  m.def("default_threads", &default_threads,
        "How many threads the CPU affinity and the cgroup quota of this process allow.");
  m.def(
      "release_freed_memory",
      [] {
        const GilRelease release;
        release_freed_memory();
      },
      "Give freed memory back to the system, where the C library can be told to (glibc).");
  m.def(
      "hold_sqlite_over_forks",
      [](uintptr_t alloc, uintptr_t try_enter, uintptr_t leave) {
        hold_sqlite_over_forks({reinterpret_cast<void* (*)(int)>(alloc),
                                reinterpret_cast<int (*)(void*)>(try_enter),
                                reinterpret_cast<void (*)(void*)>(leave)});
      },
      py::arg("alloc"), py::arg("try_enter"), py::arg("leave"),
      "Have forks wait for other threads in SQLite, whose functions ``sqlite3_mutex_…`` are at these "
      "addresses.");
}

}  // namespace embedkit
