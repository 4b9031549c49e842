"""BPE and Unigram of the core: ids equal those of `tokenizers`, for the settings of every family."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from subword_families import FAMILIES, TEXTS, family, fuzzed
from test_code_points import CODE_POINTS, COMMON, NORMALIZATION_TEST
from tokenizers import Tokenizer

from embedkit import _core
from embedkit.model_folder.tokenizer import load_tokenizer

ALL = list(FAMILIES)
THOROUGH = ["qwen3", "gemma", "xlm-roberta"]  # every code point, not the common planes only


class Pair:
    """The core's tokenizer and the package's, of one file."""

    def __init__(self, folder: Path, content: object) -> None:
        folder.mkdir(exist_ok=True)
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        self.loaded = load_tokenizer(folder)
        self.reference = Tokenizer.from_file(str(path))
        self.reference.no_truncation()
        assert isinstance(self.loaded.core, _core.Subword)
        self.core = self.loaded.core

    def check(self, texts: Sequence[str]) -> None:
        wrong = []
        for start in range(0, len(texts), 20_000):
            part = list(texts[start : start + 20_000])
            expected = self.reference.encode_batch_fast(part, add_special_tokens=False)
            for text, ids, encoding in zip(part, self.core.encode_batch(part), expected, strict=True):
                if ids != encoding.ids:
                    wrong.append((ascii(text)[:200], ids[:20], encoding.ids[:20]))
        assert not wrong, f"{len(wrong)} of {len(texts)} differ; (text, ids, reference): {wrong[:5]}"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> object:
    return cache(lambda name: Pair(tmp_path_factory.mktemp("family"), family(name)))


@pytest.fixture(params=ALL)
def pair(request: pytest.FixtureRequest, pairs: object) -> Pair:
    return pairs(request.param)  # type: ignore[operator, no-any-return]


@pytest.fixture(params=THOROUGH)
def thorough(request: pytest.FixtureRequest, pairs: object) -> Pair:
    return pairs(request.param)  # type: ignore[operator, no-any-return]


def test_texts(pair: Pair) -> None:
    pair.check([*TEXTS, "", *(" " + t for t in TEXTS), *(t + "  " for t in TEXTS), "\n\n".join(TEXTS)])


def test_fuzzed_texts(pair: Pair) -> None:
    pair.check(fuzzed(4_000, seed=3))


def test_code_points(pair: Pair) -> None:
    pair.check([f"a{c}b 1" for c in COMMON[::7]])


def test_every_code_point(thorough: Pair) -> None:
    thorough.check(CODE_POINTS)
    thorough.check([f"a{c}\u0301 {c}" for c in COMMON])


def test_apostrophes(pairs: object) -> None:
    """The contractions of a pattern without case."""
    for name in ("gpt2", "qwen3"):
        pair = pairs(name)  # type: ignore[operator]
        pair.check([f"x'{c}{end}" for c in COMMON[:0x3000] for end in ("", "e", "l")])


def test_unicode_normalization_test(pair: Pair) -> None:
    import gzip

    sources = gzip.decompress(NORMALIZATION_TEST.read_bytes()).decode("utf-8").split("\n")[:-1]
    texts = {unicodedata.normalize(form, s) for s in sources[::5] for form in ("NFC", "NFD", "NFKD")}
    pair.check(sorted(texts.union(sources[::5])))


def test_sequences_of_marks_and_jamo(pairs: object) -> None:
    rng = random.Random(5)
    marks = [chr(c) for c in range(0x20000) if unicodedata.combining(chr(c))]
    jamo = [
        chr(c)
        for c in (*range(0x1100, 0x1200), *range(0xA960, 0xA97D), *range(0xD7B0, 0xD7FC), 0xAC00, 0xAC01)
    ]
    bases = [
        "a",
        "e",
        "\u00e9",
        "\u1e69",
        "\u0915",
        "\u0958",
        "\uac00",
        "\u00a9",
        "\u304b",
        "\u0600",
        "\r",
        "",
    ]
    texts = [
        rng.choice(bases) + "".join(rng.choices(kind, k=rng.randint(1, 6))) + rng.choice(bases)
        for _ in range(8_000)
        for kind in (marks, jamo, [*marks[:40], *jamo[:40], "\u200d", "\u094d", "\u0340", "\u00a9", "\u0915"])
    ]
    for name in ("modernbert", "digits", "sentencepiece", "albert", "xlm-roberta"):
        pairs(name).check(texts)  # type: ignore[operator]


def test_long_texts(pair: Pair) -> None:
    """Texts are worked on in windows, cut where no step sees it."""
    rng = random.Random(6)
    words = " ".join(TEXTS).split(" ")
    for unit in (" ", "  ", " <mask> "):
        pair.check([unit.join(rng.choices(words, k=8_000))])
    pair.check(["ab" * 40_000 + " the library", "a" * 100_001, "\u4e2d" * 40_000, "the library " * 8_000])


def test_limit_of_what_is_read(pair: Pair) -> None:
    """A truncated text has the first ids of the whole one."""
    text = " ".join(TEXTS * 3)
    whole = pair.core.encode(text)
    for length in (4, 5, 17, 64):
        options = _core.EncodeOptions(threads=1, prefix_ids=[], suffix_ids=[], max_length=length)
        window = _core.tokenize_window([text], pair.core, options)
        assert list(window.lengths) == [min(length, len(whole))]
        assert window.truncated == (len(whole) > length)


def test_prefix_and_suffix(pairs: object) -> None:
    loaded = pairs("modernbert").loaded  # type: ignore[operator]
    assert (loaded.prefix_ids, loaded.suffix_ids) == ((0,), (1,))


def test_threads_give_the_same(pair: Pair) -> None:
    texts = fuzzed(300, seed=9)
    expected = pair.core.encode_batch(texts)
    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda _: pair.core.encode_batch(texts), range(16)):
            assert result == expected


@pytest.mark.parametrize("surrogate", ["\ud800", "\udfff"])
def test_lone_surrogates_are_refused(pair: Pair, surrogate: str) -> None:
    with pytest.raises(ValueError, match=r"texts\[1\] .*lone surrogate"):
        pair.core.encode_batch(["a", "b" + surrogate])


def test_added_tokens_with_flags(tmp_path: Path, pair: Pair) -> None:
    from itertools import product

    from tokenizers import AddedToken

    tokenizer = Tokenizer.from_str(pair.reference.to_str())
    for i, (single, left, right, normalized) in enumerate(product([False, True], repeat=4)):
        tokenizer.add_tokens(
            [AddedToken(f"<{i}X>", single_word=single, lstrip=left, rstrip=right, normalized=normalized)]
        )
    tokenizer.add_tokens(["the library", AddedToken("\u00c9cole", normalized=True)])
    flagged = Pair(tmp_path, json.loads(tokenizer.to_str()))
    rng = random.Random(7)
    parts = [
        *(f"<{i}X>" for i in range(16)),
        *" \n\tab.",
        "  ",
        "the library",
        "\u00e9cole",
        "E\u0301cole",
        "<0x>",
    ]
    flagged.check(["".join(rng.choices(parts, k=rng.randint(1, 9))) for _ in range(8_000)])
