#include "base/isa.h"

#include <cstdlib>

#include "base/error.h"
#include "base/platform.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace embedkit {

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return "reference";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx2Vnni:
      return "avx2_vnni";
    case Isa::kAvx512Vnni:
      return "avx512_vnni";
    case Isa::kNeon:
      return "neon";
  }
  throw InternalError("unknown instruction set");
}

bool has_avx_vnni() {
#if defined(__x86_64__)
  // Not a name that every compiler's __builtin_cpu_supports knows. "avx2" covers
  // whether the system saves the wide registers.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 &&
         (eax & (1u << 4)) != 0;
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
  __builtin_cpu_init();  // __builtin_cpu_supports also asks whether the system saves the wide registers
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
      __builtin_cpu_supports("bmi2")) {
    isas.push_back(Isa::kAvx2);
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni");
    if (avx512 || has_avx_vnni()) isas.push_back(Isa::kAvx2Vnni);
    if (avx512) isas.push_back(Isa::kAvx512Vnni);
  }
#elif defined(__aarch64__)
  if (has_neon_dot_product()) isas.push_back(Isa::kNeon);
#endif
  return isas;
}

Isa active_isa() {
  const std::vector<Isa> isas = available_isas();
  const char* forced = std::getenv("EMBEDKIT_ISA");
  if (forced == nullptr || *forced == '\0') return isas.back();
  std::string names;
  for (Isa isa : isas) {
    if (isa_name(isa) == forced) return isa;
    names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  throw InvalidArgument(concat("EMBEDKIT_ISA is '", forced, "'; this machine has ", names));
}

}  // namespace embedkit
