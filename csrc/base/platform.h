// All that the core asks the operating system for, and the standard library has no word for. The system's own
// headers are included in platform.cc and nowhere else: who ports the core to another system reads one file.
#pragma once

#include <cstddef>
#include <string>

namespace embedkit {

/// Threads this process may use: its CPU affinity, bounded by the cgroup's quota; at least 1.
int default_threads();

/// CPUs that the cgroups (version 1 or 2) in `groups_file`, and those around them, grant below `mount`; 0 for
/// no limit.
double cgroup_cpus(const std::string& groups_file, const std::string& mount);

/// Asks for huge pages below `bytes` bytes at `data`, both multiples of a huge page. Advice only: where the
/// system has none, or refuses, it costs speed and nothing else.
void advise_huge_pages(void* data, size_t bytes);

/// Gives the memory that has been freed back to the system, where the C library can be told to (glibc). It
/// keeps freed blocks that lie below one in use: beside packed matrices, all that their model was read with.
void release_freed_memory();

/// Calls these functions, where not null, around every later fork of this process: the first before it, the
/// others before fork returns.
void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

/// Whether an aarch64 processor has the dot product of bytes (sdot, udot); false on every other one.
bool has_neon_dot_product();

/// Asks for the right to use AMX tiles, for all threads of the process and the children that it forks. False
/// where the system does not know or refuses them, as it does if a thread has a signal stack that is too
/// small for them.
bool request_tiles();

}  // namespace embedkit
