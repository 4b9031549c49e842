// Runs the machine code of amx.cc on processors without AMX: its instructions raise SIGILL there, and the
// handler carries them out and goes on behind them. Decoded and defined as in Intel's manual (Software
// Developer's Manual, volume 2), with tile shapes as the program configured them. For one thread; Linux on
// x86-64.
#pragma once

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace embedkit::test {

class AmxInterpreter {
 public:
  AmxInterpreter() {
    struct sigaction action{};
    action.sa_sigaction = [](int, siginfo_t*, void* context) {
      step(static_cast<ucontext_t*>(context)->uc_mcontext.gregs);
    };
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before_);
  }
  ~AmxInterpreter() { sigaction(SIGILL, &before_, nullptr); }
  AmxInterpreter(const AmxInterpreter&) = delete;
  AmxInterpreter& operator=(const AmxInterpreter&) = delete;

  static bool configured() { return state().palette != 0; }
  static size_t steps() { return state().steps; }

 private:
  struct Tile {
    size_t rows = 0, bytes = 0;
    uint8_t data[16][64] = {};
  };
  struct State {
    int palette = 0;
    size_t steps = 0;
    Tile tiles[8];
  };
  static State& state() {
    static State state;
    return state;
  }

  [[noreturn]] static void refuse(const char* why, const uint8_t* at) {
    static const char kDigits[] = "0123456789abcdef";
    char text[64] = "no such use of AMX: ";
    size_t n = std::strlen(text);
    for (; *why != 0 && n < 45; ++why) text[n++] = *why;
    for (int i = 0; i < 6; ++i) {
      text[n++] = ' ';
      text[n++] = kDigits[at[i] >> 4];
      text[n++] = kDigits[at[i] & 15];
    }
    text[n++] = '\n';
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text, n);
    _exit(1);
  }

  /// The address of a memory operand; `at` is its ModRM byte and moves behind it.
  static uint8_t* address(const uint8_t*& at, const greg_t* registers, int extended_base, int extended_index,
                          size_t* stride) {
    static constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                       REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                       REG_R12, REG_R13, REG_R14, REG_R15};
    const int mod = *at >> 6, base_bits = *at & 7;
    const uint8_t* start = at++;
    int base = base_bits | extended_base << 3, index = 4, scale = 0;
    if (base_bits == 4) {
      scale = *at >> 6;
      index = (*at >> 3 & 7) | extended_index << 3;
      base = (*at & 7) | extended_base << 3;
      ++at;
    }
    int32_t offset = 0;
    if (mod == 0 && (base & 7) == 5) refuse("address without base", start);
    if (mod == 1) offset = static_cast<int8_t>(*at++);
    if (mod == 2) {
      std::memcpy(&offset, at, sizeof(offset));
      at += sizeof(offset);
    }
    *stride = index == 4 ? 0 : static_cast<size_t>(registers[kOrder[index]]) << scale;
    return reinterpret_cast<uint8_t*>(registers[kOrder[base]]) + offset;
  }

  static Tile& tile(int number, const uint8_t* at) {
    Tile& one = state().tiles[number & 7];
    if (number > 7 || one.rows == 0) refuse("tile not configured", at);
    return one;
  }

  static void step(greg_t* registers) {
    const auto* const at = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
    // Three-byte VEX prefix: C4, inverted R X B and map 0F38 (2), W vvvv L pp.
    if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || (at[2] & 0x84) != 0) refuse("not AMX", at);
    const int extended_index = ~at[1] >> 6 & 1, extended_base = ~at[1] >> 5 & 1;
    const int third = ~at[2] >> 3 & 15, prefix = at[2] & 3;  // none, 66, F3, F2
    const int opcode = at[3], reg = at[4] >> 3 & 7, rm = at[4] & 7;
    const bool memory = at[4] >> 6 != 3;
    const uint8_t* next = at + 4;
    size_t stride = 0;
    ++state().steps;
    if (memory) {
      uint8_t* data = address(next, registers, extended_base, extended_index, &stride);
      if (opcode == 0x49 && prefix == 0 && reg == 0) {
        load_config(data, at);
      } else if (opcode == 0x4b && (prefix == 3 || prefix == 2)) {
        Tile& one = tile(reg, at);
        if (prefix == 3) std::memset(one.data, 0, sizeof(one.data));
        for (size_t r = 0; r < one.rows; ++r) {
          uint8_t* row = data + r * stride;
          prefix == 3 ? std::memcpy(one.data[r], row, one.bytes) : std::memcpy(row, one.data[r], one.bytes);
        }
      } else {
        refuse("unknown", at);
      }
    } else {
      ++next;
      if (opcode == 0x49 && prefix == 0 && at[4] == 0xc0) {
        state().palette = 0;
        for (Tile& one : state().tiles) one = Tile();
      } else if (opcode == 0x49 && prefix == 3) {
        std::memset(tile(reg, at).data, 0, sizeof(Tile::data));
      } else if (opcode == 0x5e && prefix == 1) {
        multiply<int32_t>(tile(reg, at), tile(rm, at), tile(third, at), at);
      } else if (opcode == 0x5c && prefix == 2) {
        multiply<float>(tile(reg, at), tile(rm, at), tile(third, at), at);
      } else {
        refuse("unknown", at);
      }
    }
    registers[REG_RIP] = reinterpret_cast<greg_t>(next);
  }

  static void load_config(const uint8_t* config, const uint8_t* at) {
    if (config[0] != 1 || config[1] != 0) refuse("palette", at);
    for (int i = 2; i < 16; ++i)
      if (config[i] != 0) refuse("reserved byte", at);
    state().palette = 1;
    for (int i = 0; i < 16; ++i) {
      uint16_t bytes;
      std::memcpy(&bytes, config + 16 + 2 * i, sizeof(bytes));
      const uint8_t rows = config[48 + i];
      if (bytes > 64 || rows > 16 || (bytes == 0) != (rows == 0) || (i > 7 && rows != 0)) refuse("shape", at);
      if (i > 7) continue;
      state().tiles[i] = Tile();
      state().tiles[i].rows = rows;
      state().tiles[i].bytes = bytes;
    }
  }

  template <typename Sum>
  static void multiply(Tile& sums, const Tile& a, const Tile& b, const uint8_t* at) {
    if (&sums == &a || &sums == &b || &a == &b || sums.rows != a.rows || a.bytes != 4 * b.rows ||
        sums.bytes != b.bytes || a.bytes % 4 != 0)
      refuse("shapes of a product", at);
    for (size_t m = 0; m < sums.rows; ++m)
      for (size_t n = 0; n < sums.bytes / 4; ++n) {
        Sum sum;
        std::memcpy(&sum, sums.data[m] + 4 * n, sizeof(sum));
        if constexpr (sizeof(Sum) == sizeof(float) && std::is_same_v<Sum, float>) {
          float first = 0, second = 0;
          for (size_t k = 0; k < b.rows; ++k) {
            first = flush(std::fmaf(bf16(a.data[m] + 4 * k), bf16(b.data[k] + 4 * n), first));
            second = flush(std::fmaf(bf16(a.data[m] + 4 * k + 2), bf16(b.data[k] + 4 * n + 2), second));
          }
          sum = flush(sum + flush(first + second));
        } else {
          for (size_t k = 0; k < b.rows; ++k)
            for (size_t i = 0; i < 4; ++i)
              sum += Sum{a.data[m][4 * k + i]} * static_cast<int8_t>(b.data[k][4 * n + i]);
        }
        std::memcpy(sums.data[m] + 4 * n, &sum, sizeof(sum));
      }
  }
  static float flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
  static float bf16(const uint8_t* from) {
    float x = 0;
    std::memcpy(reinterpret_cast<uint8_t*>(&x) + 2, from, 2);
    return flush(x);
  }

  struct sigaction before_{};
};

}  // namespace embedkit::test
