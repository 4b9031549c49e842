// NEON with the dot product of Armv8.2 (FEAT_DotProd). sdot multiplies signed bytes by signed bytes and adds
// four products to each of four int32 lanes: the activations are shifted to q - 128 as they are read, and the
// sums start from 128 Σ w, so that they come out as Σ q w.
#include "kernels/vec_neon.h"
#include "kernels/vector_kernels.h"

namespace embedkit {
namespace {

struct Sdot {
  static constexpr const char* kInstruction = "sdot";
  using V = Neon;
  using Weight = int8_t;
  using Activation = uint8_t;
  static constexpr int kParts = 4;  // sdot picks four of sixteen activations by their lane
  static constexpr int32_t kShift = 128;

  static int32x4_t load(const uint8_t* a) {
    return vreinterpretq_s32_u8(veorq_u8(vld1q_u8(a), vdupq_n_u8(kShift)));
  }
  template <int kPart>
  static int32x4_t add(int32x4_t sums, int32x4_t x, int32x4_t w) {
    return vdotq_laneq_s32(sums, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x), kPart);
  }
  static void spin(int32x4_t& sums, int32x4_t x) {
    asm volatile("sdot %0.4s, %1.16b, %1.16b" : "+w"(sums) : "w"(x));
  }
};

}  // namespace

extern constinit const Kernels kNeonKernels = vector_kernels<Sdot>(Isa::kNeon);

}  // namespace embedkit
