#include "base/cpu.h"

#include <algorithm>
#include <fstream>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace embedkit {
namespace {

int affinity() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

/// CPUs granted by the cgroup (version 2, then 1), or 0 for no limit.
double quota() {
  double granted = 0;
  double period = 0;
  std::ifstream v2("/sys/fs/cgroup/cpu.max");  // "200000 100000", or "max 100000" for no limit
  if (v2 >> granted >> period && granted > 0 && period > 0) return granted / period;
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1_quota >> granted && v1_period >> period && granted > 0 && period > 0) return granted / period;
  return 0;
}

}  // namespace

int default_threads() {
  int threads = std::max(1, affinity());
  const double granted = quota();
  if (granted > 0) threads = std::min(threads, std::max(1, static_cast<int>(granted + 0.5)));
  return threads;
}

}  // namespace embedkit
