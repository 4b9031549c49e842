// Attention of every instruction set against the formula in double precision: odd lengths and head sizes,
// scores that would overflow without the shift by their maximum, with and without a relative position bias,
// windows and causal masks,
// and nothing written outside the head's own columns. Those of int8 and bf16 models likewise, within the
// error of their rounded operands.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels_fixture.h"

using namespace embedkit;
using namespace embedkit::test;

namespace {

struct Limits {
  size_t before = AttentionTask::kUnlimited;
  size_t after = AttentionTask::kUnlimited;
};

/// Of (length, 3 head_size) queries, keys and values, and the biases of (2 length - 1) distances and the
/// slack that may be read, or none; `error` is allowed in each element of the result.
void check(const Attention& attention, Matrix& qkv, size_t length, size_t head_size,
           const std::vector<float>& bias, double error, Limits limits = {}, float scale = 0) {
  if (scale == 0) scale = 1.0f / std::sqrt(static_cast<float>(head_size));
  const bool biased = !bias.empty();
  Matrix out(length, 3 * head_size, 1, 7, 7);
  std::vector<float> scratch(attention.scratch(length, head_size) + Kernels::kSlack);
  const float* q = qkv.row(0);
  const AttentionTask task{q,
                           q + head_size,
                           q + 2 * head_size,
                           qkv.ld,
                           length,
                           head_size,
                           scale,
                           out.row(0) + head_size,
                           out.ld,
                           scratch.data(),
                           biased ? bias.data() + length - 1 : nullptr,
                           -1,
                           limits.before,
                           limits.after};
  attention.run(&task, 1);
  if (biased) {  // a bias for each query and key
    const size_t step = length + 3;
    std::vector<float> matrix(length * step + Kernels::kSlack);
    for (size_t i = 0; i < length; ++i)
      std::copy_n(bias.begin() + static_cast<ptrdiff_t>(length - 1 - i), length,
                  matrix.begin() + static_cast<ptrdiff_t>(i * step));
    Matrix same(length, 3 * head_size, 1, 7, 7);
    AttentionTask other = task;
    other.bias = matrix.data();
    other.bias_step = static_cast<ptrdiff_t>(step);
    other.out = same.row(0) + head_size;
    other.ld_out = same.ld;
    attention.run(&other, 1);
    for (size_t i = 0; i < length; ++i)
      for (size_t d = 0; d < 3 * head_size; ++d) CHECK_EQ(same.row(i)[d], out.row(i)[d]);
  }
  for (size_t i = 0; i < length; ++i) {
    std::vector<double> scores(length);
    double high = -1e300, sum = 0;
    for (size_t j = 0; j < length; ++j) {
      for (size_t d = 0; d < head_size; ++d) scores[j] += double{qkv.row(i)[d]} * qkv.row(j)[head_size + d];
      scores[j] *= scale;
      if (biased) scores[j] += bias[length - 1 + j - i];
      if ((j < i && i - j > limits.before) || (j > i && j - i > limits.after)) scores[j] = -1e300;
      high = std::max(high, scores[j]);
    }
    for (double& s : scores) sum += s = std::exp(s - high);
    for (size_t d = 0; d < head_size; ++d) {
      double want = 0;
      for (size_t j = 0; j < length; ++j) want += scores[j] / sum * qkv.row(j)[2 * head_size + d];
      CHECK(std::abs(out.row(i)[head_size + d] - want) < error);
      CHECK_EQ(out.row(i)[d], 7.0f);
      CHECK_EQ(out.row(i)[2 * head_size + d], 7.0f);
    }
  }
}

std::vector<float> biases(size_t length) { return random_floats(2 * length - 1 + Kernels::kSlack, -3, 3, 9); }

/// Of queries, keys and values up to `magnitude`.
void check(const Attention& attention, size_t length, size_t head_size, float magnitude, bool biased,
           double error, Limits limits = {}, float scale = 0) {
  Matrix qkv(length, 3 * head_size, static_cast<unsigned>(length + head_size), -magnitude, magnitude);
  check(attention, qkv, length, head_size, biased ? biases(length) : std::vector<float>{}, error, limits,
        scale);
}

/// Of keys that share a large vector, which changes no probability.
void check_shared(const Attention& attention, size_t length, size_t head_size, double error) {
  Matrix qkv(length, 3 * head_size, static_cast<unsigned>(length + head_size), -1, 1);
  for (size_t i = 0; i < length; ++i) {
    qkv.row(i)[0] *= 0.1f;  // so that scores stay small
    qkv.row(i)[head_size] += 100;
  }
  check(attention, qkv, length, head_size, {}, error);
}

/// A large query changes the result of no other.
void check_large_query(const Attention& attention, size_t length, size_t head_size) {
  Matrix qkv(length, 3 * head_size, static_cast<unsigned>(length + head_size), -1, 1);
  Matrix before(length, head_size, 1, 7, 7), after(length, head_size, 1, 7, 7);
  std::vector<float> scratch(attention.scratch(length, head_size) + Kernels::kSlack);
  for (Matrix* out : {&before, &after}) {
    const float* q = qkv.row(0);
    const AttentionTask task{q,         q + head_size, q + 2 * head_size, qkv.ld,  length,
                             head_size, 0.25f,         out->row(0),       out->ld, scratch.data()};
    attention.run(&task, 1);
    for (size_t d = 0; d < head_size; ++d) qkv.row(0)[d] *= 20;
  }
  for (size_t i = 1; i < length; ++i)
    for (size_t d = 0; d < head_size; ++d) CHECK_EQ(after.row(i)[d], before.row(i)[d]);
}

/// Of queries and keys that 8 bits hold exactly, so that the softmax is what errs: scores of every size,
/// biases that leave nothing of a key. The mean of the keys is zero.
void check_exact(const Attention& attention, size_t length, size_t head_size, double error) {
  for (const double size : {0.0, 1e-9, 0.02, 0.3, 5.0, 80.0, 1e4}) {
    Matrix qkv(length, 3 * head_size, static_cast<unsigned>(length), -1, 1);
    for (size_t i = 0; i < length; ++i)
      for (size_t d = 0; d < head_size; ++d) {
        float* row = qkv.row(i);
        row[d] = static_cast<float>(size * std::round(row[d] * 1.4));
        row[head_size + d] = static_cast<float>(std::round(row[head_size + d] * 127) / 127);
      }
    qkv.row(0)[0] = static_cast<float>(size);
    qkv.row(0)[head_size] = 1;
    for (size_t i = 1; i < length; ++i)
      for (size_t d = head_size; d < 2 * head_size; ++d)
        qkv.row(i)[d] = i % 2 == 1 ? -qkv.row(i - 1)[d] : i + 1 == length ? 0.0f : qkv.row(i)[d];
    check(attention, qkv, length, head_size, {}, error);
    std::vector<float> bias = biases(length);
    for (size_t i = 0; i < bias.size(); i += 3) bias[i] = -1e9f;
    check(attention, qkv, length, head_size, bias, error);
  }
}

/// Scores beyond what floats tell apart still make a mean of the values.
void check_huge(const Attention& attention, size_t length, size_t head_size) {
  Matrix qkv(length, 3 * head_size, static_cast<unsigned>(length + head_size), -1, 1);
  Matrix out(length, head_size, 1, 7, 7);
  std::vector<float> scratch(attention.scratch(length, head_size) + Kernels::kSlack);
  for (size_t i = 0; i < length; ++i)
    for (size_t d = 0; d < 2 * head_size; ++d) qkv.row(i)[d] *= 1e5f;
  const float* q = qkv.row(0);
  const AttentionTask task{q,         q + head_size, q + 2 * head_size, qkv.ld, length,
                           head_size, 0.25f,         out.row(0),        out.ld, scratch.data()};
  attention.run(&task, 1);
  for (size_t i = 0; i < length; ++i)
    for (size_t d = 0; d < head_size; ++d) CHECK(std::abs(out.row(i)[d]) < 1.01f);
}

/// Heads of one call, among them some with scores that need their maximum, are those of calls of their own,
/// to the bit, whatever the scratch memory holds before.
void check_heads(const Attention& attention, size_t length, size_t head_size) {
  constexpr size_t kHeads = 7;
  const size_t width = kHeads * head_size;
  Matrix qkv(length, 3 * width, static_cast<unsigned>(length), -1, 1);
  for (size_t i = 0; i < length; ++i)
    for (const size_t head : {2ul, 3ul, 6ul})
      for (size_t d = 0; d < head_size; ++d) qkv.row(i)[head * head_size + d] *= 100;
  Matrix together(length, width, 1, 7, 7), alone(length, width, 1, 7, 7);
  std::vector<float> scratch(attention.scratch(length, head_size) + Kernels::kSlack);
  std::vector<AttentionTask> tasks;
  for (size_t head = 0; head < kHeads; ++head) {
    const float* q = qkv.row(0) + head * head_size;
    AttentionTask task{q,         q + width, q + 2 * width, qkv.ld,   length,
                       head_size, 0.25f,     nullptr,       alone.ld, scratch.data()};
    task.out = alone.row(0) + head * head_size;
    std::memset(scratch.data(), 0x7f, scratch.size() * sizeof(float));  // large floats and bfloat16s
    attention.run(&task, 1);
    task.out = together.row(0) + head * head_size;
    tasks.push_back(task);
  }
  std::fill(scratch.begin(), scratch.end(), std::numeric_limits<float>::quiet_NaN());
  attention.run(tasks.data(), tasks.size());
  for (size_t i = 0; i < length; ++i)
    for (size_t d = 0; d < width; ++d) CHECK_EQ(together.row(i)[d], alone.row(i)[d]);
}

}  // namespace

int main() {
  for (const Kernels* kernels : all_kernels())
    for (const size_t length : {1ul, 5ul, 16ul, 17ul, 40ul, 70ul})
      for (const size_t head_size : {26ul, 32ul, 64ul})
        for (const Attention* attention :
             {&kernels->attention, &kernels->bf16.attention, &kernels->attention_int8})
          check_heads(*attention, length, head_size);
  for (const Kernels* kernels : all_kernels())
    for (const size_t length : {2ul, 17ul, 130ul})
      for (const Attention* attention :
           {&kernels->attention, &kernels->bf16.attention, &kernels->attention_int8})
        check_huge(*attention, length, 64);
  for (const Isa isa : available_isas()) {
    const Kernels& kernels = kernels_for(isa);
    // A text without tokens has nothing to attend to.
    for (const Attention* attention :
         {&kernels.attention, &kernels.bf16.attention, &kernels.attention_int8}) {
      std::vector<float> row(96), scratch(attention->scratch(0, 32) + Kernels::kSlack);
      AttentionTask task{row.data(), row.data() + 32, row.data() + 64, 96, 0, 32, 1.0f, nullptr,
                         32,         scratch.data()};
      task.out = row.data();
      attention->run(&task, 1);
      CHECK_EQ(std::count(row.begin(), row.end(), 0.0f), 96);
    }
    // Sequences of a batch share the memory of the longest.
    for (const size_t head_size : {26ul, 32ul, 64ul})
      for (size_t length = 1; length < 600; ++length)
        for (const Attention* attention :
             {&kernels.attention, &kernels.bf16.attention, &kernels.attention_int8})
          CHECK(attention->scratch(length, head_size) <= attention->scratch(length + 1, head_size));
    for (const size_t length : {1ul, 2ul, 7ul, 8ul, 15ul, 16ul, 17ul, 33ul, 130ul, 300ul})
      for (const size_t head_size : {1ul, 10ul, 16ul, 26ul, 32ul, 64ul, 80ul})
        for (const bool biased : {false, true}) {
          // the reference of long ones takes minutes under the sanitizers; two sizes have all the edges
          if (length > 33 && head_size != 26 && head_size != 64) continue;
          const Attention &fp32 = kernels.attention, &bf16 = kernels.bf16.attention;
          check(fp32, length, head_size, 1, biased, 4e-5);
          check(fp32, length, head_size, 20, biased, 8e-3);
          // A rounded query changes the scores by up to a 126th, and more of them change the exponent.
          const Attention& int8 = kernels.attention_int8;
          check(int8, length, head_size, 1, biased, 0.012);
          check(int8, length, head_size, 4, biased, 0.4);
          if (!biased)
            for (const Attention* attention : {&fp32, &bf16, &int8})
              check_large_query(*attention, length, head_size);
          // The tiles of AMX round a query times the factor of its scores to bfloat16.
          if (!biased && length <= 130 && isa != Isa::kAmx && isa != Isa::kAmxEmulated)
            check_exact(int8, length, head_size, 0.003);
          if (!biased && isa != Isa::kAmx && isa != Isa::kAmxEmulated)
            check_shared(int8, length, head_size, 0.012);
          // bfloat16 has 8 bits.
          check(bf16, length, head_size, 1, biased, 0.008);
          check(bf16, length, head_size, 4, biased, 0.3);
          for (const Attention* attention : {&fp32, &bf16, &int8})
            check(*attention, length, head_size, 1, biased, attention == &fp32 ? 4e-5 : 0.012, {}, 0.02f);
          if (length == 300 && (biased || head_size == 26)) continue;
          for (const Limits limits : {Limits{0, 0}, Limits{3, 3}, Limits{64, 64},
                                      Limits{AttentionTask::kUnlimited, 0}, Limits{20, 0}, Limits{1, 130}}) {
            check(fp32, length, head_size, 1, biased, 4e-5, limits);
            check(int8, length, head_size, 1, biased, 0.012, limits);
            check(bf16, length, head_size, 1, biased, 0.008, limits);
          }
        }
  }
  return report();
}
