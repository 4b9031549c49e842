// Intel AMX (Sapphire Rapids and later): tdpbusd multiplies 16 x 64 unsigned by 64 x 16 signed bytes and adds
// them to 16 x 16 int32 sums, tdpbf16ps 16 x 32 by 32 x 16 bfloat16s to float sums. Everything else is
// AVX-512.
//
// The system must have been asked for the tiles (see has_amx). A signal handler starts with tiles of its own
// and what it interrupted gets its tiles back; a child process inherits the permission.
#include "kernels/dot_avx512.h"
#include "kernels/tile_table.h"
#include "kernels/vec_avx512_bf16.h"

namespace embedkit {
namespace {

/// Tiles 0 to 3 hold the sums, 4 and 5 rows, 6 and 7 columns. Compilers want their numbers as literals.
class AmxTiles {
 public:
  static constexpr const char* kInt8Instruction = "tdpbusd";
  static constexpr const char* kBf16Instruction = "tdpbf16ps";
  static constexpr size_t kSpinOnce = 1;

  explicit AmxTiles(size_t height) {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (size_t tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = kTileRowBytes;
      config.rows[tile] = static_cast<uint8_t>(tile < 6 ? height : kTileRows);
    }
    // gcc 12's intrinsic names only the first bytes as read, and the others might not have been written.
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }
  void release() { _tile_release(); }

  template <int r, int c>
  void zero() {
    if constexpr (r == 0 && c == 0) _tile_zero(0);
    if constexpr (r == 0 && c == 1) _tile_zero(1);
    if constexpr (r == 1 && c == 0) _tile_zero(2);
    if constexpr (r == 1 && c == 1) _tile_zero(3);
  }
  template <int r, int c>
  void fill(const float* row) {
    if constexpr (r == 0 && c == 0) _tile_loadd(0, row, 0);
    if constexpr (r == 0 && c == 1) _tile_loadd(1, row, 0);
    if constexpr (r == 1 && c == 0) _tile_loadd(2, row, 0);
    if constexpr (r == 1 && c == 1) _tile_loadd(3, row, 0);
  }
  template <int r>
  void load_rows(const uint8_t* from, size_t stride) {
    if constexpr (r == 0) _tile_loadd(4, from, stride);
    if constexpr (r == 1) _tile_loadd(5, from, stride);
  }
  template <int c>
  void load_columns(const uint8_t* from) {
    if constexpr (c == 0) _tile_loadd(6, from, kTileRowBytes);
    if constexpr (c == 1) _tile_loadd(7, from, kTileRowBytes);
  }
  template <int r, int c>
  void add_int8() {
    if constexpr (r == 0 && c == 0) _tile_dpbusd(0, 4, 6);
    if constexpr (r == 0 && c == 1) _tile_dpbusd(1, 4, 7);
    if constexpr (r == 1 && c == 0) _tile_dpbusd(2, 5, 6);
    if constexpr (r == 1 && c == 1) _tile_dpbusd(3, 5, 7);
  }
  template <int r, int c>
  void add_bf16() {
    if constexpr (r == 0 && c == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (r == 0 && c == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (r == 1 && c == 0) _tile_dpbf16ps(2, 5, 6);
    if constexpr (r == 1 && c == 1) _tile_dpbf16ps(3, 5, 7);
  }
  template <int r, int c>
  void store(void* to, size_t stride) const {
    if constexpr (r == 0 && c == 0) _tile_stored(0, to, stride);
    if constexpr (r == 0 && c == 1) _tile_stored(1, to, stride);
    if constexpr (r == 1 && c == 0) _tile_stored(2, to, stride);
    if constexpr (r == 1 && c == 1) _tile_stored(3, to, stride);
  }
};

}  // namespace

extern constinit const Kernels kAmxKernels = tile_kernels<AmxTiles, Vnni, Avx512Bf16>(Isa::kAmx);

}  // namespace embedkit
