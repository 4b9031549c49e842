// Detection: the reference comes first, what is only for tests never last; AMX comes with AVX-512 and asks
// the system once, from any number of threads; the cache's size is what the system says.
#include "base/isa.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"

using namespace embedkit;

namespace {

bool available(Isa isa) {
  const std::vector<Isa> isas = available_isas();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

void detection() {
  const std::vector<Isa> isas = available_isas();
  CHECK(isas.front() == Isa::kReference);
  CHECK(isas.back() != Isa::kAmxEmulated);
  CHECK(active_isa() == isas.back());
  CHECK_EQ(available(Isa::kAmxEmulated), available(Isa::kAvx2));
  CHECK_EQ(available(Isa::kAmx), has_amx());
  CHECK(!has_amx() || (has_avx512_vnni() && isas.back() == Isa::kAmx));
  std::vector<int> answers(8, -1);
  std::vector<std::thread> threads;
  for (int& answer : answers) threads.emplace_back([&answer] { answer = has_amx() ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();
  for (const int answer : answers) CHECK_EQ(answer, has_amx() ? 1 : 0);
}

void forced() {
  for (const Isa isa : {Isa::kReference, Isa::kAmxEmulated, Isa::kAvx2, Isa::kAvx512Vnni, Isa::kAmx}) {
    setenv("EMBEDKIT_ISA", std::string(isa_name(isa)).c_str(), 1);
    if (available(isa)) {
      CHECK(active_isa() == isa);
    } else {
      CHECK_THROWS(active_isa(), InvalidArgument);
    }
  }
  unsetenv("EMBEDKIT_ISA");
}

void cache() {
  const size_t bytes = second_level_cache();
  CHECK(bytes >= size_t{64} << 10 && bytes <= size_t{64} << 20);
#if defined(__x86_64__)
  std::vector<size_t> known;  // of different cores
  for (int cpu = 0; cpu < 256; ++cpu)
    for (int i = 0; i < 8; ++i) {
      const std::string folder =
          concat("/sys/devices/system/cpu/cpu", std::to_string(cpu), "/cache/index", std::to_string(i));
      std::ifstream level_file(folder + "/level"), size_file(folder + "/size");
      int level = 0;
      size_t kilobytes = 0;
      char unit = 0;
      if (level_file >> level && level == 2 && size_file >> kilobytes >> unit && unit == 'K')
        known.push_back(kilobytes << 10);
    }
  CHECK(known.empty() || std::find(known.begin(), known.end(), bytes) != known.end());
#endif
}

}  // namespace

int main() {
  unsetenv("EMBEDKIT_ISA");
  detection();
  forced();
  cache();
  return test::report();
}
