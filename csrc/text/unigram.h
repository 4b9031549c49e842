// The unigram language model of SentencePiece (Kudo 2018), with the ids of `tokenizers`.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/subword_model.h"
#include "text/trie.h"

namespace embedkit {

struct UnigramOptions {
  std::vector<std::string> vocab;  ///< position = id; of equal tokens the last counts
  std::vector<double> scores;      ///< logarithms of probabilities, one for each token
  int32_t unknown_id = 0;
  bool byte_fallback = false;  ///< what is unknown becomes the tokens of its bytes, "<0x0A>", if all exist
};

class Unigram final : public SubwordModel {
 public:
  /// Throws InvalidArgument for a vocabulary that cannot be.
  explicit Unigram(const UnigramOptions& options);

  std::unique_ptr<SubwordModel::Buffers> make_buffers() const override;
  void encode(std::string_view word, SubwordModel::Buffers& buffers, std::vector<int32_t>& ids,
              StopToken* stop) const override;

 private:
  struct Buffers;

  void add_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  std::unique_ptr<const Trie> trie_;
  std::vector<double> scores_;
  std::array<int32_t, 256> bytes_;  // -1: no such token
  int32_t unknown_;
  double unknown_score_;
  bool byte_fallback_;
};

}  // namespace embedkit
