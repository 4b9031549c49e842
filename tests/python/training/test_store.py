"""`TextStore` against transformers' own tokenizers."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedkit.training.data.store import TextStore
from tokenizers import Tokenizer, models, pre_tokenizers, processors

transformers = pytest.importorskip("transformers")
WORDS = ["a", "the", "cat", "sat", "on", "mat", "##s", "##ting", "rain", "!", "."]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MPNET = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]"]


def save(folder: Path, kind: str, side: str = "right") -> Any:
    """A tiny tokenizer as transformers writes it."""
    special = BERT if kind == "bert" else MPNET
    vocab = {token: i for i, token in enumerate([*special, *WORDS, *(["<mask>"] * (kind == "mpnet"))])}
    make = transformers.BertTokenizer if kind == "bert" else transformers.MPNetTokenizer
    make(vocab=vocab, truncation_side=side).save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def texts(count: int) -> list[str]:
    choose = random.Random(3)
    return [
        " ".join(choose.choices(["cats", "sitting", "rain", "the", "mat!", "zzz"], k=n % 13))
        for n in range(count)
    ]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["bert", "mpnet"])
@pytest.mark.parametrize("max_length", [7, 8, 12, 64])
def test_ids_are_those_of_transformers(tmp_path: Path, kind: str, side: str, max_length: int) -> None:
    reference = save(tmp_path, kind, side)
    given = texts(40)
    store = TextStore(tmp_path, given, max_length)
    lengths = []
    for text, row in zip(given, store.rows, strict=True):
        expected = reference(text, truncation=True, max_length=max_length)["input_ids"]
        assert store.ids(row).tolist() == expected
        assert store.lengths[row] == len(expected)
        lengths.append(len(reference(text)["input_ids"]))
        content = reference(text, add_special_tokens=False)["input_ids"]
        content = content[-(max_length - 2) :] if side == "left" else content[: max_length - 2]
        assert store.content_ids(row).tolist() == content
    distinct = {text: length for text, length in zip(given, lengths, strict=True)}
    assert len(store) == len(distinct)
    assert store.truncated == sum(length > max_length for length in distinct.values())


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["bert", "mpnet"])
@pytest.mark.parametrize("max_length", [6, 9, 10, 17, 64])
def test_pairs_are_those_of_transformers(tmp_path: Path, kind: str, side: str, max_length: int) -> None:
    reference = save(tmp_path, kind, side)
    given = ["cats " * n for n in range(1, 13)] + ["", "rain ! zzz"]
    store = TextStore(tmp_path, given, max_length)
    for (i, a), (j, b) in itertools.product(enumerate(given), repeat=2):
        # As a batch: a lone empty second text would be taken for no pair.
        expected = reference(
            [a], [b], truncation="longest_first", max_length=max_length, return_token_type_ids=True
        )
        ids, types = store.pair_ids(store.rows[i], store.rows[j])
        assert ids.tolist() == expected["input_ids"][0], (a, b)
        assert types.tolist() == expected["token_type_ids"][0], (a, b)
        assert store.pair_lengths([store.rows[i]], [store.rows[j]]).tolist() == [len(ids)]


def test_vocabulary_file_without_tokenizer_json(tmp_path: Path) -> None:
    reference = save(tmp_path, "bert")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join([*BERT, *WORDS]) + "\n", encoding="utf-8")
    store = TextStore(tmp_path, ["cats", "rain"], 16)
    ids, types = store.pair_ids(0, 1)
    expected = reference("cats", "rain")
    assert (ids.tolist(), types.tolist()) == (expected["input_ids"], expected["token_type_ids"])


def test_texts_are_lowered_first(tmp_path: Path) -> None:
    save(tmp_path, "bert")
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["normalizer"] |= {"lowercase": False, "strip_accents": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "do_lower_case": False}))
    assert TextStore(tmp_path, ["Cats", "cats"], 8).ids(0).tolist()[1] == BERT.index("[UNK]")
    store = TextStore(tmp_path, ["Cats", "cats"], 8, lowercase_first=True)
    assert store.ids(0).tolist() == store.ids(1).tolist()


def test_a_token_without_a_vector_is_text(tmp_path: Path) -> None:
    save(tmp_path, "bert")
    words = len(BERT) + len(WORDS)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["added_tokens"].append({**content["added_tokens"][0], "id": words, "content": "<soft>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert words in TextStore(tmp_path, ["the <soft> cat"], 16).ids(0)
    assert TextStore(tmp_path, ["the <soft> cat"], 16, vectors=words).ids(0).max() < words
    with pytest.raises(
        ValueError, match=f"the tokenizer has {words} tokens, and vocab_size is 9; the files are"
    ):
        TextStore(tmp_path, ["cat"], 16, vectors=9)


def test_other_tokenizers_run_through_tokenizers(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2, "cat": 3, "rain": 4}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    store = TextStore(tmp_path, ["cat rain cat", "rain x"], 16)
    assert [store.ids(row).tolist() for row in range(2)] == [
        tokenizer.encode(text).ids for text in ("cat rain cat", "rain x")
    ]
    expected = tokenizer.encode("cat rain cat", "rain x")
    ids, types = store.pair_ids(0, 1)
    assert (ids.tolist(), types.tolist()) == (expected.ids, expected.type_ids)


def test_real_tokenizer(real_model: Path) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(real_model)
    given = ["The weather is lovely today.", "naïve café 東京", "x " * 40, ""]
    store = TextStore(real_model, given, 24)
    assert store.rows.tolist() == [0, 1, 2, 3]
    for (first, a), (second, b) in itertools.product(enumerate(given), repeat=2):
        expected = reference([a], [b], truncation="longest_first", max_length=24, return_token_type_ids=True)
        ids, types = store.pair_ids(first, second)
        assert ids.tolist() == expected["input_ids"][0]
        assert types.tolist() == expected["token_type_ids"][0]


def test_errors_name_the_input(tmp_path: Path) -> None:
    save(tmp_path, "bert")
    with pytest.raises(TypeError, match=r"texts\[1\] is bytes"):
        TextStore(tmp_path, ["cat", b"cat"], 8)  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"'cat.*lone surrogate"):
        TextStore(tmp_path, ["cat", "cat\ud800"], 8)
    with pytest.raises(ValueError, match=r"max_length=2 .* give 3 or more"):
        TextStore(tmp_path, ["cat"], 2)
    with pytest.raises(ValueError, match=r"max_length=4 .* a pair .* give 5 or more"):
        TextStore(tmp_path, ["cat"], 4).pair_ids(0, 0)


def test_no_texts_and_read_only(tmp_path: Path) -> None:
    save(tmp_path, "bert")
    assert len(TextStore(tmp_path, [], 8)) == 0
    store = TextStore(tmp_path, ["cat"], 8)
    with pytest.raises(ValueError, match="read-only"):
        store.ids(0)[0] = 9
    assert store.lengths.dtype == store.ids(0).dtype == np.int32


def test_texts_of_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, "bert")
    given = texts(40)
    expected = TextStore(tmp_path, given, 8)
    monkeypatch.setattr("embedkit.training.data.store._CHUNK", 6)
    store = TextStore(tmp_path, given, 8)
    assert [store.ids(row).tolist() for row in store.rows] == [
        expected.ids(row).tolist() for row in expected.rows
    ]
    np.testing.assert_array_equal(store.lengths, expected.lengths)
    assert store.truncated == expected.truncated > 0
