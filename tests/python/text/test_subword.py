"""BPE and Unigram of the core: ids equal those of `tokenizers`, for the settings of every family."""

from __future__ import annotations

import base64
import gzip
import json
import random
import sys
import unicodedata
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from subword_families import FAMILIES, TEXTS, Content, charsmap, family, fuzzed
from test_code_points import CODE_POINTS, COMMON, NORMALIZATION_TEST
from tokenizer_pair import check_same_ids
from tokenizers import AddedToken, Tokenizer, normalizers

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
        check_same_ids(self.core, self.reference, texts)


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


def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)


@pytest.mark.parametrize("name", ALL)
def test_the_package_is_not_needed(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(family(name)))
    without_package(monkeypatch)
    assert load_tokenizer(tmp_path).encode_batch(["the library"])[0]


def model(content: Content) -> Any:
    return content["model"]


# What the core does not know runs through the package, as the whole file does.
OTHERS: dict[str, tuple[str, Callable[[Content], Any]]] = {
    "another expression": (
        "qwen3",
        lambda c: c["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": r"\w+|\s+"}),
    ),
    "inverted": ("gemma", lambda c: c["pre_tokenizer"].update(invert=True)),
    "dropout": ("gpt2", lambda c: model(c).update(dropout=0.0001)),
    "suffix": ("gpt2", lambda c: model(c).update(end_of_word_suffix="</w>")),
    "no unknown token": ("t5", lambda c: model(c).update(unk_id=None)),
    "unknown token elsewhere": ("gemma", lambda c: model(c).update(unk_token="<nowhere>")),
    "another normalizer": ("gpt2", lambda c: c.update(normalizer={"type": "ByteLevel"})),
    "another pre-tokenizer": ("t5", lambda c: c.update(pre_tokenizer={"type": "Whitespace"})),
    "first after a normalizer": (
        "llama2, new",
        lambda c: c.update(normalizer={"type": "Strip", "strip_left": True, "strip_right": True}),
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_settings_run_through_the_package(tmp_path: Path, case: str) -> None:
    name, edit = OTHERS[case]
    content = deepcopy(family(name))
    edit(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(tmp_path).core is None


DAMAGE: dict[str, tuple[str, Callable[[Content], Any], str]] = {
    "id is text": ("gpt2", lambda c: model(c)["vocab"].update(zz="7"), "id of the token 'zz' is '7'"),
    "id is a boolean": ("gpt2", lambda c: model(c)["vocab"].update(zz=True), "is True"),
    "negative id": ("gemma", lambda c: model(c)["vocab"].update(zz=-1), "is -1"),
    "huge id": ("gemma", lambda c: model(c)["vocab"].update(zz=10**30), "not from 0"),
    "id twice": ("gpt2", lambda c: model(c)["vocab"].update(zz=3), "id 3 twice"),
    "no vocabulary": ("gpt2", lambda c: model(c).update(vocab={}), "no vocabulary"),
    "vocabulary is a list": ("gpt2", lambda c: model(c).update(vocab=[]), "no vocabulary"),
    "merges are an object": ("gpt2", lambda c: model(c).update(merges={}), "merges"),
    "merge of three": ("gpt2", lambda c: model(c)["merges"].append("a b c"), "'a b c' is not a merge"),
    "merge of a number": ("gpt2", lambda c: model(c)["merges"].append([1, "a"]), "not a merge"),
    "merge of a stranger": ("gpt2", lambda c: model(c)["merges"].append(["zz", "a"]), "not in the vocabulary"),
    "merge into a stranger": ("gpt2", lambda c: model(c)["merges"].append(["!", "\""]), "not in the vocabulary"),
    "merge of nothing": (
        "gpt2",
        lambda c: (model(c)["vocab"].update({"": 9_000}), model(c)["merges"].append(["a", ""])),
        "joins nothing",
    ),
    "surrogate": ("gpt2", lambda c: model(c)["vocab"].update({"\ud800": 9_000}), "lone surrogate"),
    "score is NaN": ("t5", lambda c: model(c)["vocab"].append(["zz", float("nan")]), "not a finite number"),
    "score is infinite": ("t5", lambda c: model(c)["vocab"].append(["zz", float("inf")]), "not a finite"),
    "score is huge": ("t5", lambda c: model(c)["vocab"].append(["zz", 10**400]), "tokenizer.json"),
    "score is text": ("t5", lambda c: model(c)["vocab"].append(["zz", "1"]), "not a token and its score"),
    "entry of three": ("t5", lambda c: model(c)["vocab"].append(["zz", 1, 2]), "not a token and its score"),
    "unknown id": ("t5", lambda c: model(c).update(unk_id=10**9), '"unk_id" is 1000000000'),
    "charsmap": (
        "t5",
        lambda c: c["normalizer"]["normalizers"][0].update(precompiled_charsmap="a"),
        "not base64",
    ),
    "empty charsmap": (
        "t5",
        lambda c: c["normalizer"]["normalizers"][0].update(precompiled_charsmap=""),
        "character map has 0 bytes",
    ),
    "charsmap that ends early": (
        "t5",
        lambda c: c["normalizer"]["normalizers"][0].update(precompiled_charsmap="////f0AAAAA="),
        "character map has an array of",
    ),
    "flag is text": ("gpt2", lambda c: c["pre_tokenizer"].update(add_prefix_space="no"), "add_prefix_space"),
    "steps are text": ("qwen3", lambda c: c["pre_tokenizer"].update(pretokenizers="x"), "pretokenizers"),
    "too many steps": (
        "qwen3",
        lambda c: c["pre_tokenizer"].update(pretokenizers=[{"type": "WhitespaceSplit"}] * 100_000),
        "a pre-tokenizer of 100000 steps",
    ),
    "step is text": ("qwen3", lambda c: c["pre_tokenizer"].update(pretokenizers=["x"]), "'x'"),
    "replacement": ("camembert", lambda c: c["pre_tokenizer"].update(replacement="ab"), "one character"),
    "scheme": ("camembert", lambda c: c["pre_tokenizer"].update(prepend_scheme="often"), "often"),
    "behavior": ("gemma", lambda c: c["pre_tokenizer"].update(behavior="Lost"), "Lost"),
    "normalizer is a list": ("gpt2", lambda c: c.update(normalizer=[]), "normalizer"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files(tmp_path: Path, damage: str) -> None:
    name, edit, message = DAMAGE[damage]
    content = deepcopy(family(name))
    edit(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json") as error:
        load_tokenizer(tmp_path)
    assert message in str(error.value)


def test_a_charsmap_whose_paths_lead_back(tmp_path: Path) -> None:
    content = deepcopy(family("t5"))
    content["normalizer"]["normalizers"][0]["precompiled_charsmap"] = "CAAAAAAAAgCBBAIA"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert load_tokenizer(tmp_path).encode_batch(["a text"])  # it was loaded for ever


def test_added_tokens_follow_all_pieces_of_a_vocabulary_that_repeats_one(tmp_path: Path) -> None:
    content = {
        "model": {
            "type": "Unigram",
            "unk_id": 0,
            "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -1.0], ["a", -2.0]],
        },
        "version": "1.0", "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None, "decoder": None,
        "added_tokens": [{"id": 4, "content": "<new>", "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}],
    }  # fmt: skip
    Pair(tmp_path, content).check(["a <new> b"])


def test_a_normalizer_that_fills_the_memory(tmp_path: Path) -> None:
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    content = {
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]},
        "normalizer": {"type": "Sequence", "normalizers": [double] * 40},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    with pytest.raises(
        ValueError, match="the normalizer of the tokenizer makes more than 1089536 bytes of a text"
    ):
        tokenizer.encode_batch(["a" * 1000])


def test_a_charsmap_that_fills_the_memory(tmp_path: Path) -> None:
    long = base64.b64encode(charsmap({"a": "b" * 1_000_000})).decode()
    content = {
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]},
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": long},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="the normalizer of the tokenizer makes more than"):
        tokenizer.encode_batch(["a" * 1_000_000])


def test_old_form_of_merges_and_of_metaspace(tmp_path: Path) -> None:
    content = deepcopy(family("gpt2"))
    content["model"]["merges"] = ["#version: 0.2", *(" ".join(m) for m in content["model"]["merges"])]
    Pair(tmp_path / "bpe", content).check(TEXTS)
    content = deepcopy(family("t5"))
    for old in (
        {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True},
        {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": False, "prepend_scheme": "never"},
    ):
        content["pre_tokenizer"] = old
        Pair(tmp_path / "unigram", content).check(TEXTS)


def test_lowercase_first(tmp_path: Path) -> None:
    for name in ("modernbert", "xlm-roberta"):
        pair = Pair(tmp_path / name, family(name))
        lowered = load_tokenizer(tmp_path / name, lowercase_first=True).encode_batch(TEXTS)
        reference = Tokenizer.from_str(pair.reference.to_str())
        reference.normalizer = normalizers.Sequence([normalizers.Lowercase(), reference.normalizer])
        expected = reference.encode_batch_fast(TEXTS, add_special_tokens=False)
        assert lowered == [encoding.ids for encoding in expected]
