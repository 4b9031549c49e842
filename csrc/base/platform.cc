#include "base/platform.h"

#include <algorithm>
#include <fstream>
#include <thread>

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

/// CPUs granted by the cgroup (version 2, then 1), or 0 for no limit.
double read_quota() {
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
  // Read once: opening the files takes 20 microseconds, and every call of a short text asks.
  static const double granted = read_quota();
  int threads = std::max(1, affinity());
  if (granted > 0) threads = std::min(threads, std::max(1, static_cast<int>(granted + 0.5)));
  return threads;
}

void advise_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#if defined(__linux__)
  madvise(data, bytes, MADV_HUGEPAGE);
#endif
}

void after_fork_in_child([[maybe_unused]] void (*function)()) {
#if defined(__unix__) || defined(__APPLE__)
  pthread_atfork(nullptr, nullptr, function);
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
