// Byte pair encoding (Sennrich et al. 2016), with the ids of `tokenizers`.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/subword_model.h"

namespace embedkit {

struct BpeOptions {
  std::vector<std::pair<std::string, int32_t>> vocab;  ///< tokens and ids, both distinct
  std::vector<std::pair<std::string, std::string>>
      merges;               ///< the first one first; of equal ones the last counts
  bool byte_level = false;  ///< the tokens are in the alphabet of GPT-2, which has a character for each byte
  bool byte_fallback =
      false;                  ///< unknown characters become the tokens of their bytes, "<0x0A>", if all exist
  bool fuse_unknown = false;  ///< neighboring unknown characters are one
  bool ignore_merges = false;  ///< a word that is a token is that token
  bool has_unknown = false;    ///< otherwise unknown characters vanish
  std::string unknown_token;
};

class Bpe final : public SubwordModel {
 public:
  /// Throws InvalidArgument for a vocabulary or merges that cannot be.
  explicit Bpe(const BpeOptions& options);

  std::unique_ptr<SubwordModel::Buffers> make_buffers() const override;
  void encode(std::string_view word, SubwordModel::Buffers& buffers, std::vector<int32_t>& ids,
              StopToken* stop) const override;
  std::string_view boundary() const override { return boundary_; }

 private:
  struct Merge {
    uint64_t pair = kFree;  ///< left id << 32 | right id
    uint32_t rank = 0;
    int32_t id = 0;  ///< what the pair becomes
  };
  struct Buffers;

  static constexpr uint64_t kFree = ~uint64_t{0};
  static constexpr int32_t kMissing = -1;

  const Merge* find(int32_t left, int32_t right) const;
  void add_merge(const Merge& merge);
  int32_t id_of(char32_t c) const;
  void symbols(std::string_view word, std::vector<int32_t>& out) const;
  void merge_few(Buffers& b) const;
  void merge_many(Buffers& b, StopToken* stop) const;

  std::vector<Merge> merges_;  // open addressing; a power of two
  unsigned shift_ = 64;
  std::array<int32_t, 256> bytes_;                   // of byte_level or byte_fallback
  std::vector<std::pair<char32_t, int32_t>> chars_;  // ascending: tokens of one character
  std::array<int32_t, 128> ascii_;
  std::vector<std::pair<std::string, int32_t>> whole_;  // ascending: all tokens, for ignore_merges
  bool byte_level_, byte_fallback_, fuse_unknown_;
  int32_t unknown_ = kMissing;
  std::string boundary_;
};

/// The token in the alphabet of GPT-2 as the bytes it stands for; false if it has other characters.
bool bytes_of_alphabet(std::string_view token, std::string& bytes);

}  // namespace embedkit
