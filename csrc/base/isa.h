// The instruction set that the kernels run on: detected at run time, EMBEDKIT_ISA forces one; and the cache.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace embedkit {

enum class Isa { kReference, kAmxEmulated, kAvx2, kAvx2Vnni, kAvx512Vnni, kAmx, kNeon };

std::string_view isa_name(Isa isa);

/// Those that this machine can run, slowest first; `kReference` is always there. `kAmxEmulated`, the kernels
/// of `kAmx` with its instructions in plain C++ for tests, comes with AVX2 and is never the last one.
std::vector<Isa> available_isas();

/// Whether AVX-512 with VNNI can be used.
bool has_avx512_vnni();

/// Whether AMX with int8 and bfloat16 can be used: by the processor, by what the system saves of a thread,
/// and with the system's permission, which the first call asks for, once for the process.
bool has_amx();

/// Whether 256-bit vpdpbusd has its VEX encoding here (AVX-VNNI). kAvx2Vnni is available with AVX-512 VNNI's
/// encoding of it, too.
bool has_avx_vnni();

/// Whether one vector unit alone multiplies integers, as in AMD's processors from Zen to Zen 2.
bool multiplies_in_one_unit();

/// Whether vdpbf16ps (AVX-512 BF16) is faster here than products of floats: it is twice as fast on AMD's
/// processors (Zen 4 and 5) and half as fast on Intel's.
bool gains_from_avx512_bf16();

/// Bytes of the second-level cache of a core, as the processor tells; 1 MiB where it does not.
size_t second_level_cache();

/// The available one of that name; throws InvalidArgument, in which `what` is named so, if there is none.
Isa isa_named(std::string_view name, const char* what);

/// The fastest available one, or the one that the environment variable EMBEDKIT_ISA names.
/// Throws InvalidArgument if that names an unknown or unavailable one.
Isa active_isa();

}  // namespace embedkit
