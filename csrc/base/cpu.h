#pragma once

namespace embedkit {

/// Threads this process may use: its CPU affinity, bounded by the cgroup's quota; at least 1.
int default_threads();

}  // namespace embedkit
