"""An interrupted build goes on only with the documents and the settings that it began with, and counts all of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder
from other_encoders import DIFFERENCES, otherwise
from test_resume import Failing, killed

from embedkit.index import Document, Index, ResumeError

TEXTS = [f"text {number}" for number in range(3000)]
VECTOR = np.ones(32, np.float32)


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_an_encoder_of_other_vectors_is_refused(tmp_path: Path, difference: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "index", TEXTS, Failing(2))
    with pytest.raises(ResumeError, match=f"with another {difference}"):
        Index.build(tmp_path / "index", TEXTS, otherwise(difference))


@pytest.mark.parametrize(
    "other",
    [
        Document("text b", "a", {"n": 1}, vector=VECTOR),
        Document("text a", "b", {"n": 1}, vector=VECTOR),
        Document("text a", "a", {"n": 2}, vector=VECTOR),
        Document("text a", "a", {"n": 1}, vector=-VECTOR),
    ],
    ids=["text", "id", "metadata", "vector"],
)
def test_a_finished_segment_accepts_its_documents_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Document
) -> None:
    own = [Document("text a", "a", {"n": 1}, vector=VECTOR)]
    killed(monkeypatch, "before", lambda: Index.build(tmp_path / "index", own, FakeEncoder()))
    with pytest.raises(ResumeError, match="these are not the documents"):
        Index.build(tmp_path / "index", [other], FakeEncoder())
    with Index.build(tmp_path / "index", own, FakeEncoder()) as index:
        assert index.get("a")


@pytest.mark.parametrize(
    ("options", "name"),
    [({"factory": "SQ8"}, "factory"), ({"factory": "SQ8", "kept": "int8"}, "kind of kept")],
)
def test_a_finished_segment_of_other_settings_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], name: str
) -> None:
    before = {"factory": "SQ8" if "kept" in options else "Flat"}
    killed(monkeypatch, "before", lambda: Index.build(tmp_path / "index", ["a"], FakeEncoder(), **before))
    with pytest.raises(ResumeError, match=f"had finished with another {name}"):
        Index.build(tmp_path / "index", ["a"], FakeEncoder(), **options)


def test_texts_that_were_cut_before_the_interruption_are_counted(tmp_path: Path) -> None:
    class Cutting(Failing):
        cut = 0

        def describe(self) -> dict[str, Any]:
            return {**super().describe(), "truncated": self.cut}

        def encode_document(self, sentences: list[str], **options: Any) -> Any:
            vectors = super().encode_document(sentences, **options)
            self.cut += sum(text.endswith("00") for text in sentences)
            return vectors

    with pytest.raises(KeyboardInterrupt):
        Index.build(tmp_path / "index", TEXTS, Cutting(2))
    with Index.build(tmp_path / "index", TEXTS, Cutting(0)) as index:
        assert index.info()["truncated"] == 29  # text 100, text 200, …


@pytest.mark.parametrize("before", [range(3000), range(0, 3000, 2), range(0)], ids=["all", "some", "none"])
@pytest.mark.parametrize("mode", ["build", "add"])
def test_vectors_that_were_given_are_given_again(tmp_path: Path, mode: str, before: range) -> None:
    vectors = np.random.default_rng(0).standard_normal((3000, 32)).astype(np.float32)

    def documents(given: Collection[int], stop: int = 3000) -> Iterator[Document]:
        for number, text in enumerate(TEXTS[:stop]):
            yield Document(text, f"t{number}", vector=vectors[number] if number in given else None)
        if stop < 3000:
            raise KeyboardInterrupt

    def write(documents: Iterator[Document]) -> Any:
        if mode == "build":
            return Index.build(tmp_path / "index", documents, FakeEncoder(), factory="Flat").close()
        with Index.open(tmp_path / "index", FakeEncoder()) as index:
            return index.add(documents)

    if mode == "add":
        Index.build(tmp_path / "index", [Document("a", "a")], FakeEncoder(), factory="Flat").close()
    with pytest.raises(KeyboardInterrupt):
        write(documents(before, stop=2900))
    other, error = (
        (range(1), "its vector is not the one") if len(before) == 0 else (before[1:], "give the same vectors")
    )
    with pytest.raises(ResumeError, match=error):
        write(documents(other))
    write(documents(before))
    with Index.open(tmp_path / "index", FakeEncoder()) as index:
        assert len(index) == 3000 + (mode == "add")


def test_a_journal_of_an_earlier_embedkit_does_not_count_the_vectors_given(tmp_path: Path) -> None:
    def documents() -> Iterator[Document]:
        for text in TEXTS[:2500]:
            yield Document(text, text, vector=VECTOR)
        raise KeyboardInterrupt

    path = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        Index.build(path, documents(), FakeEncoder(), factory="Flat")
    journal = path / "build.journal"
    journal.write_text(re.sub(r', "given": \d+', "", journal.read_text()))
    Index.build(path, [Document(text, text) for text in TEXTS], FakeEncoder(), factory="Flat").close()
