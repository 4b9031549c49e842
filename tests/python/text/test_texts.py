"""Ids equal those of `tokenizers` for text: sentences of many scripts, random and adversarial strings."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizer_pair import OPTIONS, SENTENCES, SPECIAL, Pair, special, subword_vocabulary
from tokenizers import Tokenizer

from embedkit.model_folder.tokenizer import load_tokenizer

FRAGMENTS = [
    *SPECIAL,
    *("[SEP", "SEP]", "[ SEP ]", "[sep]", "[MASK][MASK]", "[", "]", "##", "##a", "#"),
    *(" ", "  ", "\t", "\n", "\r\n", "\x0b", "\x0c"),
    *("\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u2003", "\u3000"),
    *("\u2028", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff"),
    *("\x00", "\x01", "\x7f", "\xad", "\ufffd", "\ufffe"),
    *("a", "the", "ing", "Hello", "WORLD", "don't", "x" * 33, "y" * 99, "z" * 100, "q" * 101, "ab" * 300),
    *("\u0301", "\u0327", "\u0323", "\u0307", "\u0345"),
    *("\u0334", "\u302e", "\U0001d165", "\U00016ff0", "\u1ab0"),
    *("é", "e\u0301", "ế", "Å", "\u212b", "İ", "I\u0307", "ß", "ẞ"),
    *("Σ", "ς", "ǅ", "ﬁ", "ĳ", "Ω", "\u1fef", "≠", "≮"),
    *("ж", "Й", "И\u0306", "ё", "ا", "أ", "لَ", "ש\u05c1", "क", "क़"),
    *("ড়", "ก", "ำ", "ཱི", "ᄀ", "ᅡ", "ᆨ", "가", "각", "힣"),
    *("中", "文", "龍", "\uf900", "\ufa0e", "\U0002f800"),
    *("𠮷", "\U0002b81e", "\U0002b920", "\u3400", "\u9fff", "\ua000"),
    *("か", "が", "か\u3099", "ガ", "ﾊﾟ", "Ａ", "ｚ", "！", "。", "、"),
    *("·", "—", "…", "“", "’", "$", "+", "^", "`", "~", "_"),
    *("👍🏽", "👨\u200d👩\u200d👧", "🇫🇷", "1\ufe0f\u20e3"),
    *("\U000e0067", "\ue000", "\U0010fffd", "\u0378", "\u05ff"),
    *("\u1c90", "Ა", "\ua7dc", "\u1c89", "\U00010570"),
    *("\U000105c0", "\u0600", "\u06dd", "\U000110bd", "\u180e"),
]  # fmt: skip


def random_texts(seed: int, count: int) -> list[str]:
    """Half from fragments that have caused errors in tokenizers, half from code points of dense ranges."""
    rng = random.Random(seed)
    ranges = [(0, 0x80), (0x20, 0x250), (0x300, 0x370), (0x370, 0x600), (0x600, 0x1000), (0x1000, 0x2000)]
    ranges += [(0x2000, 0x2C00), (0x2C00, 0x3400), (0x3400, 0xA000), (0xA000, 0xD800), (0xE000, 0x10000)]
    ranges += [(0x10000, 0x12000), (0x1D000, 0x1F000), (0x1F000, 0x20000), (0x20000, 0x110000)]
    texts = []
    for i in range(count):
        if i % 2:
            texts.append("".join(rng.choices(FRAGMENTS, k=rng.randint(1, 9))))
        else:
            parts = [rng.choice(ranges) for _ in range(rng.randint(1, 3))]
            texts.append("".join(chr(rng.randrange(*rng.choice(parts))) for _ in range(rng.randint(1, 14))))
    return texts


def test_sentences(variant: Pair) -> None:
    variant.check(SENTENCES)


@pytest.mark.parametrize("options", OPTIONS)
def test_sentences_in_pieces(options: str) -> None:
    rng = random.Random(3)
    words = [word for sentence in SENTENCES for word in sentence.split(" ")]
    texts = [" ".join(rng.choices(words, k=12)) for _ in range(2_000)]
    texts += [text.upper() for text in texts[:500]] + [text.replace(" ", "") for text in texts[:500]]
    Pair(subword_vocabulary(), special(), **OPTIONS[options]).check([*SENTENCES, *texts])


def test_random_texts(characters: Pair) -> None:
    characters.check(random_texts(4, 100_000))


def test_random_texts_in_pieces(subwords: Pair) -> None:
    subwords.check(random_texts(5, 60_000))


@pytest.mark.parametrize("options", OPTIONS)
def test_random_texts_with_other_options(options: str) -> None:
    Pair(subword_vocabulary(), special(mask_lstrip=True), **OPTIONS[options]).check(random_texts(6, 6_000))


def test_long_texts(subwords: Pair) -> None:
    """Longer than the core's window, with and without places to cut."""
    rng = random.Random(7)
    texts = ["".join(rng.choices(FRAGMENTS, k=40_000)) for _ in range(3)]
    texts += [f"{'word ' * 13_106}{pad}[SEP] [MASK]  tail" for pad in ("", "a", "ab", "abc", "abcd", "abcde")]
    texts += [
        "a" * 200_000,
        "é" * 100_000,
        "中" * 50_000,
        "\u0301" * 100_000,
        "[SEP]" * 30_000,
        "[" * 100_000,
    ]
    texts += [" " * 200_000 + "a", "a" + "\U00016ff0\u0301" * 50_000 + "b", "가" * 60_000]
    subwords.check(texts)


@pytest.mark.model
def test_real_model(real_model: Path) -> None:
    reference = Tokenizer.from_file(str(real_model / "tokenizer.json"))
    reference.no_truncation()
    reference.no_padding()
    tokenizer = load_tokenizer(real_model)
    texts = [*SENTENCES, *random_texts(8, 50_000)]
    expected = reference.encode_batch_fast(texts, add_special_tokens=False)
    assert tokenizer.encode_batch(texts) == [encoding.ids for encoding in expected]
