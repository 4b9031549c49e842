#include "base/platform.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#if defined(__linux__)
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
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

/// CPUs that one cgroup grants, or 0 for no limit.
double quota_of(const std::string& group, bool v2) {
  double granted = 0;
  double period = 0;
  if (v2) {
    std::ifstream limit(group + "/cpu.max");  // "200000 100000", or "max 100000" for no limit
    limit >> granted >> period;
  } else {
    std::ifstream(group + "/cpu.cfs_quota_us") >> granted;  // -1 for no limit
    std::ifstream(group + "/cpu.cfs_period_us") >> period;
  }
  return granted > 0 && period > 0 ? granted / period : 0;
}

}  // namespace

double cgroup_cpus(const std::string& groups_file, const std::string& mount) {
  double least = 0;
  std::ifstream groups(groups_file);  // "0::/system.slice/a.service"; of version 1 "4:cpu,cpuacct:/a"
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const bool v2 = second == first + 1;
    if (!v2 && (',' + line.substr(first + 1, second - first - 1) + ',').find(",cpu,") == std::string::npos)
      continue;
    const std::string root = v2 ? mount : mount + "/cpu";
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      const double granted = quota_of(root + path, v2);
      if (granted > 0 && (least == 0 || granted < least)) least = granted;
      if (path.find('/') == std::string::npos) break;
    }
  }
  // Where the system does not tell the groups, as in some sandboxes.
  if (least == 0) least = quota_of(mount, true);
  if (least == 0) least = quota_of(mount + "/cpu", false);
  return least;
}

int default_threads() {
  // Read once: opening the files takes 20 microseconds, and every call of a short text asks.
  static const double granted = cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
  int threads = std::max(1, affinity());
  if (granted > 0) threads = std::min(threads, std::max(1, static_cast<int>(granted + 0.5)));
  return threads;
}

void advise_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#if defined(__linux__)
  madvise(data, bytes, MADV_HUGEPAGE);
#endif
}

void release_freed_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

void at_fork([[maybe_unused]] void (*before)(), [[maybe_unused]] void (*in_parent)(),
             [[maybe_unused]] void (*in_child)()) {
#if defined(__unix__) || defined(__APPLE__)
  pthread_atfork(before, in_parent, in_child);
#endif
}

bool has_neon_dot_product() {
#if defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
  return true;  // every Apple processor that runs macOS
#else
  return false;
#endif
}

bool request_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  // Of asm/prctl.h and asm/fpu.h since Linux 5.16, whose headers need not be installed.
  constexpr long kArchReqXcompPerm = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace embedkit
