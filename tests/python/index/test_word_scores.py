"""BM25 over the stored words: equal to SQLite's own, in one segment or several, and safe with damaged files."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit import _core
from embedkit.index import Document, Index, IndexDamagedError
from embedkit.index.storage.generation import Chosen
from embedkit.index.storage.layout import current_name
from embedkit.index.storage.words import TITLE_WEIGHT
from embedkit.index.words.analyzer import Analyzer, analyzer

WORDS = [
    "connect",
    "connected",
    "wing",
    "wings",
    "boundary",
    "Layer",
    "café",
    "10",
    "苹果汁",
    "果",
    "東京タワー",
    "x",
]
WORDS += [f"w{number}" for number in range(60)]


def some_documents(count: int, seed: int) -> list[Document]:
    chance = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(WORDS))]
    return [
        Document(
            " ".join(chance.choices(WORDS, weights, k=chance.randint(1, 40))),
            f"{seed}-{number}",
            {"title": " ".join(chance.choices(WORDS, k=3)), "n": number}
            if chance.random() < 0.5
            else {"n": number},
        )
        for number in range(count)
    ]


def _best(index: Index, query: str, limit: int, chosen: Chosen | None = None) -> list[tuple[int, float]]:
    return index.generation.keywords(index.generation.asked(query), limit, chosen)


def by_sqlite(
    documents: list[Document], query: str, english: Analyzer, limit: int
) -> list[tuple[int, float]]:
    db = sqlite3.connect(":memory:")
    db.execute(f'CREATE VIRTUAL TABLE t USING fts5(title, text, tokenize="{english.tokenizer}")')
    for row, document in enumerate(documents):
        title = english.text(str(document.metadata.get("title", "")))
        db.execute(
            "INSERT INTO t(rowid, title, text) VALUES (?, ?, ?)", (row, title, english.text(document.text))
        )
    phrases = [f'"{word[:-1]}" *' if word.endswith("*") else f'"{word}"' for word in english.words(query)]
    return db.execute(
        f"SELECT rowid, -bm25(t, {TITLE_WEIGHT}, 1.0) AS score FROM t WHERE t MATCH ? ORDER BY score DESC, rowid "
        "LIMIT ?",
        (" OR ".join(phrases), limit),
    ).fetchall()


@pytest.mark.parametrize(
    "query",
    [
        "connecting wings of the boundary layer",
        "connect connected",  # one stem in two forms counts twice
        "cafe W7 w59 10 x",
        "苹果",
        "果",  # a letter: all words that begin with it
        "苹果汁 果 東京 wing",
        "nothing of this kind",
    ],
)
@pytest.mark.parametrize("limit", [1, 10, 5000])
def test_scores_are_those_of_sqlite(tmp_path: Path, query: str, limit: int) -> None:
    documents = some_documents(5000 if limit == 10 else 300, 1)
    expected = by_sqlite(documents, query, analyzer("english"), limit)
    with Index.build(tmp_path / "index", documents, FakeEncoder(), language="english") as index:
        found = _best(index, query, limit)
    assert [row for row, _ in found] == [row for row, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], rel=1e-12)
    assert bool(found) == (query != "nothing of this kind")


def test_conditions_deletions_and_replacements(tmp_path: Path) -> None:
    documents = some_documents(400, 2)
    replaced = [Document("wing boundary x", "2-7", {"n": 7}), Document("wing w3", "2-308", {"n": 8})]
    with Index.build(tmp_path / "index", documents[:200], FakeEncoder(), language="english") as index:
        index.upsert([*documents[200:], *replaced])
        every = _best(index, "wing boundary", 1000)
        chosen = index.generation.choose("n < 50")
        some = _best(index, "wing boundary", 1000, chosen)
        rows = [row for row, _ in every]
        ids = dict(zip(rows, index.ids(rows), strict=True))
        assert some == [(row, score) for row, score in every if ids[row] == "2-308" or int(ids[row][2:]) < 50]
        assert len(some) < len(every) == len(set(ids.values())) and "" not in ids.values()
        assert {"2-7", "2-308"} <= set(ids.values())
        gone = [ids[row] for row, _ in every[:20]]
        index.delete(gone)
        left = _best(index, "wing boundary", 1000)
        assert left == [(row, score) for row, score in every if ids[row] not in gone]


def test_segments_together_score_as_one(tmp_path: Path) -> None:
    documents = some_documents(158, 3)
    queries = ["w40 w50 boundary", "wing connected zyzzyva", "果 東京 x", "w59"]
    with Index.build(tmp_path / "one", documents, FakeEncoder(), language="english") as index:
        whole = [_best(index, query, 400) for query in queries]
        best = index.search(queries, k=10)
    with Index.build(tmp_path / "many", documents[:100], FakeEncoder(), language="english") as index:
        for start, end in [(100, 150), (150, 155), (155, 156), (156, 157), (157, 158)]:
            index.add(documents[start:end])
        assert len(index.generation.segments) == 6
        assert all(whole) and [_best(index, query, 400) for query in queries] == whole
        for hits, expected in zip(index.search(queries, k=10), best, strict=True):
            assert [hit.id for hit in hits] == [hit.id for hit in expected]
            assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], rel=1e-5)


def test_a_document_added_alone_scores_by_the_words_of_all(tmp_path: Path) -> None:
    documents = [Document(f"restarting the mail server number {n}", str(n)) for n in range(60)]
    with Index.build(tmp_path / "index", documents, FakeEncoder(), language="english") as index:
        index.add([Document("the zebra cluster", "zebra")])
        ((row, score),) = _best(index, "zebra lentil printer", 5)
        assert index.ids([row]) == ["zebra"] and score > 3


def test_segments_of_several_languages_share_their_counts(tmp_path: Path) -> None:
    """A word is as rare in each of them, whatever its stem, and even if it is a stop word in one of them."""
    wings = [Document(f"wings and recipes {n}", f"one {n}") for n in range(30)]
    other = [Document("wings and recipes", "two"), Document("a zebra", "zebra")]
    Index.build(tmp_path / "english", wings, FakeEncoder(), language="english").close()
    Index.build(tmp_path / "none", other, FakeEncoder(), language="none").close()
    with Index.merge(tmp_path / "both", [tmp_path / "english", tmp_path / "none"]) as index:
        asked = index.generation.asked("recipes zebra and")
        (recipes, zebra), (plain_recipes, plain_zebra, stop) = asked.weights
        assert recipes == plain_recipes == stop < 1e-5 and zebra == plain_zebra > 3
        assert asked.attainable == zebra
        found = _best(index, "zebra recipes", 50)
        assert index.ids([found[0][0]]) == ["zebra"] and len(found) == 32


def test_lists_that_are_made_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.index.storage.words._INSTANCES_AT_ONCE", (1, 1000))
    query = "connecting wings of the boundary layer"
    for count in (1, 5, 9, 40, 300):  # a quarter of them at once
        documents = some_documents(count, 1)
        with Index.build(tmp_path / str(count), documents, FakeEncoder(), language="english") as index:
            found = _best(index, query, count)
        expected = by_sqlite(documents, query, analyzer("english"), count)
        assert [row for row, _ in found] == [row for row, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], rel=1e-12)


def test_a_mark_by_itself_is_no_word(tmp_path: Path) -> None:
    texts = ["wing \u0301 layer", "wing", "\u0301", "nothing"]
    with Index.build(tmp_path / "index", texts, FakeEncoder(), language="english") as index:
        assert analyzer("english").terms("\u0301 wing") == ["wing"]
        found = _best(index, "wing \u0301", 10)
    assert [row for row, _ in found] == [1, 0]


def test_a_folder_of_any_name(tmp_path: Path) -> None:
    for name in ("a b", "%41?x=1#y", "ü"):
        with Index.build(tmp_path / name / "index", ["one wing", "two"], FakeEncoder()) as index:
            assert [row for row, _ in _best(index, "wing", 5)] == [0]


def test_the_file_has_words_once_and_no_scratch(tmp_path: Path) -> None:
    with Index.build(tmp_path / "index", some_documents(50, 4), FakeEncoder()) as index:
        folder = index.generation.segments[0].folder
        assert not list(folder.glob("words*"))
        db = sqlite3.connect(folder / "documents.sqlite")
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        assert tables == {"documents", "words", "lengths"}


def test_threads_ask_at_once(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    documents = some_documents(2000, 5)
    queries = [f"w{n} w{n + 1} wing 果" for n in range(59)] * 4
    with Index.build(tmp_path / "index", documents, FakeEncoder(), language="english") as index:
        expected = [_best(index, query, 20) for query in queries]
    with Index.open(tmp_path / "index", FakeEncoder()) as index, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: _best(index, query, 20), queries)) == expected


DAMAGE = [
    "UPDATE words SET postings = x'ff'",
    "UPDATE words SET postings = 'text'",
    "UPDATE words SET postings = x'fefefefe01'",
    "UPDATE words SET rows = 'many' WHERE term = 'wing'",
    "UPDATE words SET rows = -1 WHERE term = 'wing'",
    "UPDATE words SET rows = 1000000 WHERE term = 'wing'",
    "UPDATE lengths SET documents = 2",
    "DELETE FROM lengths",
    "UPDATE lengths SET documents = 0.5",
    "UPDATE lengths SET documents = 0",
    "UPDATE lengths SET words = 0",
    "UPDATE lengths SET words = words + 1",
    "UPDATE lengths SET lengths = x'00'",
    "UPDATE lengths SET lengths = NULL",
    "DROP TABLE words",
    "DROP TABLE lengths",
]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("query", ["wing", "wing 果"])
def test_damaged_words_name_the_file(tmp_path: Path, damage: str, query: str) -> None:
    path = tmp_path / "index"
    Index.build(path, some_documents(60, 6), FakeEncoder(), language="english").close()
    manifest = path / "manifests" / current_name(path)
    content: dict[str, Any] = json.loads(manifest.read_bytes())
    (segment,) = content["segments"]
    file = path / "segments" / segment["name"] / "documents.sqlite"
    db = sqlite3.connect(file, isolation_level=None)
    db.execute(damage)
    db.close()
    segment["files"]["documents.sqlite"]["size"] = file.stat().st_size
    manifest.write_text(json.dumps(content))
    with (
        Index.open(path, FakeEncoder()) as index,
        pytest.raises(IndexDamagedError, match=r"documents\.sqlite"),
    ):
        index.search(query)


def test_the_core_refuses_what_does_not_fit() -> None:
    lengths = np.full(8, 3, np.uint32)
    (postings,) = _core.encode_postings(np.array([1, 1, 6]), np.array([3]))
    assert _core.merge_postings([postings, postings], 8)[1] == 2
    with pytest.raises(ValueError, match="counts must add up"):
        _core.encode_postings(np.array([1, 3]), np.array([1]))
    with pytest.raises(ValueError, match="ascend"):
        _core.encode_postings(np.array([3, 1]), np.array([2]))
    with pytest.raises(ValueError, match="one dimension"):
        _core.encode_postings(np.array([[3, 1]]), np.array([2]))
    with pytest.raises(ValueError, match="1 lists and 2 weights"):
        _core.bm25([postings], [1.0, 2.0], lengths, 3.0, 1.0, 5, None)
    with pytest.raises(ValueError, match="beyond the last of 2 rows"):
        _core.bm25([postings], [1.0], lengths[:2], 3.0, 1.0, 5, None)
    with pytest.raises(ValueError, match="allowed has 0 bytes"):
        _core.bm25([postings], [1.0], lengths, 3.0, 1.0, 5, np.zeros(0, np.uint8))
    with pytest.raises(TypeError):
        _core.bm25([postings], [1.0], lengths.astype(np.int64), 3.0, 1.0, 5, None)
