// The table of an instruction set with vectors: every operation of `Kernels`, for the vector type and the
// int8 product of `Dot` (see linear_int8.h).
#pragma once

#include "kernels/attention.h"
#include "kernels/attention_int8.h"
#include "kernels/linear_bf16.h"
#include "kernels/linear_fp32.h"
#include "kernels/linear_int8.h"
#include "kernels/row_sums.h"
#include "kernels/rows.h"

namespace embedkit {
namespace {

template <class Dot>
double spin_int8(size_t iterations) {
  using V = typename Dot::V;
  typename V::I acc[V::kSpinning];
  for (auto& a : acc) a = V::zero_int();
  alignas(V::kBytes) uint8_t ones[V::kBytes];
  for (auto& one : ones) one = 1;
  const typename V::I x = V::load_int(ones);
  for (size_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (auto& a : acc) Dot::spin(a, x);
  }
  return static_cast<double>(iterations) * V::kSpinning * Dot::kSpun * V::kBytes;
}

template <class V>
double spin_fp32(size_t iterations) {
  typename V::F acc[V::kSpinning];
  for (auto& a : acc) a = V::zero();
  const typename V::F x = V::set1(0.5f);
  for (size_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (auto& a : acc) V::spin(a, x);
  }
  return static_cast<double>(iterations) * V::kSpinning * V::kLanes;
}

/// Where attention has no integers it is that of fp32.
template <class Dot>
constexpr Attention attention_of_int8() {
  using V = typename Dot::V;
  if constexpr (requires { Dot::kAttentionRows; })
    return {attention_int8_scratch<Dot>, attention_int8<Dot>};
  else
    return {attention_scratch<V, V::kRows>, attention<V, V::kRows>};
}

/// All but the int8 products, for activations quantized to kLevels; `Dot` multiplies in attention.
template <class Dot, int kLevels>
constexpr Kernels row_kernels(Isa isa) {
  using V = typename Dot::V;
  constexpr Attention fp32 = {attention_scratch<V, V::kRows>, attention<V, V::kRows>};
  return {
      .isa = isa,
      .panel = V::kPanel,
      .quantized_panel = V::kPanel,
      .quantized_group = 0,
      .small_layers = {128, 48},   // 64 to 256 tokens measured alike
      .large_layers = {256, 256},  // 256 to 768 alike on a Zen 5
      .fp32_instruction = "fma",
      .int8_instruction = nullptr,
      .packed_int8_bytes = nullptr,
      .packed_fp32_bytes = packed_fp32_bytes<V::kPanel>,
      .pack_int8 = nullptr,
      .pack_fp32 = pack_fp32<V::kPanel>,
      .packed_bf16_bytes = packed_bf16_bytes<V::kPanel>,
      .pack_bf16 = pack_bf16<V::kPanel>,
      .linear_int8 = nullptr,
      .linear_fp32 = linear_fp32<V, V::kRows, V::kVectors>,
      .bf16 = {"widened", 2, linear_bf16<WidenedPairs<V>>, spin_bf16<WidenedPairs<V>>, fp32},
      .quantize = quantize_rows<V, kLevels>,
      .activate = activate<V, kLevels>,
      .norm = norm<V, kLevels>,
      .activate_gated = activate_gated<V, kLevels>,
      .sum_rows = sum_rows<V>,
      .add_row = add_row<V>,
      .rotate = rotate<V>,
      .attention = fp32,
      .attention_int8 = attention_of_int8<Dot>(),
      .spin_int8 = nullptr,
      .spin_fp32 = spin_fp32<V>,
  };
}

template <class Dot>
constexpr Kernels vector_kernels(Isa isa) {
  Kernels kernels = row_kernels<Dot, Dot::kLevels>(isa);
  kernels.quantized_group = Int8Layout<Dot>::kStep;
  kernels.int8_instruction = Dot::kInstruction;
  kernels.packed_int8_bytes = packed_int8_bytes<Dot>;
  kernels.pack_int8 = pack_int8<Dot>;
  kernels.linear_int8 = linear_int8<Dot>;
  kernels.spin_int8 = spin_int8<Dot>;
  return kernels;
}

}  // namespace
}  // namespace embedkit
