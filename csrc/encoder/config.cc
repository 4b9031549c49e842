#include "encoder/config.h"

#include <algorithm>

#include "base/aligned.h"
#include "base/error.h"

namespace embedkit {

void EncoderConfig::validate() const {
  const auto positive = [](size_t value, const char* name) {
    require(value > 0 && value <= (size_t{1} << 30), name, " is ", value,
            "; it must be positive and below 2^30");
  };
  positive(hidden_size, "hidden_size");
  require(num_hidden_layers < 1 << 20, "num_hidden_layers is ", num_hidden_layers, "; it must be below 2^20");
  positive(num_attention_heads, "num_attention_heads");
  positive(intermediate_size, "intermediate_size");
  positive(vocab_size, "vocab_size");
  positive(max_position_embeddings, "max_position_embeddings");
  require(type_vocab_size <= (size_t{1} << 30), "type_vocab_size is ", type_vocab_size,
          "; it must be below 2^30");
  require(static_rows <= (size_t{1} << 30) && (static_rows > 0) == (num_hidden_layers == 0),
          "static_rows is ", static_rows, " of a model of ", num_hidden_layers,
          " layers; it must be below 2^30, and positive if "
          "there are no layers");
  require(padding_idx >= -1 && max_position_embeddings > static_cast<size_t>(padding_idx + int64_t{1}),
          "padding_idx is ", padding_idx, " and leaves none of ", max_position_embeddings, " positions");
  require(
      position_buckets == 0 || (position_buckets % 2 == 0 && position_buckets <= 4096 &&
                                (max_relative_positions > position_buckets / 2 + 1 ||
                                 max_position_embeddings <= position_buckets / 2 + 1) &&
                                std::max(max_relative_positions, max_position_embeddings) <= size_t{1} << 20),
      "position_buckets is ", position_buckets, ", max_relative_positions ", max_relative_positions,
      "; the former must be even and at most 4096, the latter more than half of it plus 1");
  require(relative_attention_num_buckets == 0 || relative_attention_num_buckets == 32,
          "relative_attention_num_buckets is ", relative_attention_num_buckets, "; it must be 32");
  require(head_size > 0 || hidden_size % num_attention_heads == 0, "hidden_size ", hidden_size,
          " is not a multiple of ", num_attention_heads, " heads");
  require(head_size <= 65536 && num_attention_heads <= 65536 && context_width() <= 65536, "heads of ",
          head_size, " features are too large");
  require(num_key_value_heads <= num_attention_heads && num_attention_heads % key_value_heads() == 0,
          "num_attention_heads ", num_attention_heads, " is not a multiple of num_key_value_heads ",
          num_key_value_heads);
  require(num_hidden_groups == 0 ||
              (num_hidden_groups <= num_hidden_layers && num_hidden_layers % num_hidden_groups == 0),
          "num_hidden_layers ", num_hidden_layers, " is not a multiple of num_hidden_groups ",
          num_hidden_groups);
  require(local_layers.empty() || local_layers.size() == num_hidden_layers, "local_layers describes ",
          local_layers.size(), " layers, the model has ", num_hidden_layers);
  for (const float speed : {rotary_base, rotary_local_base})
    require(speed == 0 || (speed >= 1 && speed <= 1e9f), "a rotary base is ", speed,
            "; it must be from 1 to 1e9");
  require(rotary_divisor > 0 && rotary_divisor <= 1e6f && rotary_stretch >= 1 && rotary_stretch <= 1e6f,
          "rotary_divisor is ", rotary_divisor, ", rotary_stretch ", rotary_stretch,
          "; both must be positive and below 1e6, the latter at least 1");
  require((rotary_short_wave == 0 && rotary_long_wave == 0) ||
              (rotary_short_wave > 0 && rotary_short_wave < rotary_long_wave && rotary_long_wave <= 1e9f),
          "rotary_short_wave is ", rotary_short_wave, ", rotary_long_wave ", rotary_long_wave,
          "; the former must be positive and below the latter, and that at most 1e9");
  require(embedding_scale > 0 && embedding_scale <= 1e6f, "embedding_scale is ", embedding_scale,
          "; it must be positive and below 1e6");
  require(rotary_trained == 0 || head_width() > 2, "heads of ", head_width(),
          " features cannot be stretched");
  const size_t head_size = head_width();
  const bool rotates = rotary || rotary_base > 0;
  require(
      !rotates || head_size % 2 == 0, "heads of ", head_size,
      " features cannot be rotated in pairs; hidden_size must be an even multiple of num_attention_heads");
  // No tensor of the file bounds the size of these tables.
  require(!rotary || checked_mul(max_position_embeddings, head_size) <= size_t{1} << 26,
          "max_position_embeddings is ", max_position_embeddings, "; the rotary table for heads of ",
          head_size, " features would be too large");
  require((!alibi && position_table) ||
              checked_mul(max_position_embeddings, num_attention_heads) <= size_t{1} << 24,
          "max_position_embeddings is ", max_position_embeddings, "; the table of distances for ",
          num_attention_heads, " heads would be too large");
  require(layer_norm_eps >= 0 && layer_norm_eps < 1, "layer_norm_eps is ", layer_norm_eps,
          "; it must be in [0, 1)");
  // No family needs what no path computes.
  const bool grouped = num_hidden_groups > 0 && num_hidden_groups < num_hidden_layers;
  require(!normalizes_before() || (embedding_size == 0 && !(grouped && embedding_norm)),
          "layers that normalize their input take no projected embeddings, and normalized ones only if "
          "no layer is used twice");
  require(static_rows > 0 || embedding_norm || embedding_size > 0 || normalizes_before(),
          "embeddings that are not normalized need layers that normalize their input");
  // 255 * 127 * K must fit an int32 accumulator.
  require(std::max({hidden_size, intermediate_size, embedding_size}) <= 65536,
          "a layer of more than 65536 features is not supported");
}

}  // namespace embedkit
