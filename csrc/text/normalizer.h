// The normalizers of `tokenizers`, one after another.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/charsmap.h"
#include "text/normal_forms.h"

namespace embedkit {

struct NormalizerStep {
  enum class Kind {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,
    kNmt,
    kReplace,        ///< every `pattern` by `content`
    kReplaceRuns,    ///< of two spaces or more (the regular expression " {2,}")
    kReplaceBreaks,  ///< of two white spaces or more, or a line break or tab ("\s{2,}|[\n\r\t]")
    kPrepend,        ///< `content`, unless the text is empty
    kStrip,          ///< white space at the sides that are set
    kCharsmap,       ///< `content`: the bytes of a Charsmap
  };

  Kind kind;
  std::string pattern;
  std::string content;
  bool left = false;
  bool right = false;
};

class Normalizer {
 public:
  struct Buffers {
    std::string texts[2];  // the last two results
    Composer composer;
  };

  /// Throws InvalidArgument for steps that cannot be.
  explicit Normalizer(std::vector<NormalizerStep> steps);

  bool empty() const { return steps_.empty(); }

  /// The text after all steps: `text` itself or a view of a buffer. `first` and `last`: whether it starts
  /// and ends what the steps see as one text. Throws InvalidArgument if it is not UTF-8.
  std::string_view apply(std::string_view text, bool first, bool last, Buffers& buffers) const;

  /// Whether a text may be normalized in two parts, cut before a space between ASCII letters or digits.
  bool divisible() const;
  /// What a lone space becomes: itself, or the content of the step that replaces it.
  std::string_view space() const;

 private:
  struct Step : NormalizerStep {
    std::unique_ptr<const Charsmap> charsmap;
  };

  std::vector<Step> steps_;
};

}  // namespace embedkit
