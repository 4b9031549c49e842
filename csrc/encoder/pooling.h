#pragma once

#include <cstddef>

#include "encoder/config.h"

namespace embedkit {

/// Pools the hidden states of one sequence, tokens [skip, length) of (length, hidden_size), as
/// sentence-transformers' Pooling does with a mask that leaves out the prompt. Nothing left to pool gives
/// zeros.
///   cls: the first token; lasttoken: the last; max: the largest value of each feature; mean: Σx / n;
///   mean_sqrt_len: Σx / √n; weightedmean: Σ i x_i / Σ i with i = 1 for the sequence's first token.
void pool_sequence(PoolingMode mode, const float* hidden, size_t ld, size_t length, size_t skip,
                   size_t hidden_size, float* out);

/// x = x / max(|x|, 1e-12), as torch.nn.functional.normalize.
void normalize(float* x, size_t size);

}  // namespace embedkit
