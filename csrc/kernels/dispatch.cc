#include <algorithm>

#include "base/error.h"
#include "kernels/kernels.h"

namespace embedkit {
namespace {

#if defined(__x86_64__)
const Kernels& avx2_kernels() {
  static const Kernels kernels = [] {
    Kernels table = multiplies_in_one_unit() ? kAvx2SplitKernels : kAvx2Kernels;
    // On a Zen 2 with 512 KiB, 256 rows of all-MiniLM-L6-v2 between its two feed-forward products leave that
    // cache: 64 are 7 % faster in int8, and alike in fp32 and in a larger model.
    if (second_level_cache() < size_t{1} << 20) table.large_layers.feed_forward_rows = 64;
    return table;
  }();
  return kernels;
}

const Kernels& avx512_kernels() {
  static const Kernels kernels = [] {
    Kernels table = kAvx512VnniKernels;
    if (gains_from_avx512_bf16()) table.bf16 = kAvx512Bf16Products;
    return table;
  }();
  return kernels;
}

/// A pass over the weights streams them from the third-level cache, and tiles multiply faster than they come:
/// batches are larger than elsewhere, where that cache is slow. On a Sapphire Rapids with 2 MiB of
/// second-level cache a core, products of all-MiniLM-L6-v2 took 466 ms with batches of 384 tokens and 736 ms
/// with 128; on a later Xeon 128 to 384 tokens are alike. Other sizes are scaled from that, not measured.
Kernels sized_for_tiles(Kernels table) {
  constexpr size_t kMeasuredCache = size_t{2} << 20;
  const size_t rows = 32 * std::clamp<size_t>(4 * second_level_cache() / kMeasuredCache, 2, 8);
  table.small_layers = table.large_layers = {3 * rows, rows};
  return table;
}
#endif

}  // namespace

const Kernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kReference:
      return kReferenceKernels;
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2_kernels();
    case Isa::kAvx2Vnni:
      return has_avx_vnni() ? kAvx2VnniKernels : kAvx2VnniEvexKernels;
    case Isa::kAvx512Vnni:
      return avx512_kernels();
    case Isa::kAmx: {
      static const Kernels kernels = sized_for_tiles(kAmxKernels);
      return kernels;
    }
    case Isa::kAmxEmulated: {
      static const Kernels kernels =
          sized_for_tiles(has_avx512_vnni() ? kAmxEmulatedKernels : kAmxEmulatedAvx2Kernels);
      return kernels;
    }
#elif defined(__aarch64__)
    case Isa::kNeon:
      return kNeonKernels;
#endif
    default:
      throw InternalError("no kernels were built for this instruction set");
  }
}

}  // namespace embedkit
