// The CPUs that cgroups grant, read from files as Linux has them.
#include "base/platform.h"

#include <filesystem>
#include <fstream>

#include "check.h"

namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const char* text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

double granted(const fs::path& root) {
  return embedkit::cgroup_cpus((root / "cgroup").string(), (root / "mount").string());
}

}  // namespace

int main() {
  const fs::path root = fs::temp_directory_path() / "embedkit_platform_test";
  fs::remove_all(root);
  CHECK(granted(root) == 0);
  write(root / "mount/cpu.max", "250000 100000\n");  // where no groups are told
  CHECK(granted(root) == 2.5);
  fs::remove_all(root);

  // Version 2: the least of the own group and those around it.
  write(root / "cgroup", "0::/system.slice/a.service\n");
  CHECK(granted(root) == 0);
  write(root / "mount/system.slice/a.service/cpu.max", "max 100000\n");
  CHECK(granted(root) == 0);
  write(root / "mount/system.slice/cpu.max", "350000 100000\n");
  CHECK(granted(root) == 3.5);
  write(root / "mount/system.slice/a.service/cpu.max", "200000 100000\n");
  CHECK(granted(root) == 2);
  write(root / "mount/cpu.max", "100000 100000\n");  // of a container's own root
  CHECK(granted(root) == 1);

  // Version 1, among other controllers.
  fs::remove_all(root);
  write(root / "cgroup", "9:name=systemd:/a\n4:cpuacct,cpu:/a\n3:cpuset:/b\n0::/\n");
  write(root / "mount/cpu/a/cpu.cfs_quota_us", "-1\n");
  write(root / "mount/cpu/a/cpu.cfs_period_us", "100000\n");
  CHECK(granted(root) == 0);
  write(root / "mount/cpu/a/cpu.cfs_quota_us", "150000\n");
  CHECK(granted(root) == 1.5);
  fs::remove_all(root);
  return embedkit::test::report();
}
