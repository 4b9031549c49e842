// The instruction set that the kernels run on: detected at run time, EMBEDKIT_ISA forces one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace embedkit {

enum class Isa { kReference, kAvx2, kAvx2Vnni, kAvx512Vnni, kNeon };

std::string_view isa_name(Isa isa);

/// Those that this machine can run, slowest first; `kReference` is always there.
std::vector<Isa> available_isas();

/// Whether 256-bit vpdpbusd has its VEX encoding here (AVX-VNNI). kAvx2Vnni is available with AVX-512 VNNI's
/// encoding of it, too.
bool has_avx_vnni();

/// Whether vdpbf16ps (AVX-512 BF16) is faster here than products of floats: it is twice as fast on AMD's
/// processors (Zen 4 and 5) and half as fast on Intel's.
bool gains_from_avx512_bf16();

/// The fastest available one, or the one that the environment variable EMBEDKIT_ISA names.
/// Throws InvalidArgument if that names an unknown or unavailable one.
Isa active_isa();

}  // namespace embedkit
