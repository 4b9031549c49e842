#include "pipeline/encode.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/first_error.h"
#include "base/platform.h"
#include "encoder/pooling.h"

namespace embedkit {
namespace {

constexpr size_t kWindowTexts = 8192;
constexpr size_t kWindowBytes = size_t{8} << 20;
/// Texts of this size together are too few tokens for one batch a thread.
constexpr size_t kLoneBytes = 512;
/// With fewer tokens per worker than this, all workers share one batch.
constexpr size_t kSharedTokens = 32;

/// Buffers of longer texts are given back: they would stay with every thread, and cost little beside such
/// texts.
constexpr size_t kKeptBytes = size_t{64} << 20;

/// What one thread keeps from window to window and from call to call.
struct ThreadState {
  TokenWindow::Scratch scratch;
  PackedBatch batch;
  Workspace workspace;
};

/// Borrows the thread's state. A second borrower (a signal handler that encodes while its thread encodes)
/// gets its own.
class StateLease {
 public:
  StateLease() = default;
  ~StateLease() {
    if (state_ && state_->workspace.bytes() <= kKeptBytes) kept() = std::move(state_);
  }
  StateLease(const StateLease&) = delete;
  StateLease& operator=(const StateLease&) = delete;

  void take() { state_ = kept() ? std::move(kept()) : std::make_unique<ThreadState>(); }
  ThreadState& operator*() { return *state_; }

 private:
  static std::unique_ptr<ThreadState>& kept() {
    thread_local std::unique_ptr<ThreadState> state;
    return state;
  }

  std::unique_ptr<ThreadState> state_;
};

/// Writes what the encoder made of a batch to its place. Thread-safe for different sequences.
class Delivery {
 public:
  virtual ~Delivery() = default;
  virtual void begin_window(const std::vector<Sequence>& sequences, size_t texts) = 0;
  virtual void deliver(const size_t* order, const std::vector<Sequence>& sequences, const PackedBatch& batch,
                       Workspace& workspace) = 0;
  virtual void end_window() {}
};

class VectorDelivery final : public Delivery {
 public:
  VectorDelivery(const Encoder& encoder, const EncodeOptions& options, float* out)
      : encoder_(encoder), options_(options), dimension_(output_dimension(encoder, options)), out_(out) {}

  void begin_window(const std::vector<Sequence>& sequences, size_t texts) override {
    sequences_ = &sequences;
    split_ = sequences.size() != texts;
    if (!split_) return;
    parts_.assign(sequences.size() * encoder_.dimension(), 0.0f);
    pooled_.assign(sequences.size(), 0);
  }

  void deliver(const size_t* order, const std::vector<Sequence>& sequences, const PackedBatch& batch,
               Workspace& workspace) override {
    const Rows& vectors = encoder_.pool(batch, workspace);
    StageClock::lap(Stage::kPool);
    for (size_t s = 0; s < batch.sequences(); ++s) {
      if (split_) {
        std::copy_n(vectors.row(s), encoder_.dimension(), parts_.data() + order[s] * encoder_.dimension());
        pooled_[order[s]] = encoder_.pooled_tokens(batch, s);
      } else {
        finish(vectors.row(s), sequences[order[s]].text);
      }
    }
  }

  void end_window() override {
    if (!split_) return;
    const size_t width = encoder_.dimension();
    std::vector<double> sum(width);
    std::vector<float> mean(width);
    // The windows of a text follow each other, in order: the sum does not depend on the threads.
    for (size_t s = 0; s < sequences_->size();) {
      const size_t text = (*sequences_)[s].text;
      const size_t first = s;
      double weight = 0;
      std::fill(sum.begin(), sum.end(), 0.0);
      for (; s < sequences_->size() && (*sequences_)[s].text == text; ++s) {
        const auto tokens = static_cast<double>(pooled_[s]);
        weight += tokens;
        for (size_t i = 0; i < width; ++i) sum[i] += tokens * parts_[s * width + i];
      }
      if (s - first == 1) {
        finish(parts_.data() + first * width, text);
        continue;
      }
      for (size_t i = 0; i < width; ++i) mean[i] = static_cast<float>(sum[i] / std::max(weight, 1.0));
      if (encoder_.ends_normalized()) normalize(mean.data(), width);
      finish(mean.data(), text);
    }
  }

 private:
  void finish(const float* vector, size_t text) const {
    float* to = out_ + text * dimension_;
    std::copy_n(vector, dimension_, to);
    if (options_.normalize) normalize(to, dimension_);
  }

  const Encoder& encoder_;
  const EncodeOptions& options_;
  const size_t dimension_;
  float* out_;
  const std::vector<Sequence>* sequences_ = nullptr;
  bool split_ = false;
  std::vector<float> parts_;    // (sequences of the window, encoder's dimension), when a text has several
  std::vector<size_t> pooled_;  // their tokens that were pooled
};

class TokenDelivery final : public Delivery {
 public:
  TokenDelivery(size_t hidden_size, std::vector<std::vector<float>>& out)
      : hidden_size_(hidden_size), out_(out) {}

  void begin_window(const std::vector<Sequence>&, size_t) override {}

  void deliver(const size_t* order, const std::vector<Sequence>& sequences, const PackedBatch& batch,
               Workspace& workspace) override {
    for (size_t s = 0; s < batch.sequences(); ++s) {
      std::vector<float>& to = out_[sequences[order[s]].text];
      to.resize(batch.length(s) * hidden_size_);
      for (size_t t = 0; t < batch.length(s); ++t)
        std::copy_n(workspace.hidden().row(batch.cu_seqlens[s] + t), hidden_size_,
                    to.data() + t * hidden_size_);
    }
  }

 private:
  const size_t hidden_size_;
  std::vector<std::vector<float>>& out_;
};

/// One call of `encode`: the state that the workers share.
class Run {
 public:
  Run(const Encoder& encoder, const TokenSource& source, const EncodeOptions& options, Delivery& delivery,
      StopToken& stop)
      : encoder_(encoder),
        source_(source),
        options_(options),
        delivery_(delivery),
        stop_(stop),
        error_(stop) {
    options.validate();
  }

  EncodeStats run() {
    for (size_t first = 0; first < source_.size();) {
      size_t texts = 0;
      size_t bytes = 0;
      while (first + texts < source_.size() && texts < kWindowTexts && bytes < kWindowBytes)
        bytes += source_.bytes(first + texts++);
      window(first, texts, bytes);
      first += texts;
    }
    return stats_;
  }

 private:
  void window(size_t first, size_t texts, size_t bytes) {
    window_.begin(source_, options_, first, texts);
    tokenized_.reset();
    encoded_.reset();
    next_batch_.store(0, std::memory_order_relaxed);

    // More threads than processors do no harm to whole batches, but workers that share a batch wait for
    // each other.
    lone_ = bytes <= kLoneBytes;
    shared_batch_ = false;
    const bool few = lone_ || texts < static_cast<size_t>(options_.threads);
    int threads = few ? std::min(options_.threads, default_threads()) : options_.threads;
    if (lone_ && threads > 1 && !lone_calls().may_share()) threads = 1;
    begun_ = std::chrono::steady_clock::now();
    clocks_.assign(options_.profile ? static_cast<size_t>(threads) : 0, StageClock());
    const std::chrono::nanoseconds waited = ThreadPool::shared().run(threads, [&](Worker worker) {
      const StageClock::Running clock(options_.profile ? &clocks_[static_cast<size_t>(worker.index)]
                                                       : nullptr);
      StateLease lease;
      error_.guard([&] {
        lease.take();
        window_.tokenize(source_, options_, worker, (*lease).scratch, stop_);
      });
      StageClock::lap(Stage::kTokenize);
      if (!lone_) tokenized_.wait(worker, stop_);
      worker.sync(lone_);  // else for texts that others tokenize: it says nothing of the processors
      StageClock::lap(Stage::kWait);
      if (worker.index == 0) {
        error_.guard([&] { plan(worker.count, *lease); });
        planned_ = !error_.failed();
        StageClock::lap(Stage::kHandOver);
      }
      worker.sync();
      StageClock::lap(Stage::kWait);
      if (!planned_) return;  // the same for all workers; from here on they wait for one that fails
      if (shared_batch_) {
        encode_together(worker);
      } else {
        error_.guard([&] { encode_batches(*lease); });
        encoded_.wait(worker, stop_);
        StageClock::lap(Stage::kWait);
      }
    });
    if (shared_batch_) lone_calls().shared(waited, std::chrono::steady_clock::now() - begun_);
    for (const StageClock& clock : clocks_)
      for (size_t i = 0; i < stats_.stages.size(); ++i) stats_.stages[i] += clock.times()[i];
    error_.rethrow();
    delivery_.end_window();
  }

  static LoneCalls& lone_calls() {
    static LoneCalls calls;
    return calls;
  }

  /// Sorts the window's sequences by length, longest first, and cuts the batches.
  void plan(int workers, ThreadState& state) {
    window_.finish();
    const std::vector<Sequence>& sequences = window_.sequences();
    const size_t tokens = window_.tokens();
    stats_.tokens += tokens;
    stats_.truncated += window_.truncated();
    stats_.unknown += window_.unknown();
    delivery_.begin_window(sequences, window_.texts());

    order_.resize(sequences.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return sequences[a].length > sequences[b].length; });
    batches_.assign(1, 0);
    const auto count = static_cast<size_t>(workers);
    const size_t most = options_.batch_size == 0 ? order_.size() : options_.batch_size;
    shared_batch_ = workers > 1 && order_.size() <= most &&
                    (tokens <= kSharedTokens * count || order_.size() < count) &&
                    (lone_ || (workers <= default_threads() && lone_calls().may_share()));
    if (shared_batch_) {
      if (!lone_) begun_ = std::chrono::steady_clock::now();
      batches_.push_back(order_.size());
      gather(0, state.batch);
      encoder_.prepare(state.batch, state.workspace, workers);
      shared_state_ = &state;
      return;
    }
    size_t left = tokens;
    for (size_t i = 0; i < order_.size();) {
      // The last batches shrink, so that no worker is left alone with a full one.
      const size_t budget =
          std::min(encoder_.batching().token_budget, std::max(kSharedTokens, left / (2 * count)));
      const size_t begin = i;
      size_t batch = 0;
      while (i < order_.size() && i - begin < most &&
             (i == begin || batch + sequences[order_[i]].length <= budget))
        batch += sequences[order_[i++]].length;
      left -= batch;
      batches_.push_back(i);
    }
  }

  /// Lays the sequences of batch b end to end.
  void gather(size_t b, PackedBatch& batch) const {
    batch.clear();
    for (size_t i = batches_[b]; i < batches_[b + 1]; ++i) {
      const Sequence& s = window_.sequences()[order_[i]];
      const int32_t* ids = window_.ids(s);
      batch.ids.insert(batch.ids.end(), ids, ids + s.length);
      batch.cu_seqlens.push_back(batch.ids.size());
      batch.pool_skip.push_back(s.pool_skip);
      if (options_.pair && options_.pair->typed) gather_types(s, batch.token_types);
    }
  }

  void gather_types(const Sequence& s, std::vector<int32_t>& types) const {
    const PairTemplate& pair = *options_.pair;
    const auto put = [&](const std::vector<int32_t>& fixed) {
      types.insert(types.end(), fixed.begin(), fixed.end());
    };
    const size_t fixed = pair.prefix_types.size() + pair.between_types.size() + pair.suffix_types.size();
    put(pair.prefix_types);
    types.insert(types.end(), s.first, pair.first_type);
    put(pair.between_types);
    types.insert(types.end(), s.length - fixed - s.first, pair.second_type);
    put(pair.suffix_types);
  }

  void encode_batches(ThreadState& state) {
    const Worker alone{0, 1, nullptr};
    for (size_t b; (b = next_batch_.fetch_add(1, std::memory_order_relaxed)) + 1 < batches_.size();) {
      gather(b, state.batch);
      encoder_.prepare(state.batch, state.workspace, 1);
      StageClock::lap(Stage::kHandOver);
      if (!encoder_.forward(state.batch, state.workspace, alone, stop_)) return;
      delivery_.deliver(order_.data() + batches_[b], window_.sequences(), state.batch, state.workspace);
      StageClock::lap(Stage::kHandOver);
    }
  }

  void encode_together(const Worker& worker) {
    if (!encoder_.forward(shared_state_->batch, shared_state_->workspace, worker, stop_)) return;
    if (worker.index == 0)
      error_.guard([&] {
        delivery_.deliver(order_.data(), window_.sequences(), shared_state_->batch, shared_state_->workspace);
        StageClock::lap(Stage::kHandOver);
      });
  }

  const Encoder& encoder_;
  const TokenSource& source_;
  const EncodeOptions& options_;
  Delivery& delivery_;
  StopToken& stop_;
  EncodeStats stats_;

  FirstError error_;
  TokenWindow window_;
  std::vector<StageClock> clocks_;  // one a worker, when the call is profiled
  std::vector<size_t> order_;       // longest first
  std::vector<size_t> batches_;     // bounds in order_
  std::atomic<size_t> next_batch_{0};
  Finished tokenized_, encoded_;
  bool lone_ = false;          // the window is small enough to be shared before its tokens are counted
  bool shared_batch_ = false;  // the workers wait for each other in each layer,
  std::chrono::steady_clock::time_point begun_;  // from here on
  ThreadState* shared_state_ = nullptr;
  bool planned_ = false;  // written by worker 0 between two syncs
};

}  // namespace

size_t output_dimension(const Encoder& encoder, const EncodeOptions& options) {
  require(options.truncate_dim <= encoder.dimension(), "truncate_dim is ", options.truncate_dim,
          ", the model has ", encoder.dimension(), " dimensions");
  return options.truncate_dim == 0 ? encoder.dimension() : options.truncate_dim;
}

EncodeStats encode(const Encoder& encoder, const TokenSource& source, const EncodeOptions& options,
                   float* out, StopToken& stop) {
  VectorDelivery delivery(encoder, options, out);
  return Run(encoder, source, options, delivery, stop).run();
}

EncodeStats encode_tokens(const Encoder& encoder, const TokenSource& source, const EncodeOptions& options,
                          std::vector<std::vector<float>>& out, StopToken& stop) {
  require(options.overflow != Overflow::kWindow,
          "token embeddings and on_overflow=\"window\" exclude each other: a window has no place in the "
          "text's rows");
  require(encoder.has_hidden(), "a static model has no token embeddings but the rows of its table");
  out.resize(source.size());
  TokenDelivery delivery(encoder.config().hidden_size, out);
  return Run(encoder, source, options, delivery, stop).run();
}

}  // namespace embedkit
