// Memory for vector instructions: aligned to a cache line, large blocks on huge pages where the system allows
// it.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/platform.h"

namespace embedkit {

inline constexpr size_t kCacheLine = 64;

/// `a * b`, or InvalidArgument when the product does not fit: sizes come from files.
inline size_t checked_mul(size_t a, size_t b) {
  size_t product = 0;
  require(!__builtin_mul_overflow(a, b, &product), "a size of ", a, " x ", b, " elements is too large");
  return product;
}

// Always inlined: a copy compiled for a wide instruction set must never be the one that the linker keeps.
[[gnu::always_inline]] constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// An uninitialized array of a trivial type. Throws std::bad_alloc.
template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t size) { reset(size); }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~AlignedBuffer() { std::free(data_); }

  /// Drops the contents and holds `size` elements.
  void reset(size_t size) {
    std::free(std::exchange(data_, nullptr));
    size_ = 0;
    if (size == 0) return;
    const size_t alignment = size * sizeof(T) >= kHugePage ? kHugePage : kCacheLine;
    const size_t bytes = round_up(checked_mul(size, sizeof(T)), alignment);
    data_ = static_cast<T*>(std::aligned_alloc(alignment, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
    size_ = size;
    if (alignment == kHugePage) advise_huge_pages(data_, bytes);
  }

  /// Holds at least `size` elements; the contents are lost when it grows.
  void reserve(size_t size) {
    if (size > size_) reset(size + size / 4);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;

  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace embedkit
