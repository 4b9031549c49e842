"""Writes unicode_tables.cc: what the `tokenizers` package does to each code point, found by asking it.

    python csrc/text/generate_tables.py [--check]

`tokenizers` mixes the data of several Unicode ages, so no Unicode library agrees with it. Nothing here comes
from Unicode's own files: every property is probed through the package's public interface, and what the C++
code takes for granted (for example that a reordered mark is never punctuation) is asserted. `--check`
compares with the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFD, BertNormalizer, Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer

OUTPUT = Path(__file__).with_name("unicode_tables.cc")
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
HANGUL = range(0xAC00, 0xD7A4)
BLOCK_BITS = 7

# Keep in step with enum Property of unicode.h.
WHITESPACE, CONTROL, PUNCTUATION, NONSPACING, DECOMPOSES, LOWERS, WORD, CHINESE = (1 << i for i in range(8))


def flagged(clean: bool = False, chinese: bool = False, strip: bool = False) -> BertNormalizer:
    """A normalizer that does one of its steps."""
    return BertNormalizer(
        clean_text=clean, handle_chinese_chars=chinese, strip_accents=strip, lowercase=False
    )


def decomposed_hangul(c: int) -> str:
    """What decompose of unicode.h makes of a Hangul syllable."""
    index = c - HANGUL.start
    leading, vowel, trailing = index // 588, index % 588 // 28, index % 28
    return chr(0x1100 + leading) + chr(0x1161 + vowel) + (chr(0x11A7 + trailing) if trailing else "")


def single_word_boundaries(before: bool) -> list[bool]:
    """Whether an added token that must be a single word is found beside each code point."""
    tokenizer = Tokenizer(WordLevel({"?": 0, "x": 1}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("x", single_word=True, normalized=False)])
    found = []
    for start in range(0, len(CODE_POINTS), 50_000):
        chars = [chr(c) for c in CODE_POINTS[start : start + 50_000]]
        texts = [c + "x" if before else "x" + c for c in chars]
        # The char "x" itself makes "xx", which is two matches side by side that are no single words.
        found += [1 in e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    return found


def stripped_whitespace(c: str) -> tuple[bool, bool]:
    """Whether lstrip and rstrip of an added token swallow `c`."""
    tokenizer = Tokenizer(WordLevel({"?": 0, "<>": 1}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("<>", lstrip=True, rstrip=True, normalized=False)])
    return (
        len(tokenizer.encode(c + "<>", add_special_tokens=False).ids) == 1,
        len(tokenizer.encode("<>" + c, add_special_tokens=False).ids) == 1,
    )


def combining_ranks(nfd: NFD, candidates: Iterable[str]) -> dict[str, int]:
    """Ranks marks by canonical combining class: only the order matters, and two marks show it by swapping."""

    def swaps(a: str, b: str) -> bool:
        out = nfd.normalize_str("a" + a + b)
        assert out in ("a" + a + b, "a" + b + a), (a, b, out)
        return out != "a" + a + b

    # U+0334 has the lowest class and U+0345 the highest: every mark swaps with one of them, no starter does.
    low, high = "\u0334", "\u0345"
    marks = [c for c in candidates if c not in (low, high) and (swaps(c, low) or swaps(high, c))]
    classes: list[list[str]] = [[low], [high]]
    for mark in marks:
        first, last = 0, len(classes)
        while first < last:
            middle = (first + last) // 2
            if swaps(mark, classes[middle][0]):
                first = middle + 1
            else:
                last = middle
        if first < len(classes) and not swaps(classes[first][0], mark):
            classes[first].append(mark)
        else:
            classes.insert(first, [mark])
    ranks = {mark: rank for rank, members in enumerate(classes, 1) for mark in members}
    for mark, rank in ranks.items():  # each mark against every class, both ways
        for other, members in enumerate(classes, 1):
            assert swaps(mark, members[0]) == (rank > other)
            assert swaps(members[0], mark) == (other > rank)
    return ranks


class Probe:
    """Everything asked of the package, per code point."""

    def __init__(self) -> None:
        """Ask everything, and check what is taken for granted."""
        nfd, lower, split = NFD(), Lowercase(), BertPreTokenizer()
        clean, chinese, strip = flagged(clean=True), flagged(chinese=True), flagged(strip=True)
        self.flags: dict[int, int] = {}
        self.decompositions: dict[int, str] = {}
        self.lowercase: dict[int, str] = {}
        for c in CODE_POINTS:
            char = chr(c)
            flags = 0
            pieces = [piece for piece, _ in split.pre_tokenize_str("a" + char + "a")]
            if pieces == ["a", "a"]:
                flags |= WHITESPACE
                assert stripped_whitespace(char) == (True, True)
            elif pieces == ["a", char, "a"]:
                flags |= PUNCTUATION
            else:
                assert pieces == ["a" + char + "a"]
            cleaned = clean.normalize_str(char)
            if cleaned == "":
                flags |= CONTROL
            else:
                assert cleaned == (" " if flags & WHITESPACE else char)
            spaced = chinese.normalize_str(char)
            if spaced == f" {char} ":
                flags |= CHINESE
            else:
                assert spaced == char
            decomposed = nfd.normalize_str(char)
            if c in HANGUL:
                assert decomposed == decomposed_hangul(c)
            elif decomposed != char:
                flags |= DECOMPOSES
                self.decompositions[c] = decomposed
            lowered = lower.normalize_str(char)
            if lowered != char:
                flags |= LOWERS
                self.lowercase[c] = lowered
            if decomposed == char and strip.normalize_str(char) == "":
                flags |= NONSPACING
            self.flags[c] = flags
        for c, before, after in zip(
            CODE_POINTS, single_word_boundaries(True), single_word_boundaries(False), strict=True
        ):
            assert before == after
            if not before or c == ord("x"):
                self.flags[c] |= WORD
        whole = [c for c in CODE_POINTS if c not in self.decompositions and c not in HANGUL]
        self.ranks = combining_ranks(nfd, map(chr, whole))
        for c in CODE_POINTS:
            if stripped_whitespace(chr(c)) != (bool(self.flags[c] & WHITESPACE),) * 2:
                raise AssertionError(f"U+{c:04X}")
        self.check(strip)

    def check(self, strip: BertNormalizer) -> None:
        """What char_map.cc takes for granted."""
        for c in CODE_POINTS:
            decomposed = self.decompositions.get(c, chr(c))
            if c in HANGUL:
                assert self.flags[c] & ~WORD == 0
            else:
                kept = "".join(d for d in decomposed if not self.flags[ord(d)] & NONSPACING)
                assert strip.normalize_str(chr(c)) == kept
            assert len(decomposed) <= 4 and len(self.lowercase.get(c, "")) <= 2
            if self.flags[c] & CHINESE:  # a word by itself, whatever follows
                assert self.flags[c] & ~(CHINESE | DECOMPOSES | WORD) == 0
                assert len(decomposed) == 1 and not self.flags[ord(decomposed)] & ~(CHINESE | WORD)
            if self.flags[c] & (WHITESPACE | PUNCTUATION):
                assert c not in self.lowercase and chr(c) not in self.ranks
                assert not self.flags[c] & NONSPACING
            if chr(c) in self.ranks:  # sorting before or after lower-casing and dropping marks is the same
                assert c not in self.lowercase
            for d in self.lowercase.get(c, ""):
                assert not self.flags[ord(d)] & (WHITESPACE | PUNCTUATION)
            if c < 0x80:
                assert c not in self.decompositions and chr(c) not in self.ranks


def rows(values: Iterable[int]) -> str:
    """The values as lines of C++."""
    lines, line = [], ""
    for value in values:
        item = f"{value},"
        if len(line) + len(item) > 118:
            lines.append(line)
            line = ""
        line += item
    return "\n".join([*lines, line])


def two_stage(values: list[int]) -> tuple[list[int], list[int]]:
    """The number of each block of values, and the distinct blocks."""
    size = 1 << BLOCK_BITS
    blocks: dict[tuple[int, ...], int] = {}
    first = []
    for start in range(0, len(values), size):
        block = tuple(values[start : start + size])
        first.append(blocks.setdefault(block, len(blocks)))
    return first, [value for block in blocks for value in block]


def mapping(name: str, entries: dict[int, str]) -> str:
    """A Mapping of unicode.h."""
    keys, offsets, pool = sorted(entries), [0], []
    for key in keys:
        pool += [ord(c) for c in entries[key]]
        offsets.append(len(pool))
    return f"""const uint32_t k{name}Keys[] = {{
{rows(keys)}
}};
const uint16_t k{name}Offsets[] = {{
{rows(offsets)}
}};
const char32_t k{name}Pool[] = {{
{rows(pool)}
}};
const Mapping k{name} = {{k{name}Keys, k{name}Offsets, k{name}Pool, {len(keys)}}};
"""


def generate() -> str:
    """The text of unicode_tables.cc."""
    probe = Probe()
    pairs = [(probe.flags.get(c, 0), probe.ranks.get(chr(c), 0)) for c in range(0x110000)]
    palette = sorted(set(pairs))
    assert len(palette) <= 256
    index = {pair: i for i, pair in enumerate(palette)}
    first, second = two_stage([index[pair] for pair in pairs])
    colours = "\n".join(f"{{{flags},{rank}}}," for flags, rank in palette)
    return f"""// Generated by generate_tables.py from tokenizers {tokenizers.__version__}: do not edit.
// clang-format off
#include "text/unicode.h"

namespace embedkit::unicode {{

const uint16_t kBlocks[] = {{
{rows(first)}
}};
const uint8_t kRecords[] = {{
{rows(second)}
}};
const Record kPalette[] = {{
{colours}
}};
{mapping("Decompositions", probe.decompositions)}{mapping("Lowercase", probe.lowercase)}
}}  // namespace embedkit::unicode
"""


def main(output: Path, generate: Callable[[], str]) -> int:
    """Write the file, or compare with it."""
    parser = argparse.ArgumentParser(description=f"Writes {output.name}")
    parser.add_argument("--check", action="store_true", help="fail if the file differs")
    check = parser.parse_args().check
    text = generate()
    if not check:
        output.write_text(text)
    elif output.read_text() != text:
        print(f"{output} is out of date", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(OUTPUT, generate))
