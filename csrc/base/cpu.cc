#include "base/cpu.h"

#include <algorithm>
#include <fstream>
#include <string>
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
  std::string limit;
  double period = 0;
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  if (v2 >> limit >> period) return limit == "max" || period <= 0 ? 0 : std::stod(limit) / period;
  double granted = 0;
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
