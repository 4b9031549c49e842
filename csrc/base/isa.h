// Which instruction set the kernels run on: chosen once, can be asked and forced.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace embedkit {

enum class Isa { kReference, kAvx2, kAvx512Vnni };

std::string_view isa_name(Isa isa);

/// Those that this machine can run, slowest first; `kReference` is always there.
std::vector<Isa> available_isas();

/// The fastest available one, or the one that the environment variable EMBEDKIT_ISA names.
/// Throws InvalidArgument if that names an unknown or unavailable one.
Isa active_isa();

}  // namespace embedkit
