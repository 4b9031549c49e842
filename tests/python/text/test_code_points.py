"""Ids equal those of `tokenizers` for every code point and for sequences that normalization changes."""

from __future__ import annotations

import gzip
import random
import unicodedata
from itertools import product
from pathlib import Path

from tokenizer_pair import Pair

NORMALIZATION_TEST = Path(__file__).with_name("normalization_test.txt.gz")  # see NOTICE
CODE_POINTS = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
# Planes 3 to 13 are unassigned and 15 to 16 private: the variants take their ends only.
COMMON = [
    c for c in CODE_POINTS if ord(c) < 0x30100 or 0xE0000 <= ord(c) < 0xE0200 or ord(c) & 0xFFFF > 0xFFF0
]
MARKS = [chr(c) for c in range(0x20000) if unicodedata.combining(chr(c))]


def test_every_code_point_alone(characters: Pair) -> None:
    characters.check(CODE_POINTS)


def test_every_code_point_between_letters(characters: Pair) -> None:
    characters.check([f"a{c}b" for c in CODE_POINTS])


def test_code_points_with_other_options(variant: Pair) -> None:
    variant.check([f"a{c}b" for c in COMMON])


def test_code_points_before_marks(characters: Pair) -> None:
    """Marks after or before a code point are reordered around it."""
    kept, nonspacing = "\U00016ff0", "\u0301"  # both are marks; only the first survives
    characters.check([f"{kept}{c}{kept}{nonspacing}" for c in COMMON])


def test_pairs_of_marks(characters: Pair) -> None:
    by_class = {unicodedata.combining(mark): mark for mark in MARKS}
    kept = [mark for mark in MARKS if characters.core.encode("a" + mark) != characters.core.encode("a")]
    assert len(kept) > 50
    texts = [f"a{x}{y}b" for x, y in product([*by_class.values(), *kept], repeat=2)]
    rng = random.Random(1)
    texts += ["a" + "".join(rng.choices(kept, k=rng.randint(3, 40))) + "b" for _ in range(5_000)]
    texts += ["a" + "".join(rng.choices(MARKS, k=rng.randint(3, 12))) + "b" for _ in range(20_000)]
    characters.check(texts)


def test_normal_forms(variant: Pair) -> None:
    """All four forms of whatever Python's own tables decompose, alone and in one word."""
    changing = [c for c in COMMON if unicodedata.normalize("NFKD", c) != c]
    assert len(changing) > 15_000
    rng = random.Random(2)
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        words = [unicodedata.normalize(form, c) for c in changing if not "\uac20" < c < "\ud790"]
        words += [unicodedata.normalize(form, "".join(rng.choices(changing, k=6))) for _ in range(1_000)]
        variant.check(words)


def test_unicode_normalization_test(variant: Pair) -> None:
    sources = gzip.decompress(NORMALIZATION_TEST.read_bytes()).decode("utf-8").split("\n")[:-1]
    assert len(sources) == 19_069
    forms = ("NFC", "NFD", "NFKC", "NFKD")
    normal = {unicodedata.normalize(form, source) for source in sources for form in forms}
    texts = sorted(normal.union(sources))
    assert len(texts) > 30_000
    variant.check(texts)
    variant.check([f"a{text}b" for text in texts[::5]])
