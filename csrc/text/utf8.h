// Strict UTF-8, one code point at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace embedkit::utf8 {

inline constexpr char32_t kInvalid = 0xFFFFFFFF;
inline constexpr size_t kMaxBytes = 4;

/// Decodes the code point at `p` (p < end) and moves `p` past it. For anything that is not well-formed
/// UTF-8 (overlong forms, surrogates and cut sequences too) returns kInvalid and leaves `p`.
inline char32_t decode(const uint8_t*& p, const uint8_t* end) {
  const uint32_t lead = p[0];
  const auto trail = [&](int i) { return uint32_t{p[i]} ^ 0x80; };  // below 0x40 if it is a trailing byte
  const ptrdiff_t left = end - p;
  if (lead < 0x80) {
    ++p;
    return lead;
  }
  if (lead >= 0xC2 && lead < 0xE0 && left >= 2) {
    const uint32_t b = trail(1);
    if (b >= 0x40) return kInvalid;
    p += 2;
    return (lead & 0x1F) << 6 | b;
  }
  if ((lead & 0xF0) == 0xE0 && left >= 3) {
    const uint32_t b = trail(1), c = trail(2);
    const uint32_t code = (lead & 0x0F) << 12 | b << 6 | c;
    if ((b | c) >= 0x40 || code < 0x800 || (code & 0xF800) == 0xD800) return kInvalid;
    p += 3;
    return code;
  }
  if (lead >= 0xF0 && lead < 0xF5 && left >= 4) {
    const uint32_t b = trail(1), c = trail(2), d = trail(3);
    const uint32_t code = (lead & 0x07) << 18 | b << 12 | c << 6 | d;
    if ((b | c | d) >= 0x40 || code < 0x10000 || code > 0x10FFFF) return kInvalid;
    p += 4;
    return code;
  }
  return kInvalid;
}

/// Writes the code point to `out` (room for kMaxBytes) and returns the count of bytes.
inline size_t encode(char32_t c, uint8_t* out) {
  if (c < 0x80) {
    out[0] = static_cast<uint8_t>(c);
    return 1;
  }
  if (c < 0x800) {
    out[0] = static_cast<uint8_t>(0xC0 | c >> 6);
    out[1] = static_cast<uint8_t>(0x80 | (c & 0x3F));
    return 2;
  }
  if (c < 0x10000) {
    out[0] = static_cast<uint8_t>(0xE0 | c >> 12);
    out[1] = static_cast<uint8_t>(0x80 | (c >> 6 & 0x3F));
    out[2] = static_cast<uint8_t>(0x80 | (c & 0x3F));
    return 3;
  }
  out[0] = static_cast<uint8_t>(0xF0 | c >> 18);
  out[1] = static_cast<uint8_t>(0x80 | (c >> 12 & 0x3F));
  out[2] = static_cast<uint8_t>(0x80 | (c >> 6 & 0x3F));
  out[3] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  return 4;
}

inline void append(char32_t c, std::string& text) {
  uint8_t bytes[kMaxBytes];
  text.append(reinterpret_cast<const char*>(bytes), encode(c, bytes));
}

inline bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

inline const uint8_t* begin(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }
inline const uint8_t* end(std::string_view text) { return begin(text) + text.size(); }
inline std::string_view view(const uint8_t* from, const uint8_t* to) {
  return {reinterpret_cast<const char*>(from), static_cast<size_t>(to - from)};
}

/// Offset of the first byte that is not well-formed, or npos.
inline size_t find_invalid(std::string_view text) {
  const uint8_t* p = begin(text);
  while (p < end(text)) {
    if (decode(p, end(text)) == kInvalid) return static_cast<size_t>(p - begin(text));
  }
  return std::string_view::npos;
}

}  // namespace embedkit::utf8
