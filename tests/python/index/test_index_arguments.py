"""Arguments of the wrong type, and conditions that fail or take too long: errors that say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.documents.readers import Corpus
from embedkit.index import Document, Index, InputError
from embedkit.index.storage import document_store


@pytest.fixture
def index(tmp_path: Path, encoder: FakeEncoder) -> Iterator[Index]:
    documents = [Document(f"cat {n}", str(n), {"n": n}) for n in range(5)]
    with Index.build(tmp_path / "index", documents, encoder) as opened:
        yield opened


def test_k_is_any_integer(index: Index) -> None:
    assert len(index.search("cat", np.int64(3))[0]) == 3  # type: ignore[arg-type]
    wrong: Any
    for wrong in (1.5, "3", None):
        with pytest.raises(TypeError, match="k must be an integer"):
            index.search("cat", wrong)


@pytest.mark.parametrize("wrong", [-7, "x", 1.5, True])
def test_a_sample_is_a_number_of_documents(index: Index, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="sample must be a positive integer"):
        index.verify(wrong)


@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), -1, "2 GB"])
def test_memory_is_a_number_of_bytes(index: Index, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_memory must be a positive integer"):
        index.compact(max_memory=wrong)


@pytest.mark.parametrize("where", [["n", 3], 5])
def test_a_condition_is_a_string_or_a_dict(index: Index, where: Any) -> None:
    with pytest.raises(TypeError, match="a condition"):
        index.search("cat", where=where)
    with pytest.raises(TypeError, match="a condition"):
        index.delete(where=where)


def test_a_folder_in_the_home_folder(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Index.build("~/index", ["a cat", "a dog"], encoder) as built:
        assert built.path == tmp_path / "index"
        assert built.export_faiss("~/vectors.faiss") == 2
    with Index.open("~/index", encoder) as opened:
        assert len(opened) == 2
    Index.import_faiss(
        "~/imported", "~/vectors.faiss", encoder, [Document("a cow", "x"), Document("a hen", "y")]
    )
    Index.merge("~/both", ["~/index", "~/imported"])
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["both", "imported", "index"]


def test_an_encoder_is_no_number(tmp_path: Path) -> None:
    number: Any = 5
    with pytest.raises(TypeError, match=r"encoder must be .* not int"):
        Index.build(tmp_path / "other", ["a cat"], number)


def test_a_condition_is_not_damage(index: Index) -> None:
    with pytest.raises(ValueError, match="invalid condition"):
        index.search("cat", where="1 'malformed'")


def test_a_condition_that_takes_too_long_is_stopped(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_store, "_MOST_SECONDS", -1.0)
    monkeypatch.setattr(document_store, "_STEPS", 1)
    with pytest.raises(ValueError, match="was stopped"):
        index.search("cat", where="n > 2")


def test_metadata_nested_too_deeply_is_refused(tmp_path: Path, encoder: FakeEncoder) -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    documents = [Document("a cat", "1"), Document("a dog", "2", deep)]
    with pytest.raises(InputError, match="cannot be written as JSON"):
        Index.build(tmp_path / "other", documents, encoder)


def test_a_stray_byte_is_not_utf_16(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\xff\xfe two\n")
    with pytest.raises(InputError, match="not valid UTF-8") as raised:
        list(Corpus(path))
    assert "UTF-16" not in str(raised.value)
