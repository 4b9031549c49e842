#include "text/subword.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/char_map.h"
#include "text/utf8.h"
#include "text/word_cache.h"

namespace embedkit {
namespace {

constexpr size_t kWindow = size_t{1} << 16;  // of text that may be worked on in parts
constexpr size_t kMostSteps = 64;            // of a pre-tokenizer; published ones have up to four
constexpr size_t kPollEvery = 1 << 12;       // words of a text that must be worked on as a whole

// Before a space between ASCII letters or digits, at least a window from the start; else the end of the text.
size_t window_end(std::string_view text, size_t begin) {
  for (size_t at = begin + kWindow; at < text.size(); ++at) {
    at = text.find(' ', at);
    if (at == std::string_view::npos || at + 1 >= text.size()) break;
    if (utf8::is_alphanumeric(text[at - 1]) && utf8::is_alphanumeric(text[at + 1])) return at;
  }
  return text.size();
}

AddedTokenMatcher normalized_tokens(const std::vector<AddedToken>& tokens, const Normalizer& normalizer) {
  Normalizer::Buffers buffers;
  return AddedTokenMatcher(tokens, [&](std::string_view content) {
    return std::string(normalizer.apply(content, true, true, buffers));
  });
}

}  // namespace

struct Subword::Tables {
  Tables(std::shared_ptr<const SubwordModel> model_, SubwordOptions options)
      : model(std::move(model_)),
        normalizer(std::move(options.normalizer)),
        splits(std::move(options.splits)),
        raw(options.added_tokens),
        normalized(normalized_tokens(options.added_tokens, normalizer)),
        vocab_size(options.vocab_size) {
    // Each step is a call within the one before it.
    require(splits.size() <= kMostSteps, "a pre-tokenizer of ", splits.size(), " steps; at most ", kMostSteps,
            " are run");
    for (size_t i = 0; i < splits.size(); ++i) {
      const SplitStep& step = splits[i];
      const bool texts = step.kind == SplitStep::Kind::kString || step.kind == SplitStep::Kind::kMetaspace;
      require(!texts || (!step.text.empty() && utf8::find_invalid(step.text) == std::string_view::npos),
              "the delimiter of a pre-tokenizer is empty or not valid UTF-8");
      // Where spaces went is not tracked.
      require(step.scheme != PrependScheme::kFirst || (i == 0 && normalizer.empty()),
              "a Metaspace that prepends to the first piece only must be the first step");
    }
    divisible = normalized.empty() && normalizer.divisible() && (cuts() || joins_no_words());
  }

  // Whether the first step cuts before a lone space.
  bool cuts() const {
    if (normalizer.space() != " ") return false;
    for (const SplitStep& step : splits) {
      if (step.kind == SplitStep::Kind::kPrefixSpace) continue;
      return step.kind == SplitStep::Kind::kPattern || step.kind == SplitStep::Kind::kWhitespace ||
             (step.kind == SplitStep::Kind::kMetaspace && step.split);
    }
    return false;
  }

  // Whether a space becomes what the model never joins to the word before it.
  bool joins_no_words() const {
    const std::string_view boundary = model->boundary();
    if (boundary.empty()) return false;
    for (const SplitStep& step : splits) {
      const bool harmless = step.kind == SplitStep::Kind::kMetaspace ||
                            (step.kind == SplitStep::Kind::kString && step.text == " ");
      if (!harmless) return false;
    }
    const bool marked = !splits.empty() && splits.front().kind == SplitStep::Kind::kMetaspace &&
                        splits.front().text == boundary;
    return normalizer.space() == boundary || (normalizer.space() == " " && marked);
  }

  std::shared_ptr<const SubwordModel> model;
  Normalizer normalizer;
  std::vector<SplitStep> splits;
  AddedTokenMatcher raw;
  AddedTokenMatcher normalized;
  size_t vocab_size;
  bool divisible;
};

struct Subword::Work : Tokenizer::Buffers {
  bool oversized() const override { return longest > kKeptBytes; }

  Normalizer::Buffers normalizer;
  std::vector<std::string> texts;  // of each split step
  std::unique_ptr<SubwordModel::Buffers> model;
  WordCache cache;
  size_t longest = 0;  // piece of text so far, in bytes
};

// The buffers that no thread uses: what they remember is worth keeping.
struct Subword::Pool {
  std::mutex mutex;
  std::vector<std::unique_ptr<Work>> idle;
};

/// One call of encode.
class Subword::Encoding {
 public:
  Encoding(const Tables& tables, Work& work, std::vector<int32_t>& ids, size_t limit, StopToken* stop)
      : t_(tables),
        w_(work),
        ids_(ids),
        most_(limit > ids.max_size() - ids.size() ? ids.max_size() : ids.size() + limit),
        stop_(stop) {}

  void text(std::string_view text) {
    between_added_tokens(
        t_.raw, text, ids_, most_, stop_,
        [&](size_t begin) { return t_.divisible ? window_end(text, begin) : text.size(); },
        [&](size_t begin, size_t end, bool first, bool last) {
          return piece(text.substr(begin, end - begin), begin == 0, first, last);
        });
  }

 private:
  bool piece(std::string_view text, bool start, bool first, bool last) {
    const size_t invalid = utf8::find_invalid(text);
    require(invalid == std::string_view::npos, "the text is not valid UTF-8 (",
            text.size() - std::min(invalid, text.size()), " bytes before its end)");
    w_.longest = std::max(w_.longest, text.size());
    text = t_.normalizer.apply(text, first, last, w_.normalizer);
    return between_added_tokens(
        t_.normalized, text, ids_, most_, nullptr, [&](size_t) { return text.size(); },
        [&](size_t begin, size_t end, bool, bool) {
          return split(0, text.substr(begin, end - begin), start && begin == 0);
        });
  }

  // The steps from `step` on. `start`: the text starts where the caller's does.
  bool split(size_t step, std::string_view text, bool start) {
    if (text.empty()) return true;
    if (step == t_.splits.size()) return words(text);
    const SplitStep& s = t_.splits[step];
    if (s.kind == SplitStep::Kind::kPrefixSpace) {
      if (text.front() == ' ') return split(step + 1, text, start);
      std::string& with = w_.texts[step];
      with.assign(1, ' ').append(text);
      return split(step + 1, with, start);
    }
    if (s.kind == SplitStep::Kind::kMetaspace) {
      text = metaspace(s, text, start, w_.texts[step]);
      if (!s.split) return split(step + 1, text, start);
    }
    return embedkit::split(s, text, [&](std::string_view piece) {
      return split(step + 1, piece, start && piece.data() == text.data());
    });
  }

  static std::string_view metaspace(const SplitStep& s, std::string_view text, bool start, std::string& out) {
    const bool wanted = s.scheme == PrependScheme::kAlways || (s.scheme == PrependScheme::kFirst && start);
    const bool prepends = wanted && text.front() != ' ' && !text.starts_with(s.text);
    size_t space = text.find(' ');
    if (!prepends && space == std::string_view::npos) return text;
    out.clear();
    if (prepends) out.append(s.text);
    size_t copied = 0;
    for (; space != std::string_view::npos; space = text.find(' ', copied)) {
      out.append(text.substr(copied, space - copied)).append(s.text);
      copied = space + 1;
    }
    out.append(text.substr(copied));
    return out;
  }

  // What the model sees as a word, in parts if it allows.
  bool words(std::string_view text) {
    const std::string_view boundary = t_.model->boundary();
    if (boundary.empty()) return word(text);
    size_t begin = 0;
    for (size_t at = 0; (at = text.find(boundary, at)) != std::string_view::npos;) {
      if (at > begin) {
        if (!word(text.substr(begin, at - begin))) return false;
        begin = at;
      }
      while (text.substr(at).starts_with(boundary)) at += boundary.size();  // a run of them stays together
    }
    return word(text.substr(begin));
  }

  bool word(std::string_view word) {
    if (!w_.cache.find(word, ids_)) {
      const size_t count = ids_.size();
      t_.model->encode(word, *w_.model, ids_, stop_);
      if (stop_ != nullptr && word.size() > WordCache::kMaxBytes && stop_->poll()) return false;
      w_.cache.add(word, ids_.data() + count, ids_.size() - count);
    }
    if (++words_ % kPollEvery == 0 && stop_ != nullptr && stop_->poll()) return false;
    return ids_.size() <= most_;
  }

  const Tables& t_;
  Work& w_;
  std::vector<int32_t>& ids_;
  const size_t most_;
  StopToken* stop_;
  size_t words_ = 0;
};

Subword::Subword(std::shared_ptr<const SubwordModel> model, SubwordOptions options)
    : tables_(std::make_unique<const Tables>(std::move(model), std::move(options))),
      pool_(std::make_shared<Pool>()) {}

Subword::~Subword() = default;

size_t Subword::vocab_size() const { return tables_->vocab_size; }

std::shared_ptr<Tokenizer::Buffers> Subword::make_buffers() const {
  std::unique_ptr<Work> work;
  {
    // Not waited for: in a forked child it may be locked for ever.
    const std::unique_lock lock(pool_->mutex, std::try_to_lock);
    if (lock && !pool_->idle.empty()) {
      work = std::move(pool_->idle.back());
      pool_->idle.pop_back();
    }
  }
  if (work == nullptr) {
    work = std::make_unique<Work>();
    work->texts.resize(tables_->splits.size());
    work->model = tables_->model->make_buffers();
  }
  const auto give_back = [pool = pool_](Work* used) {
    std::unique_ptr<Work> mine(used);
    if (mine->oversized()) return;
    const std::unique_lock lock(pool->mutex, std::try_to_lock);
    if (!lock) return;
    try {
      pool->idle.push_back(std::move(mine));
    } catch (const std::bad_alloc&) {  // a deleter must not throw
    }
  };
  return std::shared_ptr<Work>(work.release(), give_back);
}

void Subword::encode_with(std::string_view text, Buffers& buffers, std::vector<int32_t>& ids, size_t limit,
                          StopToken* stop) const {
  Encoding(*tables_, static_cast<Work&>(buffers), ids, limit, stop).text(text);
}

}  // namespace embedkit
