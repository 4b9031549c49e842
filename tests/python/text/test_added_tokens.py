"""Added tokens are split off the text as in `tokenizers`."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path

import pytest
from tokenizer_pair import OPTIONS, SPECIAL, Pair, special
from tokenizers import AddedToken

from embedkit.model_folder.tokenizer import load_tokenizer

VOCAB = [
    *SPECIAL,
    *"abcdehilmnorstuwxyz",
    *("##" + c for c in "abcdehilmnorstuwxyz"),
    *("hello", "world", "##ing", "<", ">", "<unk>", "-", "_"),
    *("é", "##é", "中", "##中", "İ", "##İ", "E", "##E"),
]  # fmt: skip
PARTS = [
    *("<unk>", "<UNK>", "<u", "nk>", "≮unk>", "<ent>"),
    *("hello", "HELLO", "Héllo", "covid", "COVID19", "co", "19"),
    *(" ", "  ", "\t", "\u3000", "\x1c", "\x85", "\u200b", "-"),
    *("_", "a", "é", "e\u0301", "É", "\u0301", "中", "İ"),
    *("[SEP]", "[MASK]", "[sep]", "new york", "New  York", "new"),
    *("york", "\u0660", "٣", "\u2167", "\u24b6", "\u203f"),
]  # fmt: skip


def texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(PARTS, k=rng.randint(1, 9))) for _ in range(count)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("flags", range(16))
def test_flags(options: str, flags: int) -> None:
    single_word, lstrip, rstrip, normalized = (bool(flags >> i & 1) for i in range(4))
    flags_of = {"single_word": single_word, "lstrip": lstrip, "rstrip": rstrip, "normalized": normalized}
    contents = ["<unk>", "<ent>", "Hello", "covid", "covid19", "new york", "-", "中", "É"]
    added = [AddedToken(content, special=False, **flags_of) for content in contents]
    Pair(VOCAB, [*special(), *added], **OPTIONS[options]).check(texts(flags, 600))


def test_mixed_flags() -> None:
    rng = random.Random(9)
    contents = [
        *PARTS[:13],
        "-",
        "_",
        "a",
        "é",
        "É",
        "中",
        "İ",
        " ",
        "new york",
        "york",
        "[MASK]",
        "[SEP]",
        "hell",
    ]
    for seed in range(60):
        added = {
            content: AddedToken(
                content,
                single_word=rng.random() < 0.4,
                # White space that is stripped: `tokenizers` panics if the token before has consumed it.
                lstrip=not content.isspace() and rng.random() < 0.4,
                rstrip=rng.random() < 0.4,
                # Which of two equal tokens `tokenizers` finds is arbitrary: these differ only in case.
                normalized=content == content.lower() and rng.random() < 0.5,
            )
            for content in rng.sample(contents, k=rng.randint(1, 8))
        }
        Pair(VOCAB, added.values()).check(texts(seed, 400))


def test_every_code_point_beside_a_single_word() -> None:
    pair = Pair(VOCAB, [AddedToken("<x>", single_word=True, normalized=False)])
    chars = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and (c < 0x32000 or c % 97 == 0)]
    pair.check([f"{c}<x>" for c in chars])
    pair.check([f"<x>{c}" for c in chars])


def test_every_white_space_beside_a_stripping_token() -> None:
    added = [
        AddedToken("<x>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("a ", normalized=True),
        AddedToken(" b", normalized=True),
    ]
    pair = Pair(VOCAB, added, clean_text=False)
    pair.check([f"a{c}<x>{c}b" for c in map(chr, range(0x3100))])


def test_a_run_of_stripping_spaces_takes_linear_time() -> None:
    pair = Pair(VOCAB, [AddedToken(" ", rstrip=True, normalized=False)])
    pair.check([f"a{' ' * 3000}b"])
    assert len(pair.core.encode(f"a{' ' * 1_000_000}b")) >= 3  # the square takes minutes


def test_added_tokens_without_a_normalizer_change() -> None:
    """Adjacent `normalized` patterns that start with a letter, punctuation or a mark."""
    added = [AddedToken(content, normalized=True) for content in ("<unk>", "\u0301x", "a-b", "-b", "zz")]
    parts = ["<unk>", "a", "-", "b", "x", "\u0301", "\u0316", "zz", "z", " ", "<"]
    pair = Pair(VOCAB, added, strip_accents=False)
    pair.check(["".join(p) for p in product(parts, repeat=4)])


def test_equal_after_normalization_gives_the_lowest_id() -> None:
    pair = Pair(VOCAB, [AddedToken("Day", normalized=True), AddedToken("DAY", normalized=True)])
    assert pair.core.encode("day") == [len(VOCAB)]


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_a_token_that_would_be_looked_for_at_length_is_refused(tmp_path: Path, kind: str) -> None:
    word = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    model = {
        "wordpiece": {"type": "WordPiece", "unk_token": "a", "vocab": {"a": 0}, **word},
        "unigram": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]},
    }[kind]
    content: dict[str, object] = {"model": model, "added_tokens": [{"id": 1, "content": "a" * 1025}]}
    if kind == "wordpiece":
        content |= {"normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"tokenizer\.json: an added token has 1025 characters; at most 1024"
    ):
        load_tokenizer(tmp_path)


def test_token_that_normalization_removes_is_refused() -> None:
    """`tokenizers` takes it, finds it between any two characters and cuts every word into single ones."""
    with pytest.raises(ValueError, match="after normalization"):
        Pair(VOCAB, [AddedToken("\u200b", normalized=True)])
