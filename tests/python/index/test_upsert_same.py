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
