// The operations that are compiled once per instruction set, as a table of functions.
//
// Rows are tokens (or texts), columns features; every matrix is row-major and `ld…` is the distance between
// two rows in elements. Each output row depends on its own input row alone and is computed by the same
// sequence of operations whatever the other rows are and wherever it stands: that is what makes vectors
// bitwise independent of their batch. Functions may read, never write, up to kSlack floats past the end of a
// row that they are given.
//
// A file that is compiled for an instruction set defines nothing with external linkage but its table: an
// inline function shared with other files could be kept in its wide form and then run on a machine without it
// (a test looks for these).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"

namespace embedkit {

enum class Activation { kIdentity, kGelu, kGeluTanh, kRelu, kTanh, kSigmoid, kSilu };

/// Rows in the form that products read; each is zero-filled to its stride.
///
/// kInt8: quantized one by one, x[r][k] ≈ scale[r] * q[r][k] + lowest[r] with q in 0..255, or less where
/// products of bytes have 16 bits. kBf16: rounded to bfloat16, without scale and
/// lowest.
struct QuantizedRows {
  enum class Form { kInt8, kBf16 };

  uint8_t* data;
  size_t stride;  ///< bytes from row to row
  float* scale;
  float* lowest;
  Form form = Form::kInt8;

  QuantizedRows from(size_t row) const {
    if (form == Form::kBf16) return {data + row * stride, stride, nullptr, nullptr, form};
    return {data + row * stride, stride, scale + row, lowest + row};
  }
};

/// Rows that a product reads: floats or their quantized form, depending on the precision of its weights.
struct Operand {
  const float* x;
  size_t ld;  ///< of x
  QuantizedRows quantized;
};

/// The weights of y = x Wᵀ + b, packed into panels of `Kernels::panel` or `quantized_panel` output columns;
/// the arrays are padded to whole panels. For int8, W ≈ scale[n] * w[n][k], and row_sums[n] = scale[n] * Σ_k
/// w[n][k] carries `lowest`.
struct PackedLinear {
  size_t in_features;
  size_t out_features;
  const void* weights;
  const float* bias;
  const float* scale;     ///< int8 only
  const float* row_sums;  ///< int8 only
};

/// One sequence and one head: softmax(scale q kᵀ + bias) v.
struct AttentionTask {
  const float* q;  ///< (length, head_size), as k and v
  const float* k;
  const float* v;
  size_t ld;  ///< of q, k and v
  size_t length;
  size_t head_size;
  float scale;
  float* out;  ///< (length, head_size)
  size_t ld_out;
  float* scratch;  ///< Attention::scratch(length, head_size) floats
  /// bias[j + bias_step * i] for query i and key j, finite and to be read up to kSlack past the end; or null
  /// for none. By default it depends on the distance alone.
  const float* bias = nullptr;
  ptrdiff_t bias_step = -1;
  /// Query i sees the keys from i - before to i + after.
  size_t before = kUnlimited;
  size_t after = kUnlimited;

  static constexpr size_t kUnlimited = ~size_t{0};

  const float* bias_of(size_t query) const { return bias + bias_step * static_cast<ptrdiff_t>(query); }
};

/// x += y, out = norm(x) * gamma + beta, and its quantized form.
struct NormTask {
  float* x;
  size_t ld;
  const float* y = nullptr;  ///< or null
  size_t ld_y = 0;
  size_t rows;
  size_t columns;
  const float* gamma;
  const float* beta = nullptr;  ///< or null
  float epsilon;
  bool rms = false;  ///< divide by the root of the mean square instead of subtracting the mean and dividing
                     ///< by the spread
  float* out;        ///< may be x
  size_t ld_out;
  QuantizedRows quantized = {};  ///< without data: none
};

/// What the rows of a table hold.
enum class RowType { kFloat32, kFloat16, kBfloat16, kInt8 };

/// out = Σ factors[i] * row rows[i] of a table; zeros without rows.
struct RowSum {
  const void* table;  ///< rows of `columns` values of `type`, end to end
  RowType type;
  size_t columns;
  const int32_t* rows;   ///< (count)
  const float* factors;  ///< (count), or null for 1
  size_t count;
  float* out;  ///< (columns)
};

/// A row of a table; its values are multiplied by `factor`.
struct TableRow {
  const void* values;
  RowType type;
  float factor = 1.0f;
};

struct Attention {
  /// Floats of scratch memory.
  size_t (*scratch)(size_t length, size_t head_size);
  /// Heads of one sequence, which share their scratch memory; each is computed as if it were alone.
  void (*run)(const AttentionTask* tasks, size_t heads);
};

/// What is computed in bfloat16.
struct Bf16Products {
  const char* instruction;  ///< that multiplies; "widened" if it is the one of floats
  size_t group;             ///< values along K that are multiplied together: rows are padded to a multiple
  /// As Kernels::linear_int8.
  void (*linear)(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                 size_t panel_end, float* out, size_t ld_out);
  double (*spin)(size_t iterations);
  Attention attention;  ///< that of fp32 where its products are no faster
};

/// How many rows are computed together. Fewer stay in the second-level cache, more share a pass over weights.
struct Batching {
  size_t token_budget;       ///< tokens of a full batch
  size_t feed_forward_rows;  ///< that go through the feed-forward layer together
};

struct Kernels {
  static constexpr size_t kSlack = 64;      ///< floats
  static constexpr size_t kSlackRows = 16;  ///< rows that attention may read past the end of a sequence

  Isa isa;
  size_t panel;            ///< output columns per packed panel in fp32
  size_t quantized_panel;  ///< and in int8 and bf16
  size_t
      quantized_group;    ///< activations along K that are multiplied together: rows are padded to a multiple
  Batching small_layers;  ///< for layers of at most twice the second-level cache
  Batching large_layers;  ///< for others, whose weights come from beyond it for every batch
  const char* fp32_instruction;  ///< that multiplies, for people
  const char* int8_instruction;

  /// Bytes that `pack_…` writes for an (out, in) matrix.
  size_t (*packed_int8_bytes)(size_t out, size_t in);
  size_t (*packed_fp32_bytes)(size_t out, size_t in);
  void (*pack_int8)(const int8_t* weights, size_t out, size_t in, void* packed);
  void (*pack_fp32)(const float* weights, size_t out, size_t in, void* packed);
  size_t (*packed_bf16_bytes)(size_t out, size_t in);
  void (*pack_bf16)(const float* weights, size_t out, size_t in, void* packed);

  /// out[:, panel_begin * panel : panel_end * panel] = x Wᵀ + b, whole panels of the weights' kind; K is
  /// never split.
  void (*linear_int8)(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                      size_t panel_end, float* out, size_t ld_out);
  void (*linear_fp32)(const float* x, size_t ld, size_t rows, const PackedLinear& linear, size_t panel_begin,
                      size_t panel_end, float* out, size_t ld_out);
  Bf16Products bf16;

  void (*quantize)(const float* x, size_t ld, size_t rows, size_t columns, const QuantizedRows& out);
  /// x = activation(x) in place; with `quantized.data` its quantized form alone, which leaves x undefined.
  void (*activate)(Activation activation, float* x, size_t ld, size_t rows, size_t columns,
                   const QuantizedRows& quantized);
  void (*norm)(const NormTask& task);
  /// x[r][i] = activation(x[r][activated + i]) * x[r][factor + i] for i < columns, where one of the two
  /// offsets is 0 and the other at least `columns`; with `quantized.data` as `activate`.
  void (*activate_gated)(Activation activation, float* x, size_t ld, size_t rows, size_t columns,
                         size_t activated, size_t factor, const QuantizedRows& quantized);
  void (*sum_rows)(const RowSum& task);
  /// out = x + row; out may be x.
  void (*add_row)(const float* x, const TableRow& row, size_t columns, float* out);

  /// Rotates each pair of features (2i, 2i + 1) of row r by the angle of position r, in place:
  /// x[r][d] = x[r][d] table[r][d] + x[r][d ^ 1] table[r][head_size + d], where table (rows, 2 head_size)
  /// holds each cosine twice, then (-sine, sine) for each pair. head_size is even.
  void (*rotate)(float* x, size_t ld, size_t rows, size_t head_size, const float* table);

  Attention attention;
  Attention attention_int8;  ///< with 8-bit scores and 16-bit probabilities, for int8 models

  /// Multiply-adds done by a loop that touches registers only, for the ceiling that benchmarks divide by.
  double (*spin_int8)(size_t iterations);
  double (*spin_fp32)(size_t iterations);
};

/// Of an instruction set that `available_isas()` lists.
const Kernels& kernels_for(Isa isa);

extern const Kernels kReferenceKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx2SplitKernels;  ///< of the same results
extern const Kernels kAvx2VnniKernels;
extern const Kernels kAvx2VnniEvexKernels;
extern const Kernels kAvx512VnniKernels;
extern const Bf16Products kAvx512Bf16Products;
extern const Kernels kAmxKernels;  ///< without its Batching; see kernels_for
extern const Kernels kAmxEmulatedKernels;
extern const Kernels kAmxEmulatedAvx2Kernels;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
#endif

}  // namespace embedkit
