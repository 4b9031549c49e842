"""What upsert takes for the document that the index has already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.index import Document, Index


def test_of_an_id_that_returns_to_what_the_index_holds_the_last_counts(tmp_path: Path) -> None:
    old = Document("old text", "x")
    with Index.build(tmp_path / "index", [old], FakeEncoder()) as index:
        index.upsert([Document("new text", "x"), old])
        assert [found.text for found in index.get("x")] == ["old text"]


@pytest.mark.parametrize("metadata", [{"n": 1}, {"n": 2}], ids=["the same", "changed"])
def test_a_given_vector_replaces_that_of_the_same_text(tmp_path: Path, metadata: dict[str, int]) -> None:
    vector = np.eye(32, dtype=np.float32)[7]
    with Index.build(tmp_path / "index", [Document("a text", "x", {"n": 1})], FakeEncoder()) as index:
        assert index.upsert([Document("a text", "x", metadata, vector=vector)]).replaced == 1
        found = index.generation.vectors(index.generation.living_rows())
        np.testing.assert_array_equal(found, [vector])


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("metadata", [{"n": 1}, {"n": 2}], ids=["the same", "changed"])
def test_a_vector_that_was_given_is_not_taken_for_that_of_the_text(
    tmp_path: Path, metadata: dict[str, int], compacted: bool
) -> None:
    vector = np.eye(32, dtype=np.float32)[7]
    own, given = Document("own text", "o", {"n": 1}), Document("a text", "x", {"n": 1}, vector=vector)
    with Index.build(tmp_path / "index", [own], FakeEncoder()) as index:
        index.add([given])
        if compacted:
            index.compact()
        texts = [Document("own text", "o", metadata), Document("a text", "x", metadata)]
        written = index.upsert(texts)
        assert (written.documents, written.unchanged) == (
            (1, 1) if metadata == {"n": 1} and not compacted else (2, 0)
        )
        index.verify(sample=9)
        assert index.upsert(texts).unchanged == 2
