"""A bare string where several ids or documents are expected never means its characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_encoder import FakeEncoder

from embedkit.documents.readers import Corpus
from embedkit.index import Document, Index

TEXTS = [f"word{number} cat" for number in range(40)]


@pytest.fixture
def index(tmp_path: Path, encoder: FakeEncoder) -> Any:
    with Index.build(tmp_path / "index", TEXTS, encoder) as opened:
        yield opened


def test_delete_of_a_string_deletes_one_document(index: Index) -> None:
    assert index.delete("12") == 1
    assert [item.id for item in index.get(["1", "2", "12"])] == ["1", "2"]


def test_get_of_a_string_returns_one_document(index: Index) -> None:
    assert [item.id for item in index.get("34")] == ["34"]
    assert index.get("nothing") == []


def test_ids_are_strings(index: Index) -> None:
    wrong: Any
    for wrong in (12, b"12", [12], ["1", None]):
        with pytest.raises(TypeError, match="ids"):
            index.get(wrong)
        with pytest.raises(TypeError, match="ids"):
            index.delete(wrong)
    assert len(index) == len(TEXTS)


def test_one_document_is_not_several(index: Index, tmp_path: Path, encoder: FakeEncoder) -> None:
    wrong: Any
    for wrong in ("abc", b"abc", Document("abc", "1"), 5):
        with pytest.raises(TypeError, match="documents must be"):
            Index.build(tmp_path / "other", wrong, encoder)
        with pytest.raises(TypeError, match="documents must be"):
            index.add(wrong)
        with pytest.raises(TypeError, match="documents must be"):
            index.upsert(wrong)
    assert not (tmp_path / "other").exists()


def test_one_path_is_not_several(index: Index, tmp_path: Path) -> None:
    one: Any = str(index.path)
    with pytest.raises(TypeError, match="list of paths"):
        Index.merge(tmp_path / "merged", one)
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    assert [document.text for document in Corpus(path)] == ["one", "two"]
    assert [document.text for document in Corpus(str(path))] == ["one", "two"]


def test_a_stream_of_queries_is_not_one_query(index: Index) -> None:
    one: Any = "a cat"
    with pytest.raises(TypeError, match="use search"):
        index.search_stream(one)
