// exp and the activations on vectors of floats, written once for every vector type.
#pragma once

#include "kernels/kernels.h"

namespace embedkit {
namespace {

constexpr float kLog2E = 1.44269504f;

/// Horner's scheme: coefficients from that of the highest power of x down to the constant.
template <class V, class... Coefficients>
inline typename V::F polynomial(typename V::F x, float highest, Coefficients... others) {
  typename V::F sum = V::set1(highest);
  ((sum = V::fma(sum, x, V::set1(others))), ...);
  return sum;
}

/// exp(x) for x <= 88, relative error below 2e-7; e^-60, which adds nothing to a sum with e^0, for all x
/// below: products with smaller ones can be subnormal, which some processors are slow at. NaN stays NaN, as
/// it does where the variable is the second operand of V::max or V::min. x = n ln 2 + r with |r| <= ln 2 / 2,
/// and exp(r) by its Taylor polynomial of degree 6.
template <class V>
inline typename V::F exponential(typename V::F x) {
  using F = typename V::F;
  x = V::max(V::set1(-60.0f), x);
  const F n = V::round(V::mul(x, V::set1(kLog2E)));
  // ln 2 in two parts: the first has few enough bits for an exact product.
  F r = V::fma(n, V::set1(-0.693359375f), x);
  r = V::fma(n, V::set1(2.12194440e-4f), r);
  const F p = polynomial<V>(r, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f);
  return V::scale(p, n);
}

/// 2^x with a relative error below 8e-5, a fiftieth of a rounding to bfloat16; next to nothing far below 0.
template <class V>
inline typename V::F power_of_two(typename V::F x) {
  return V::scale_by_floor(
      polynomial<V>(V::fraction(x), 7.802454e-2f, 2.2606716e-1f, 6.9583354e-1f, 9.9992522e-1f), x);
}

/// x Φ(x), Φ(x) - 1/2 = erf(x / √2) / 2 by a rational minimax approximation x P(x²) / Q(x²) on |x| <= 5.515,
/// relative error 1.8e-8 (fitted by iteratively reweighted least squares); absolute error of the result below
/// 3 units in the last place of x.
template <class V>
inline typename V::F gelu(typename V::F x) {
  using F = typename V::F;
  const F c = V::min(V::max(x, V::set1(-5.515433f)), V::set1(5.515433f));
  const F t = V::mul(c, c);
  const F p = polynomial<V>(t, 2.2832271e-8f, 6.2989493e-6f, 1.6520143e-4f, 4.6551721e-3f, 3.3527542e-2f,
                            3.9894226e-1f);
  const F q =
      polynomial<V>(t, 1.1959534e-6f, 7.2332208e-5f, 1.8642178e-3f, 2.8454084e-2f, 2.5070748e-1f, 1.0f);
  const F half = V::div(V::mul(c, p), q);
  return V::mul(x, V::add(half, V::set1(0.5f)));
}

/// gelu on 31 equal segments of -4.2 <= x <= 4.2 and beyond, around 0.28 (i - 16): the coefficients of x², x
/// and 1 that fit each best (iteratively reweighted least squares); 0 and x on the outer two.
alignas(64) constexpr float kGeluSegments[3][32] = {
    {0.0f,           0.0f,          -0.0012527317f, -0.0030248337f, -0.0066274181f, -0.01310547f,
     -0.023197971f,  -0.036257703f, -0.04877843f,   -0.05333716f,   -0.039230596f,  0.0038898636f,
     0.080126204f,   0.18156275f,   0.28690836f,    0.36722019f,    0.39764288f,    0.36722019f,
     0.28690836f,    0.18156275f,   0.080126204f,   0.0038898636f,  -0.039230596f,  -0.05333716f,
     -0.04877843f,   -0.036257703f, -0.023197971f,  -0.01310547f,   -0.0066274181f, -0.0030248337f,
     -0.0012527317f, 0.0f},
    {0.0f,         0.0f,         -0.010517466f, -0.023855383f, -0.04897099f, -0.090541847f, -0.14972493f,
     -0.21912058f, -0.27887213f, -0.29858372f,  -0.24829775f,  -0.11692309f, 0.073804177f,  0.27188593f,
     0.41981009f,  0.48899922f,  0.5f,          0.51100081f,   0.58018994f,  0.72811407f,   0.9261958f,
     1.1169231f,   1.2482977f,   1.2985837f,    1.2788721f,    1.2191206f,   1.149725f,     1.0905418f,
     1.0489709f,   1.0238553f,   1.0105175f,    1.0f},
    {0.0f,          0.0f,          -0.022151949f, -0.047251772f,   -0.091030769f,  -0.15773258f,
     -0.24451174f,  -0.33671966f,  -0.40802553f,  -0.42932159f,    -0.38450295f,   -0.28437927f,
     -0.16497205f,  -0.068108484f, -0.016012475f, -0.00099187309f, 3.1788275e-06f, -0.00099187309f,
     -0.016012475f, -0.068108484f, -0.16497205f,  -0.28437927f,    -0.38450295f,   -0.42932159f,
     -0.40802553f,  -0.33671966f,  -0.24451174f,  -0.15773258f,    -0.091030769f,  -0.047251772f,
     -0.022151949f, 0.0f},
};

/// gelu for values that are quantized to 8 bits or rounded to bfloat16 next, absolute error below 1e-4, a
/// hundredth of a quantization step: from a table where vectors can look up in one, else the same form with
/// shorter polynomials on |x| <= 4.525, absolute error below 4e-5 + 7e-5 |x|.
template <class V>
inline typename V::F gelu_coarse(typename V::F x) {
  using F = typename V::F;
  if constexpr (requires { V::look_up(kGeluSegments[0], x); }) {
    const F c = V::min(V::max(x, V::set1(-4.2f)), V::set1(4.2f));
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const F segment = V::fma(c, V::set1(1.0f / 0.28f), V::set1(12582912.0f + 16.0f));
    const F linear = V::fma(V::look_up(kGeluSegments[0], segment), x, V::look_up(kGeluSegments[1], segment));
    return V::fma(linear, x, V::look_up(kGeluSegments[2], segment));
  } else {
    const F c = V::min(V::max(x, V::set1(-4.5254834f)), V::set1(4.5254834f));
    const F t = V::mul(c, c);
    const F p = polynomial<V>(t, 3.3324548e-5f, 3.8255563e-3f, 2.7219126e-2f, 3.9894292e-1f);
    const F q = polynomial<V>(t, 1.1661025e-3f, 2.3704281e-2f, 2.3491405e-1f, 1.0f);
    const F half = V::div(V::mul(c, p), q);
    return V::fma(x, half, V::mul(x, V::set1(0.5f)));
  }
}

/// 1 / (1 + exp(-x)).
template <class V>
inline typename V::F sigmoid(typename V::F x) {
  using F = typename V::F;
  const F e = exponential<V>(V::min(V::set1(87.0f), V::sub(V::zero(), x)));
  return V::div(V::set1(1.0f), V::add(V::set1(1.0f), e));
}

/// tanh(x): an odd polynomial near zero, where the quotient would cancel, else 1 - 2 / (exp(2x) + 1).
template <class V>
inline typename V::F hyperbolic_tangent(typename V::F x) {
  using F = typename V::F;
  const F c = V::min(V::set1(10.0f), V::max(V::set1(-10.0f), x));
  const F e = exponential<V>(V::add(c, c));
  const F far = V::sub(V::set1(1.0f), V::div(V::set1(2.0f), V::add(e, V::set1(1.0f))));
  const F t = V::mul(c, c);
  const F p = polynomial<V>(t, -17.0f / 315, 2.0f / 15, -1.0f / 3);
  const F near = V::fma(V::mul(c, t), p, c);
  return V::select_below(V::max(c, V::sub(V::zero(), c)), 0.15f, near, far);
}

/// x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2 = x σ(2 √(2/π) (x + 0.044715 x³)).
template <class V>
inline typename V::F gelu_tanh(typename V::F x) {
  using F = typename V::F;
  const F cubic = V::mul(x, V::fma(V::mul(x, x), V::set1(0.044715f), V::set1(1.0f)));
  return V::mul(x, sigmoid<V>(V::mul(cubic, V::set1(1.5957691f))));
}

/// x σ(x).
template <class V>
inline typename V::F silu(typename V::F x) {
  return V::mul(x, sigmoid<V>(x));
}

template <class V, Activation kActivation, bool kCoarse>
inline typename V::F activation(typename V::F x) {
  if constexpr (kActivation == Activation::kGelu && kCoarse) return gelu_coarse<V>(x);
  if constexpr (kActivation == Activation::kGelu) return gelu<V>(x);
  if constexpr (kActivation == Activation::kGeluTanh) return gelu_tanh<V>(x);
  if constexpr (kActivation == Activation::kRelu) return V::max(V::zero(), x);
  if constexpr (kActivation == Activation::kTanh) return hyperbolic_tangent<V>(x);
  if constexpr (kActivation == Activation::kSigmoid) return sigmoid<V>(x);
  if constexpr (kActivation == Activation::kSilu) return silu<V>(x);
  return x;
}

}  // namespace
}  // namespace embedkit
