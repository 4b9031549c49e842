// All that the core asks the operating system for, and the standard library has no word for. The system's own
// headers are included in platform.cc and nowhere else: who ports the core to another system reads one file.
#pragma once

#include <cstddef>

namespace embedkit {

/// Threads this process may use: its CPU affinity, bounded by the cgroup's quota; at least 1.
int default_threads();

/// Asks for huge pages below `bytes` bytes at `data`, both multiples of a huge page. Advice only: where the
/// system has none, or refuses, it costs speed and nothing else.
void advise_huge_pages(void* data, size_t bytes);

/// Calls `function` in the child of every later fork of this process, before fork returns there.
void after_fork_in_child(void (*function)());

/// Whether an aarch64 processor has the dot product of bytes (sdot, udot); false on every other one.
bool has_neon_dot_product();

/// Asks for the right to use AMX tiles, for all threads of the process and the children that it forks. False
/// where the system does not know or refuses them, as it does if a thread has a signal stack that is too
/// small for them.
bool request_tiles();

}  // namespace embedkit
