#include "base/isa.h"

#include <cstdlib>

#include "base/error.h"
#include "base/platform.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace embedkit {
#if defined(__x86_64__)
namespace {

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;

  /// All zero where the processor does not have the leaf.
  explicit Cpuid(unsigned leaf, unsigned subleaf = 0) {
    __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx);
  }
};

bool bit(unsigned word, int n) { return (word >> n & 1) != 0; }

/// Tiles in the size that the kernels are written for, int8 and bfloat16, and a system that saves them.
bool processor_has_amx() {
  if (!bit(Cpuid(1).ecx, 27)) return false;  // OSXSAVE, without which xgetbv faults
  unsigned low = 0, high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  const Cpuid features(7), more(7, 1), palette(0x1d, 1);
  return bit(low, 17) && bit(low, 18) &&                    // tile configuration, tile data
         bit(features.edx, 22) && bit(features.edx, 24) &&  // AMX-BF16, AMX-TILE
         bit(features.edx, 25) &&                           // AMX-INT8
         bit(more.eax, 5) &&                                // AVX512_BF16, which rounds what the tiles read
         palette.eax >> 16 == 1024 && palette.ebx >> 16 >= 8 && (palette.ebx & 0xffff) == 64 &&
         (palette.ecx & 0xffff) == 16;
}

}  // namespace
#endif

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return "reference";
    case Isa::kAmxEmulated:
      return "amx_emulated";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx2Vnni:
      return "avx2_vnni";
    case Isa::kAvx512Vnni:
      return "avx512_vnni";
    case Isa::kAmx:
      return "amx";
    case Isa::kNeon:
      return "neon";
  }
  throw InternalError("unknown instruction set");
}

bool has_avx512_vnni() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // __builtin_cpu_supports also asks whether the system saves the wide registers
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

bool has_amx() {
#if defined(__x86_64__)
  static const bool granted = has_avx512_vnni() && processor_has_amx() && request_tiles();
  return granted;
#else
  return false;
#endif
}

bool has_avx_vnni() {
#if defined(__x86_64__)
  // Not a name that every compiler's __builtin_cpu_supports knows. "avx2" covers
  // whether the system saves the wide registers.
  return __builtin_cpu_supports("avx2") && bit(Cpuid(7, 1).eax, 4);
#else
  return false;
#endif
}

bool multiplies_in_one_unit() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amdfam17h");
#else
  return false;
#endif
}

bool gains_from_avx512_bf16() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd");
#else
  return false;
#endif
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas{Isa::kReference};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
      __builtin_cpu_supports("bmi2")) {
    isas.push_back(Isa::kAmxEmulated);
    isas.push_back(Isa::kAvx2);
    const bool avx512 = has_avx512_vnni();
    if (avx512 || has_avx_vnni()) isas.push_back(Isa::kAvx2Vnni);
    if (avx512) isas.push_back(Isa::kAvx512Vnni);
    if (has_amx()) isas.push_back(Isa::kAmx);
  }
#elif defined(__aarch64__)
  if (has_neon_dot_product()) isas.push_back(Isa::kNeon);
#endif
  return isas;
}

size_t second_level_cache() {
#if defined(__x86_64__)
  // The same leaf at Intel and at AMD, under two numbers; each subleaf is a cache.
  for (const unsigned leaf : {4u, 0x8000001du})
    for (unsigned i = 0; i < 8; ++i) {
      const Cpuid cache(leaf, i);
      const unsigned type = cache.eax & 0x1f, level = cache.eax >> 5 & 7;
      if (type == 0) break;                   // no further cache
      if (level != 2 || type == 2) continue;  // another level, or of instructions
      const size_t ways = (cache.ebx >> 22) + 1, partitions = (cache.ebx >> 12 & 0x3ff) + 1,
                   line = (cache.ebx & 0xfff) + 1, sets = size_t{cache.ecx} + 1;
      return ways * partitions * line * sets;
    }
#endif
  return size_t{1} << 20;
}

Isa isa_named(std::string_view name, const char* what) {
  std::string names;
  for (const Isa isa : available_isas()) {
    if (isa_name(isa) == name) return isa;
    names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw InvalidArgument(concat(what, " is '", name, "'; this machine has ", names));
}

Isa active_isa() {
  const char* forced = std::getenv("EMBEDKIT_ISA");
  if (forced == nullptr || *forced == '\0') return available_isas().back();
  return isa_named(forced, "EMBEDKIT_ISA");
}

}  // namespace embedkit
