"""Searches that find fewer rows than were asked for, as of few lists: what is missing is no row of another place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.index import Document, Index

VECTORS = np.random.default_rng(1).standard_normal((700, 24)).astype(np.float32)
DOCUMENTS = [Document(f"number {n}", f"k{n}", vector=vector) for n, vector in enumerate(VECTORS)]


def check(index: Index) -> None:
    scores, rows = index.search_vectors(VECTORS[:20], 700, nprobe=1, rescore=0)
    assert (rows < 0).any() and ((rows < 0) == (scores < -1e30)).all()
    for line in rows:
        found = line[line >= 0].tolist()
        assert len(set(found)) == len(found)


def test_of_several_segments(tmp_path: Path) -> None:
    encoder = FakeEncoder(truncate_dim=24)
    for name, some in (("a", DOCUMENTS[:350]), ("b", DOCUMENTS[350:])):
        Index.build(tmp_path / name, some, encoder, factory="IVF8,Flat").close()
    Index.merge(tmp_path / "all", [tmp_path / "a", tmp_path / "b"]).close()
    with Index.open(tmp_path / "all", encoder) as index:
        assert len(index.generation.segments) == 2
        check(index)


def test_of_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.index.build.build_parts.faiss_budget", lambda _: 50_000)
    encoder = FakeEncoder(truncate_dim=24)
    with Index.build(tmp_path / "index", DOCUMENTS, encoder, factory="IVF4,SQ8,RFlat") as index:
        assert len(index.generation.segments[0].parts) > 1
        check(index)
