// A static model (Model2Vec, `StaticEmbedding`): a row for each token, of which a text's vector is the mean.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "encoder/config.h"
#include "kernels/kernels.h"

namespace embedkit {

class StaticTable {
 public:
  /// Takes `table.weight` (static_rows, hidden_size) in any type but int32, with `table.weight_scale`
  /// (static_rows) in an int8 model, and, where the model has them, `table.weights` (vocab_size), the factors
  /// of the tokens, and `table.mapping` (vocab_size), their rows. Nothing is copied.
  /// Throws InvalidArgument that names the tensor that does not fit.
  StaticTable(const EncoderConfig& config, const Tensors& tensors);

  /// out = the mean of the rows of `ids`, each times its token's factor; zeros if none is left.
  /// `out` has room for hidden_size floats; the buffers are reused from call to call.
  struct Buffers {
    std::vector<int32_t> rows;
    std::vector<float> factors;
  };
  void mean(const Kernels& kernels, std::span<const int32_t> ids, Buffers& buffers, float* out) const;

  /// How many of `ids` the mean is of: unknown tokens are left out where the model says so.
  size_t counted(std::span<const int32_t> ids) const;

  size_t tokens() const { return tokens_; }
  size_t memory_bytes() const;

 private:
  Tensor rows_, scale_, weights_, mapping_;
  size_t tokens_;
  int32_t ignored_;
};

}  // namespace embedkit
