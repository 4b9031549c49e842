// 2^-x in fixed point, for the softmax of attention_int8.h: lanes of 16 bits, of which a vector holds twice
// as many as floats. x has kFraction bits behind the binary point and 5 before it, all ones for what is
// larger.
#pragma once

#include <algorithm>
#include <cmath>

namespace embedkit {
namespace {

constexpr int kFraction = 10;
constexpr int kLargestWord = 32767;

/// round(2^14 2^-x) with a relative error below 2^-11, for x exactly. From 15 on it is 0.
template <class V>
typename V::I fixed_power(typename V::I x) {
  // 2^-f = 1 - f (.6914 - f (.2308 - .0394 f)) of the fraction f, in 15 bits.
  const auto f = V::and_int(V::template shift_left_words<15 - kFraction>(x), V::set1_words(kLargestWord));
  auto y = V::sub_words(V::set1_words(7562), V::mul_words(f, V::set1_words(1290)));
  y = V::sub_words(V::set1_words(22657), V::mul_words(f, y));
  y = V::sub_words(V::set1_words(kLargestWord), V::mul_words(f, y));
  return V::mul_words(y, V::halved_words(V::template shift_right_words<kFraction>(x)));
}

/// The products x = factor * d of integers d >= 0.
template <class V>
class FixedScale {
  using I = typename V::I;

 public:
  explicit FixedScale(float factor) {
    // factor = mantissa * 2^exponent: d is shifted to its place in 16 bits, then multiplied.
    int exponent = 0;
    const float mantissa = std::frexp(factor * (1 << kFraction), &exponent);
    mantissa_ = V::set1_words(static_cast<int>(std::min(32767.0f, mantissa * 32768.0f)));
    left_ = std::clamp(exponent, 0, 16);
    right_ = std::clamp(-exponent, 0, 31);
  }

  /// x of the lanes of `first`, then of `second`.
  I of(I first, I second) const {
    if (left_ == 0) {
      first = V::shift_right_int(first, right_);
      second = V::shift_right_int(second, right_);
    } else {
      const I largest = V::set1_int(kLargestWord);
      first = V::shift_left_int(V::min_int(first, largest), left_);
      second = V::shift_left_int(V::min_int(second, largest), left_);
    }
    return V::mul_words(V::pack_words(first, second), mantissa_);
  }

 private:
  I mantissa_;
  int left_;
  int right_;
};

}  // namespace
}  // namespace embedkit
