// The whole pipeline on a small random model: the same bits for every batch, order and number of threads;
// overflow; errors and interruption reach the caller and leave the pipeline usable.
#include "pipeline/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "base/error.h"
#include "check.h"

using namespace embedkit;

namespace {

/// A BERT of odd sizes with random weights.
class Model {
 public:
  explicit Model(Precision precision) {
    config_ = {.hidden_size = 40,
               .num_hidden_layers = 2,
               .num_attention_heads = 4,
               .intermediate_size = 72,
               .vocab_size = 100,
               .max_position_embeddings = 70,
               .type_vocab_size = 2,
               .layer_norm_eps = 1e-12f,
               .hidden_act = Activation::kGelu,
               .precision = precision};
    const size_t h = config_.hidden_size;
    matrix("embeddings.word_embeddings.weight", 100, h);
    matrix("embeddings.position_embeddings.weight", 70, h);
    floats("embeddings.token_type_embeddings.weight", {2, h});
    norm("embeddings.LayerNorm");
    for (int l = 0; l < 2; ++l) {
      const std::string p = "encoder.layer." + std::to_string(l) + ".";
      for (const char* name :
           {"attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"})
        linear(p + name, h, h);
      norm(p + "attention.output.LayerNorm");
      linear(p + "intermediate.dense", config_.intermediate_size, h);
      linear(p + "output.dense", h, config_.intermediate_size);
      norm(p + "output.LayerNorm");
    }
  }

  Encoder encoder(Isa isa) const {
    return Encoder(config_, tensors_, {PoolingMode::kMean, PoolingMode::kMax}, {HeadModule{}},
                   kernels_for(isa));
  }
  Tensors& tensors() { return tensors_; }

 private:
  void floats(const std::string& name, std::vector<size_t> shape, float around = 0) {
    size_t n = 1;
    for (const size_t s : shape) n *= s;
    auto data = std::make_shared<std::vector<float>>(n);
    std::normal_distribution<float> normal(around, 0.3f);
    for (float& v : *data) v = normal(random_);
    tensors_[name] = {Tensor::Type::kFloat32, data->data(), std::move(shape), data};
  }
  void matrix(const std::string& name, size_t rows, size_t columns) {
    if (config_.precision != Precision::kInt8) return floats(name, {rows, columns});
    auto data = std::make_shared<std::vector<int8_t>>(rows * columns);
    std::uniform_int_distribution<int> bytes(-127, 127);
    for (int8_t& v : *data) v = static_cast<int8_t>(bytes(random_));
    tensors_[name] = {Tensor::Type::kInt8, data->data(), {rows, columns}, data};
    floats(name + "_scale", {rows});
    auto* scale = static_cast<float*>(const_cast<void*>(tensors_[name + "_scale"].data));
    for (size_t r = 0; r < rows; ++r) scale[r] = std::abs(scale[r]) / 127;
  }
  void linear(const std::string& name, size_t out, size_t in) {
    matrix(name + ".weight", out, in);
    floats(name + ".bias", {out});
  }
  void norm(const std::string& name) {
    floats(name + ".weight", {config_.hidden_size}, 1);
    floats(name + ".bias", {config_.hidden_size});
  }

  EncoderConfig config_;
  Tensors tensors_;
  std::mt19937 random_{11};
};

std::vector<std::vector<int32_t>> random_ids(size_t texts, size_t longest, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<int32_t>> ids(texts);
  for (auto& text : ids) {
    text.resize(random() % (longest + 1));
    for (int32_t& id : text) id = static_cast<int32_t>(random() % 100);
  }
  return ids;
}

EncodeOptions options_for(int threads) {
  EncodeOptions options;
  options.threads = threads;
  options.prefix_ids = {1};
  options.suffix_ids = {2};
  options.max_length = 34;
  return options;
}

std::vector<float> vectors(const Encoder& encoder, const std::vector<std::vector<int32_t>>& ids,
                           const EncodeOptions& options) {
  std::vector<float> out(ids.size() * output_dimension(encoder, options));
  StopToken stop;
  encode(encoder, IdSource(ids), options, out.data(), stop);
  return out;
}

void same_bits_everywhere(Isa isa, Precision precision) {
  const Encoder encoder = Model(precision).encoder(isa);
  const size_t width = encoder.dimension();
  CHECK_EQ(width, size_t{80});
  for (const Overflow overflow : {Overflow::kTruncate, Overflow::kWindow}) {
    const auto ids = random_ids(60, 60, 5);
    EncodeOptions options = options_for(1);
    options.overflow = overflow;
    const std::vector<float> want = vectors(encoder, ids, options);
    for (size_t i = 0; i < want.size(); ++i) CHECK(std::isfinite(want[i]));
    for (const int threads : {1, 2, 5}) {
      options.threads = threads;
      CHECK(vectors(encoder, ids, options) == want);
      options.batch_size = 3;
      CHECK(vectors(encoder, ids, options) == want);
      options.batch_size = 0;
      for (size_t i = 0; i < ids.size(); i += 20) {
        const std::vector<float> alone = vectors(encoder, {ids[i]}, options);
        CHECK(std::memcmp(alone.data(), want.data() + i * width, width * sizeof(float)) == 0);
      }
      auto reversed = ids;
      std::reverse(reversed.begin(), reversed.end());
      const std::vector<float> back = vectors(encoder, reversed, options);
      CHECK(std::memcmp(back.data(), want.data() + (ids.size() - 1) * width, width * sizeof(float)) == 0);
    }
  }
}

void windows_are_averaged(Isa isa) {
  const Encoder encoder = Model(Precision::kFp32).encoder(isa);
  const size_t width = encoder.dimension();
  for (const size_t skip : {0, 5}) {  // a prompt of 5 tokens, which only the first window holds
    EncodeOptions options = options_for(2);
    options.pool_skip = skip;
    const auto text =
        std::vector<int32_t>(50, 7);  // windows of 32 and 18, with [CLS] and [SEP] 34 and 20 tokens
    const std::vector<float> first = vectors(encoder, {std::vector<int32_t>(32, 7)}, options);
    options.overflow = Overflow::kWindow;
    const std::vector<float> got = vectors(encoder, {text, {3}}, options);
    options.pool_skip = 0;
    const std::vector<float> second = vectors(encoder, {std::vector<int32_t>(18, 7)}, options);
    const double weight = 34.0 - static_cast<double>(skip);
    double norm = 0;
    std::vector<double> mean(width);
    for (size_t i = 0; i < width; ++i) norm += std::pow(mean[i] = weight * first[i] + 20.0 * second[i], 2);
    for (size_t i = 0; i < width; ++i) CHECK(std::abs(got[i] - mean[i] / std::sqrt(norm)) < 1e-6);
  }
}

void options_are_kept(Isa isa) {
  const Encoder encoder = Model(Precision::kFp32).encoder(isa);
  const size_t width = encoder.dimension();
  const auto ids = random_ids(5, 60, 6);
  EncodeOptions options = options_for(2);
  const std::vector<float> full = vectors(encoder, ids, options);
  options.truncate_dim = 24;
  options.normalize = true;
  const std::vector<float> cut = vectors(encoder, ids, options);
  for (size_t t = 0; t < ids.size(); ++t) {
    double norm = 0;
    for (size_t i = 0; i < 24; ++i) norm += std::pow(full[t * width + i], 2);
    for (size_t i = 0; i < 24; ++i)
      CHECK(std::abs(cut[t * 24 + i] - full[t * width + i] / std::sqrt(norm)) < 1e-6);
  }
  options = options_for(2);
  options.truncate_left = true;
  std::vector<int32_t> text(50);
  for (size_t i = 0; i < 50; ++i) text[i] = static_cast<int32_t>(i);
  const std::vector<int32_t> tail(text.end() - 32, text.end());
  CHECK(vectors(encoder, {text}, options) == vectors(encoder, {tail}, options));

  std::vector<std::vector<float>> tokens;
  StopToken stop;
  options = options_for(2);
  const EncodeStats stats = encode_tokens(encoder, IdSource({{5, 6}, {}, text}), options, tokens, stop);
  CHECK_EQ(tokens[0].size(), size_t{4 * 40});
  CHECK_EQ(tokens[1].size(), size_t{2 * 40});
  CHECK_EQ(tokens[2].size(), size_t{34 * 40});
  CHECK_EQ(stats.tokens, size_t{40});
  CHECK_EQ(stats.truncated, size_t{1});
}

void errors_reach_the_caller(Isa isa) {
  const Encoder encoder = Model(Precision::kFp32).encoder(isa);
  for (const int threads : {1, 2}) {
    EncodeOptions options = options_for(threads);
    auto ids = random_ids(200, 30, 7);
    ids[150] = {5, 100};
    CHECK_THROWS(vectors(encoder, ids, options), InvalidArgument);  // outside the table
    ids[150] = std::vector<int32_t>(40, 3);
    options.overflow = Overflow::kError;
    CHECK_THROWS(vectors(encoder, ids, options), InvalidArgument);
    options = options_for(threads);
    options.max_length = 2;
    CHECK_THROWS(vectors(encoder, ids, options), InvalidArgument);  // no room for text
    options = options_for(threads);
    options.max_length = 500;
    ids[3] = std::vector<int32_t>(300, 3);
    CHECK_THROWS(vectors(encoder, ids, options), InvalidArgument);  // past the positions
    options = options_for(threads);
    options.truncate_dim = 81;
    CHECK_THROWS(vectors(encoder, ids, options), InvalidArgument);

    // Enough texts that the calling thread, the one that asks, gets its share even on a busy machine.
    const auto many = random_ids(1000, 30, 8);
    StopToken stop([] { return true; }, std::chrono::milliseconds(0));
    std::vector<float> out(many.size() * encoder.dimension());
    CHECK_THROWS(encode(encoder, IdSource(many), options_for(threads), out.data(), stop), Interrupted);
    CHECK_EQ(vectors(encoder, random_ids(9, 9, 1), options_for(threads)).size(), 9 * encoder.dimension());
  }
}

void bad_models_are_refused(Isa isa) {
  Model model(Precision::kFp32);
  const std::string name = "encoder.layer.1.output.dense.weight";
  const Tensor kept = model.tensors()[name];
  model.tensors().erase(name);
  CHECK_THROWS(model.encoder(isa), InvalidArgument);
  model.tensors()[name] = kept;
  model.tensors()[name].shape = {72, 40};
  CHECK_THROWS(model.encoder(isa), InvalidArgument);
  model.tensors()[name] = kept;
  model.tensors()[name].type = Tensor::Type::kInt8;
  CHECK_THROWS(model.encoder(isa), InvalidArgument);
}

}  // namespace

int main() {
#if defined(__SANITIZE_THREAD__)  // takes minutes for all, and the threads are the same
  const std::vector<Isa> isas = {active_isa()};
#else
  const std::vector<Isa> isas = available_isas();
#endif
  for (const Isa isa : isas) {
    same_bits_everywhere(isa, Precision::kFp32);
    same_bits_everywhere(isa, Precision::kBf16);
    same_bits_everywhere(isa, Precision::kInt8);
    windows_are_averaged(isa);
    options_are_kept(isa);
    errors_reach_the_caller(isa);
    bad_models_are_refused(isa);
  }
  return test::report();
}
