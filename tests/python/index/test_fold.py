"""Additions fold the last small segments of an index, and leave no files open."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit import Index
from embedkit.index import BuildError, Document, ModelMismatchError
from embedkit.index.build import fold


def _index(path: Path, factory: str = "Flat") -> Index:
    return Index.build(
        path, [Document(f"old text {i}", f"old{i}") for i in range(40)], FakeEncoder(), factory=factory
    )


def _sizes(index: Index) -> list[int]:
    return [segment.entry.rows for segment in index.generation.segments]


def test_the_last_segments_are_folded_where_they_hold_eight_times_the_largest() -> None:
    for rows in (
        [],
        [40, *[1] * 7],
        [40, 8, *[1] * 7],
        [2000] * 48,
    ):  # an addition would wait too long for the last
        assert fold._foldable(rows) is None
    assert fold._foldable([40, *[1] * 8]) == slice(1, 9)
    assert fold._foldable([*[8] * 7, *[1] * 8]) == slice(0, 15)
    assert fold._foldable([1] * 30) == slice(0, 30)


@pytest.mark.parametrize(
    ("additions", "segments", "copies"),
    [
        ([2000] * 3000, 49, 3.0),
        ([70_000] * 300, 60, 2.0),
        ([120_000, 1, 1] * 200, 70, 2.5),
        ([1000 * (i * 37 % 100 + 1) for i in range(500)], 60, 2.5),
    ],
)
def test_segments_of_any_size_are_folded_once_they_are_many(
    additions: list[int], segments: int, copies: float
) -> None:
    assert fold._foldable([900_000, *[2000] * 48]) == slice(1, 9)
    assert fold._foldable([*[600_000] * 49]) is None  # two minutes at most
    rows, copied, most = [10], 0, 0
    for size in additions:  # as `fold_segments` before each
        if place := fold._foldable(rows):
            total = sum(rows[place])
            copied += total
            rows[place] = [total]
        rows.append(size)
        most = max(most, len(rows))
    assert most <= segments and copied < copies * sum(rows)


def test_an_addition_to_many_large_segments_folds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "_MOST_ROWS", 4)
    monkeypatch.setattr(fold, "_MANY", 6)
    with _index(tmp_path / "index") as index:
        for number in range(7):
            index.add([Document(f"text {number} {part}", f"new{number}-{part}") for part in range(5)])
        assert _sizes(index) == [40, 10, 5, 5, 5, 5, 5]
        assert index.search("text 3 2", k=1)[0][0].id == "new3-2"
        ids = [one for block in index.generation.living_ids() for one in block]
        assert ids[40:] == [f"new{number}-{part}" for number in range(7) for part in range(5)]


def test_segments_of_several_languages_stay_apart(tmp_path: Path) -> None:
    pytest.importorskip("snowballstemmer")
    words = {"english": ("the dogs run", "dog"), "german": ("die Häuser stehen", "Haus")}
    for language, (text, _) in words.items():
        documents = [Document(text, f"{language}{n}") for n in range(2)]
        Index.build(tmp_path / language, documents, FakeEncoder(), language=language).close()
    Index.merge(tmp_path / "both", [tmp_path / language for language in words]).close()

    def found(index: Index) -> list[set[int]]:
        return [
            {row for row, _ in index.generation.keywords(index.generation.asked(query), 9, None)}
            for query in queries
        ]

    queries = [query for _, query in words.values()]
    with Index.open(tmp_path / "both", FakeEncoder()) as index:
        before = found(index)
        assert before == [{0, 1}, {2, 3}]
        with pytest.raises(ValueError, match=r"several languages \(english, german\).*--language"):
            index.compact()
        with pytest.raises(ValueError, match=r"several languages \(english, german\).*compact .* --language"):
            index.reembed(FakeEncoder("other"))
        for number in range(20):
            index.add([Document("x", f"new{number}")])
        assert found(index) == before and len(_sizes(index)) < 12
        index.delete(where="id != 'german1'")
        index.reembed(FakeEncoder("other"))
        assert len(index) == 1 and found(index)[1] == {0}
        index.add([Document("die Häuser", "german1b")])
        assert index.compact() and found(index)[1] == {0, 1}
        assert index.compact(language="none") and found(index) == [set(), set()]


@pytest.mark.parametrize("order", ["CD", "DC"])
def test_the_language_of_merged_indexes_is_that_of_those_that_tell_it(tmp_path: Path, order: str) -> None:
    pytest.importorskip("snowballstemmer")
    german = ["Die Häuser stehen an der Straße", "Das ist nicht der Weg zu uns"] * 6
    for name, texts in (("C", ["Zürich"]), ("D", german)):
        documents = [Document(text, f"{name}{n}") for n, text in enumerate(texts)]
        Index.build(tmp_path / name, documents, FakeEncoder()).close()
    Index.merge(tmp_path / "both", [tmp_path / name for name in order]).close()
    with Index.open(tmp_path / "both", FakeEncoder()) as index:
        assert index.generation.manifest.language == "german"
        index.add([Document("This is the way to the houses of the city", f"new{n}") for n in range(9)])
        assert index.generation.manifest.language == "german"
        assert index.compact()


@pytest.mark.parametrize("order", ["CN", "NC"])
def test_no_language_stays_none_beside_too_little_text(tmp_path: Path, order: str) -> None:
    pytest.importorskip("snowballstemmer")
    german = ["Die Häuser stehen an der Straße", "Das ist nicht der Weg zu uns"] * 6
    for name, texts, language in (("C", ["Zürich"], "auto"), ("N", german, "none")):
        documents = [Document(text, f"{name}{n}") for n, text in enumerate(texts)]
        Index.build(tmp_path / name, documents, FakeEncoder(), language=language).close()
    Index.merge(tmp_path / "both", [tmp_path / name for name in order]).close()
    with Index.open(tmp_path / "both", FakeEncoder()) as index:
        assert index.generation.manifest.language == "none"
        assert index.compact()
        assert index.generation.manifest.language == "none"


def test_no_language_stays_none_after_a_merge(tmp_path: Path) -> None:
    pytest.importorskip("snowballstemmer")
    for language in ("none", "english"):
        documents = [Document("the dogs run", f"{language}{n}") for n in range(2)]
        Index.build(tmp_path / language, documents, FakeEncoder(), language=language).close()
    Index.merge(tmp_path / "both", [tmp_path / language for language in ("none", "english")]).close()
    with Index.open(tmp_path / "both", FakeEncoder()) as index:
        with pytest.raises(ValueError, match=r"both: its words are in several languages \(english, none\)"):
            index.compact()
        for number in range(20):
            index.add([Document("cats", f"new{number}")])
        recorded = [segment.entry.words for segment in index.generation.segments]
        assert {words.language for words in recorded[2:] if words is not None} == {"none"}


@pytest.mark.parametrize("factory", ["Flat", "auto-int8"])
def test_many_single_additions_leave_few_segments(tmp_path: Path, factory: str) -> None:
    index = _index(tmp_path / "index", factory)
    texts = [f"word{i} of text {i * 7}" for i in range(30)]
    for number, text in enumerate(texts):
        index.add([Document(text, f"new{number}", {"number": number})])
    assert _sizes(index) == [40, 8, 8, 8, *[1] * 6]
    for number, text in enumerate(texts):
        (hit,) = index.search(text, k=1)[0]
        assert (hit.id, hit.text, hit.metadata) == (f"new{number}", text, {"number": number})
    stored = index.generation.vectors(index.generation.living_rows())[40:]
    np.testing.assert_allclose(
        stored, FakeEncoder().encode_document(texts, normalize_embeddings=True), atol=5e-3
    )


def test_a_fold_leaves_deleted_and_replaced_documents_out(tmp_path: Path) -> None:
    index = _index(tmp_path / "index")
    for number in range(8):
        index.add([Document(f"new text {number}", f"new{number}")])
    index.delete(["new3"])
    index.upsert([Document("another text", "new5")])  # folds eight segments, one of which is empty
    assert _sizes(index)[0] == 40
    assert len(index) == 47
    index.add([Document("one more", "more")])
    assert index.search("another text", k=1)[0][0].id == "new5"
    assert [name for name in ("new3", "new4", "new5", "more") if index.get([name])] == [
        "new4",
        "new5",
        "more",
    ]


def test_an_interrupted_command_is_finished_before_anything_is_folded(tmp_path: Path, monkeypatch) -> None:
    index = _index(tmp_path / "index")
    for number in range(8):
        index.add([Document(f"new text {number}", f"new{number}")])

    def stop(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("embedkit.index.build.build.finish_segment", stop)
        patched.setattr(fold, "_TIMES", 1000)
        with pytest.raises(BuildError):
            index.upsert([Document("changed", "new2")])
    assert index.upsert([Document("changed", "new2")]).resumed == 1
    assert _sizes(index) == [40, *[1] * 8]
    index.add([Document("one more", "more")])
    assert _sizes(index)[0] == 40 and len(_sizes(index)) == 3


def test_an_addition_that_is_refused_folds_nothing(tmp_path: Path) -> None:
    index = _index(tmp_path / "index")
    for number in range(8):
        index.add([Document(f"new text {number}", f"new{number}")])
    with pytest.warns(UserWarning, match="the encoder is another"):
        other = Index.open(index.path, FakeEncoder("another"), force=True)
    with other, pytest.raises(ModelMismatchError, match=r"embedkit-index reembed .*index --model another"):
        other.add([Document("one more", "more")])
    assert _sizes(Index.open(index.path, FakeEncoder())) == [40, *[1] * 8]


@pytest.mark.skipif(sys.platform != "linux", reason="counts the open files in /proc")
def test_a_generation_that_is_replaced_closes_its_files(tmp_path: Path) -> None:
    index = _index(tmp_path / "index")

    def opened() -> int:
        links = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        return sum(str(tmp_path) in os.readlink(link) for link in links if os.path.lexists(link))

    gc.collect()
    gc.disable()
    try:
        for number in range(12):
            index.add([Document(f"new text {number}", f"new{number}")])
        assert opened() == 2 * len(_sizes(index))  # a connection for conditions
    finally:
        gc.enable()
