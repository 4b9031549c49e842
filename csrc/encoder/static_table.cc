#include "encoder/static_table.h"

#include <algorithm>

#include "base/error.h"

namespace embedkit {
namespace {

/// Empty if the model has none.
Tensor optional(const Tensors& tensors, const char* name, Tensor::Type type, size_t size) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) return {};
  require(found->second.type == type && found->second.shape == std::vector<size_t>{size}, "tensor '", name,
          "' does not fit a model of ", size, " entries");
  return found->second;
}

}  // namespace

StaticTable::StaticTable(const EncoderConfig& config, const Tensors& tensors)
    : scale_(optional(tensors, "table.weight_scale", Tensor::Type::kFloat32, config.static_rows)),
      weights_(optional(tensors, "table.weights", Tensor::Type::kFloat32, config.vocab_size)),
      mapping_(optional(tensors, "table.mapping", Tensor::Type::kInt32, config.vocab_size)),
      tokens_(config.vocab_size),
      ignored_(config.ignored_id) {
  const auto found = tensors.find("table.weight");
  require(found != tensors.end(), "the model has no tensor 'table.weight'");
  rows_ = found->second;
  require(row_type(rows_.type).has_value(), "tensor 'table.weight' is int32");
  require(rows_.shape == std::vector<size_t>{config.static_rows, config.hidden_size},
          "tensor 'table.weight' does not have ", config.static_rows, " rows of ", config.hidden_size);
  require((rows_.type == Tensor::Type::kInt8) == (scale_.data != nullptr),
          "an int8 table has a scale for each row, another table none");
  require(mapping_.data != nullptr || config.static_rows == config.vocab_size, "a table of ",
          config.static_rows, " rows for ", config.vocab_size, " tokens needs 'table.mapping'");
  const auto* rows = static_cast<const int32_t*>(mapping_.data);
  for (size_t i = 0; rows != nullptr && i < tokens_; ++i)
    require(rows[i] >= 0 && static_cast<size_t>(rows[i]) < config.static_rows, "the mapping of token ", i,
            " is ", rows[i], ", outside the table of ", config.static_rows, " rows");
}

void StaticTable::mean(const Kernels& kernels, std::span<const int32_t> ids, Buffers& buffers,
                       float* out) const {
  const auto* row_of = static_cast<const int32_t*>(mapping_.data);
  const auto* weights = static_cast<const float*>(weights_.data);
  const auto* scale = static_cast<const float*>(scale_.data);
  const bool weighed = weights != nullptr || scale != nullptr;
  buffers.rows.clear();
  buffers.factors.clear();
  for (const int32_t id : ids) {
    if (id == ignored_) continue;
    const int32_t row = row_of != nullptr ? row_of[id] : id;
    buffers.rows.push_back(row);
    if (weighed)
      buffers.factors.push_back((weights != nullptr ? weights[id] : 1.0f) *
                                (scale != nullptr ? scale[row] : 1.0f));
  }
  const size_t columns = rows_.shape[1];
  const size_t count = buffers.rows.size();
  kernels.sum_rows({.table = rows_.data,
                    .type = *row_type(rows_.type),
                    .columns = columns,
                    .rows = buffers.rows.data(),
                    .factors = weighed ? buffers.factors.data() : nullptr,
                    .count = count,
                    .out = out});
  if (count == 0) return;
  const float inverse = 1.0f / static_cast<float>(count);
  for (size_t i = 0; i < columns; ++i) out[i] *= inverse;
}

size_t StaticTable::counted(std::span<const int32_t> ids) const {
  return ids.size() - static_cast<size_t>(std::count(ids.begin(), ids.end(), ignored_));
}

size_t StaticTable::memory_bytes() const {
  size_t bytes = 0;
  for (const Tensor* tensor : {&rows_, &scale_, &weights_, &mapping_}) {
    if (tensor->data == nullptr) continue;
    size_t size = tensor_item_size(tensor->type);
    for (const size_t dimension : tensor->shape) size *= dimension;
    bytes += size;
  }
  return bytes;
}

}  // namespace embedkit
