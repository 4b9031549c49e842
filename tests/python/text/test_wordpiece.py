"""The compiled tokenizer itself: vocabularies, arguments, threads."""

from __future__ import annotations

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tokenizer_pair import SENTENCES, SPECIAL, Pair, special, subword_vocabulary

from embedkit import _core


def test_longest_match_first() -> None:
    rng = random.Random(10)
    for seed in range(40):
        alphabet = "ab" if seed % 2 else "aéж中"
        tokens = dict.fromkeys(["[UNK]"])
        for _ in range(rng.randint(1, 40)):
            piece = "".join(rng.choices(alphabet, k=rng.randint(1, 6)))
            tokens.setdefault(rng.choice(["", "##"]) + piece)
        pair = Pair(list(tokens), strip_accents=False, handle_chinese_chars=False)
        pair.check(["".join(rng.choices(alphabet, k=rng.randint(1, 12))) for _ in range(500)])


@pytest.mark.parametrize("prefix", ["##", "", "#", "@@", "é", "a"])
def test_continuing_prefix(prefix: str) -> None:
    rng = random.Random(11)
    vocab = dict.fromkeys(["[UNK]", *"ab#@é", "ab", "aab"])
    vocab |= dict.fromkeys(prefix + p for p in ("a", "b", "ab", "ba", "#", "é"))
    pair = Pair(list(vocab), prefix=prefix, strip_accents=False)
    pair.check(["".join(rng.choices("ab#@é ", k=rng.randint(1, 9))) for _ in range(2_000)])


@pytest.mark.parametrize("limit", [0, 1, 2, 5, 100, 1_000])
def test_words_above_the_limit_are_unknown(limit: int) -> None:
    vocab = [*SPECIAL, "a", "##a", "é", "##é", "中", ",", "\U00016ff0", "##\U00016ff0", "x" * 101]
    pair = Pair(vocab, special(), max_chars=limit, strip_accents=True)
    texts = [
        c * n + end
        for c in "aéxA中,"
        for n in (1, 2, 3, 5, 6, 99, 100, 101, 102, 999, 1_001)
        for end in ("", " a,", "\x00a")
    ]
    texts += [
        "a" * n + "\u0301" * m + "\U00016ff0" * k for n in (4, 99, 100) for m in (0, 9) for k in (0, 1, 2)
    ]
    pair.check(texts)


def test_other_unknown_token() -> None:
    Pair(["<unk>", "a"], unknown="<unk>").check(["a b", "", " ", "aa"])


def test_empty_string_in_the_vocabulary_is_an_id_without_token() -> None:
    core = _core.WordPiece(["", "[UNK]", "", "a"], [])
    assert core.vocab_size == 4
    assert core.encode("a b") == [3, 1]


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ([], "empty"),
        (["a"], r"unknown token \"\[UNK\]\" is not in the vocabulary"),
        (["[UNK]", "a", "a"], r"\"a\" is repeated \(ids 1 and 2\)"),
    ],
)
def test_unusable_vocabulary(vocab: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.WordPiece(vocab, [])


def test_negative_id_of_an_added_token() -> None:
    token = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    with pytest.raises(ValueError, match="-1"):
        _core.WordPiece(["[UNK]"], [_core.AddedToken(content="x", id=-1, **token)])


def test_no_texts_and_empty_texts(subwords: Pair) -> None:
    assert subwords.core.encode_batch([]) == []
    assert subwords.core.encode_batch(["", " ", "\u200b"]) == [[], [], []]
    assert subwords.core.encode("") == []


def test_tuples_and_subclasses_of_str(subwords: Pair) -> None:
    texts = ("the library", np.str_("élève"))
    assert subwords.core.encode_batch(texts) == [subwords.core.encode(str(t)) for t in texts]


def test_what_is_not_text(subwords: Pair) -> None:
    core = subwords.core
    with pytest.raises(TypeError, match=r"texts\[1\] is NoneType, not str"):
        core.encode_batch(["a", None])
    with pytest.raises(TypeError, match=r"texts\[0\] is bytes, not str"):
        core.encode_batch([b"a"])
    with pytest.raises(TypeError, match="texts is str, not a list of str"):
        core.encode_batch("a text")
    with pytest.raises(TypeError, match="text is int, not str"):
        core.encode(3)


@pytest.mark.parametrize("surrogate", ["\ud800", "\udbff", "\udc00", "\udfff"])
def test_lone_surrogates_are_refused(subwords: Pair, surrogate: str) -> None:
    with pytest.raises(ValueError, match=rf"texts\[2\] .*U\+{ord(surrogate):04X}.* position 4"):
        subwords.core.encode_batch(["a", "é", "a 👍 " + surrogate])
    with pytest.raises(ValueError, match=r"text holds a lone surrogate .* position 0"):
        subwords.core.encode(surrogate + "a")
    assert subwords.core.encode_batch(["a"]) == [subwords.core.encode("a")]


def test_nothing_is_cached_on_the_string(subwords: Pair) -> None:
    text = "élève " * 1_000
    size = sys.getsizeof(text)
    subwords.core.encode_batch([text])
    assert sys.getsizeof(text) == size


def test_threads_give_the_same(subwords: Pair) -> None:
    rng = random.Random(12)
    texts = [" ".join(rng.choices(SENTENCES, k=3)) for _ in range(400)]
    expected = subwords.core.encode_batch(texts)
    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda _: subwords.core.encode_batch(texts), range(32)):
            assert result == expected


def test_the_gil_is_released() -> None:
    core = Pair(subword_vocabulary()).core
    texts = ["the library opens at nine " * 40_000] * 4
    started, done = threading.Event(), threading.Event()

    def encode() -> None:
        started.set()
        core.encode_batch(texts)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    started.wait()
    turns = 0
    while not done.is_set():  # if the GIL were held throughout, this would get only a turn or two
        turns += 1
    thread.join()
    assert turns > 1_000


def test_list_changed_by_another_thread(subwords: Pair) -> None:
    """The strings stay alive if the caller's list drops them meanwhile."""
    texts = [f"élève {i} " * 50 for i in range(3_000)]
    expected = subwords.core.encode_batch(list(texts))
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(subwords.core.encode_batch, texts)
        texts.clear()
        assert future.result() in (expected, [])
