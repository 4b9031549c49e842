"""Writes unicode_traits.cc: what the `tokenizers` package does to each code point outside BERT's normalizer.

    python csrc/text/generate_traits.py [--check]

As in generate_tables.py every property is probed through the package's public interface, and nothing comes from
Unicode's own files: the normal forms, the character classes of its regular expressions (Oniguruma), and the
grapheme clusters of its Precompiled normalizer, which show in which charsmaps match. `--check` compares with the
file.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import tokenizers
from generate_tables import CODE_POINTS, HANGUL, combining_ranks, main, mapping, rows, two_stage
from tokenizers import Regex
from tokenizers.normalizers import NFC, NFD, NFKC, NFKD, Nmt, Precompiled, StripAccents
from tokenizers.pre_tokenizers import Digits, PreTokenizer, Punctuation, Split

OUTPUT = Path(__file__).with_name("unicode_traits.cc")

# Keep in step with traits.h.
(
    LETTER, NUMBER, SPACE, MARK, DIGIT, PUNCTUATED, ACCENT, NMT_REMOVED, NMT_SPACE, COMPATIBLE, NFC_UNSTABLE,
    NFKC_UNSTABLE, CONSONANT, LINKER, CONJUNCT,
) = (1 << i for i in range(15))  # fmt: skip
OTHER, CONTROL, EXTEND, JOINER, SPACING, PREPEND, PICTOGRAPH, L, V, T, LV, LVT = range(12)
BREAK_SHIFT = 16


def charsmap(first_bytes: bytes) -> Precompiled:
    """Replaces every grapheme cluster below six bytes that starts with one of the bytes by "X".

    The smallest double array: a root at offset 256 with a child for each byte, whose value follows at offset 512.
    """
    units = [0] * 1024
    units[0] = 256 << 10
    for byte in first_bytes:
        at = 256 ^ byte
        units[at] = 512 << 10 | 1 << 8 | byte
        units[at ^ 512] = 1 << 31  # the value 0: the first string
    trie = struct.pack(f"<{len(units)}I", *units)
    return Precompiled(struct.pack("<I", len(trie)) + trie + b"X\0")


def class_of(pattern: str) -> set[int]:
    """The code points of an Oniguruma class."""
    found: set[int] = set()
    removed = Split(Regex(pattern), "removed")
    for start in range(0, len(CODE_POINTS), 4096):
        block = CODE_POINTS[start : start + 4096]
        kept = {c for piece, _ in removed.pre_tokenize_str("".join(map(chr, block))) for c in piece}
        found.update(c for c in block if chr(c) not in kept)
    return found


def single(splits: PreTokenizer) -> set[int]:
    """The code points that a pre-tokenizer splits off or drops."""
    return {c for c in CODE_POINTS if len(splits.pre_tokenize_str("a" + chr(c) + "a")) > 1}


class Clusters:
    """Which code points join which into one grapheme cluster, by what shows in which charsmaps match.

    A cluster below six bytes is replaced as a whole; in a longer one each character is looked up by itself. So a
    last character of two or three bytes and a mark after it show whether they are a cluster of their own.
    """

    MARK = "\u0308"

    def __init__(self) -> None:
        """Make the charsmaps."""
        self.maps = {byte: charsmap(bytes([byte])) for byte in range(0x100)}
        self.any = charsmap(bytes(range(0xC2, 0xF5)))

    def joined(self, before: str, after: str) -> bool:
        """Whether `after` (two or three bytes) goes on with a cluster; with it, six bytes at least."""
        assert len((before + after + self.MARK).encode()) > 5 and 2 <= len(after.encode()) <= 3
        out = self.maps[after.encode()[0]].normalize_str(before + after + self.MARK)
        assert out.endswith(("X", "X" + self.MARK))
        return out.endswith(self.MARK)

    def extends(self, c: str) -> bool:
        """GB9 and GB9a."""
        return self.maps[ord("a")].normalize_str("a" + c) == "X"

    def prepends(self, c: str) -> bool:
        """GB9b."""
        return ord(c) >= 0x80 and self.any.normalize_str(c + "a") == "X"

    def controls(self, c: str) -> bool:
        """Behind a control, the marks are a cluster of their own."""
        return self.maps[0xCC].normalize_str(c + self.MARK * 2) == c + "X"

    def follows_joiner(self, c: str) -> bool:
        """GB11, as the last."""
        return "\u200d" in self.maps[0xC2].normalize_str("\u00a9\u200d" + c)

    def hangul(self, c: str) -> int:
        """GB6 to GB8."""
        after = [self.joined(c, jamo) for jamo in "\u1100\u1161\u11a8"]
        if not any(after):
            return OTHER
        before = [self.joined(jamo, c) for jamo in "\u1100\u1161\u11a8"]
        return {
            ((1, 1, 0), (1, 0, 0)): L,
            ((0, 1, 1), (1, 1, 0)): V,
            ((0, 0, 1), (0, 1, 1)): T,
            ((0, 1, 1), (1, 0, 0)): LV,
            ((0, 0, 1), (1, 0, 0)): LVT,
        }[tuple(map(int, after)), tuple(map(int, before))]

    def of(self, c: str) -> int:
        """The grapheme cluster break."""
        if c == "\u200d":
            assert self.extends(c)
            return JOINER
        if self.extends(c):
            # A spacing mark ends what a pictograph began.
            return EXTEND if self.joined("\u00a9" + c + "\u200d", "\u00a9") else SPACING
        if self.controls(c):
            return CONTROL
        if self.prepends(c):
            return PREPEND
        if self.follows_joiner(c):
            assert self.joined(c + "\u200d", "\u00a9")
            return PICTOGRAPH
        return self.hangul(c) if len(c.encode()) == 3 else OTHER

    def conjunct(self, c: str, kind: int) -> int:
        """GB9c: the flags."""
        flags = 0
        if self.joined(c + "\u094d", "\u0915"):
            flags |= CONSONANT
            assert len(c.encode()) == 4 or self.joined("\u0915\u094d", c)
        if kind in (EXTEND, JOINER, SPACING):
            if self.joined("\u0915" + c, "\u0915"):
                flags |= LINKER
            if self.joined("\u0915" + c + "\u094d", "\u0915"):
                flags |= CONJUNCT
            assert flags in (0, CONJUNCT, LINKER | CONJUNCT)
        return flags


def generate() -> str:
    """The text of unicode_traits.cc."""
    nfc, nfd, nfkc, nfkd, nmt, strip = NFC(), NFD(), NFKC(), NFKD(), Nmt(), StripAccents()
    clusters = Clusters()
    values = dict.fromkeys(CODE_POINTS, 0)
    for flag, members in (
        (LETTER, class_of(r"\p{L}")),
        (NUMBER, class_of(r"\p{N}")),
        (SPACE, class_of(r"\s")),
        (MARK, class_of(r"\p{M}")),
        (DIGIT, single(Digits(individual_digits=True))),
        (PUNCTUATED, single(Punctuation())),
    ):
        for c in members:
            values[c] |= flag
    compatibilities: dict[int, str] = {}
    pairs: dict[int, int] = {}
    unstable = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}
    for c in CODE_POINTS:
        char = chr(c)
        decomposed = nfd.normalize_str(char)
        compatible = nfkd.normalize_str(char)
        if compatible != decomposed:
            values[c] |= COMPATIBLE
            compatibilities[c] = compatible
        if nfc.normalize_str(char) != char:
            values[c] |= NFC_UNSTABLE
        elif decomposed != char and c not in HANGUL:
            first = nfc.normalize_str(decomposed[:-1])
            assert len(first) == 1 and nfc.normalize_str(first + decomposed[-1]) == char
            pairs[ord(first) << 32 | ord(decomposed[-1])] = c
            unstable.add(ord(decomposed[-1]))
        if nfkc.normalize_str(char) != char:
            values[c] |= NFKC_UNSTABLE
        if strip.normalize_str(char) == "":
            values[c] |= ACCENT
        after = nmt.normalize_str(char)
        if after != char:
            assert after in ("", " ")
            values[c] |= NMT_SPACE if after else NMT_REMOVED
        kind = clusters.of(char)
        values[c] |= kind << BREAK_SHIFT | clusters.conjunct(char, kind)
    whole = [chr(c) for c in CODE_POINTS if c not in HANGUL and nfd.normalize_str(chr(c)) == chr(c)]
    unstable.update(map(ord, combining_ranks(nfd, whole)))
    for c in unstable:
        values[c] |= NFC_UNSTABLE | NFKC_UNSTABLE
    assert all(values[c] & NFKC_UNSTABLE for c in CODE_POINTS if values[c] & NFC_UNSTABLE)

    every = [values.get(c, 0) for c in range(0x110000)]
    palette = sorted(set(every))
    assert len(palette) <= 256
    index = {value: i for i, value in enumerate(palette)}
    first_stage, second_stage = two_stage([index[value] for value in every])
    keys = sorted(pairs)
    return f"""// Generated by generate_traits.py from tokenizers {tokenizers.__version__}: do not edit.
// clang-format off
#include "text/traits.h"

namespace embedkit::unicode {{

const uint16_t kTraitBlocks[] = {{
{rows(first_stage)}
}};
const uint8_t kTraitRecords[] = {{
{rows(second_stage)}
}};
const uint32_t kTraitPalette[] = {{
{rows(palette)}
}};
{mapping("Compatibilities", compatibilities)}const uint64_t kPairs[] = {{
{rows(keys)}
}};
const uint32_t kComposites[] = {{
{rows(pairs[key] for key in keys)}
}};
const size_t kPairCount = {len(keys)};

}}  // namespace embedkit::unicode
"""


if __name__ == "__main__":
    sys.exit(main(OUTPUT, generate))
