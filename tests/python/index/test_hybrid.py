"""Fused scores: their arithmetic, what they are made of, and which searches use them."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit import _core
from embedkit.cli.main import main
from embedkit.index import Document, Index
from embedkit.index.search.hybrid import WORDS_WEIGHT, attainable, fuse


@pytest.mark.parametrize(
    "others",
    [
        " ".join(f"common{n}" for n in range(64)),
        "一二三四五六七八九十" * 7,
        " ".join(f"unknown{n}" for n in range(100)),
    ],
)
def test_the_rarest_words_of_a_long_query_count(tmp_path: Path, encoder: FakeEncoder, others: str) -> None:
    notes = [
        " ".join(f"common{n}" for n in range(64)) + f" note {at} 一二三四五六七八九十" for at in range(20)
    ]
    with Index.build(tmp_path / "index", [*notes, "error code ERRZQX42 of the pump"], encoder) as index:
        for query in (f"ERRZQX42 {others}", f"{others} ERRZQX42"):
            best = index.search(query, k=1, hybrid=1.0)[0][0]
            assert "ERRZQX42" in best.text


def test_of_a_long_query_only_the_prefixes_that_count_are_read(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [chr(0x4E00 + at) for at in range(200)]
    texts = ["".join(letters[at : at + 3]) for at in range(198)]
    merged = []
    merge = _core.merge_postings

    def watched(lists: list[bytes], rows: int) -> tuple[bytes, int]:
        merged.append(len(lists))
        return merge(lists, rows)

    monkeypatch.setattr(_core, "merge_postings", watched)
    with Index.build(tmp_path / "index", texts, encoder) as index:
        for _ in range(2):  # what was read is kept
            assert index.search(" ".join(letters), k=1, hybrid=1.0)[0][0].text == texts[0]
    assert len(merged) == 64


def test_fused_scores_are_those_of_the_formula() -> None:
    found = fuse([(7, 0.9), (8, 0.5), (9, 0.4)], [(9, 4.0), (5, 1.0)], 0.6, 10)
    scores = {row: score for row, score, _ in found}
    assert scores == {
        7: pytest.approx(0.4),
        8: pytest.approx(0.4 * 0.1 / 0.5),
        9: pytest.approx(0.6),
        5: pytest.approx(0.6 * 0.25),
    }
    assert [row for row, _, _ in found] == [9, 7, 5, 8]
    parts = {row: part for row, _, part in found}
    assert (parts[5].similarity, parts[5].bm25, parts[5].vector, parts[5].words) == (None, 1.0, 0.0, 0.25)
    assert (parts[7].similarity, parts[7].bm25, parts[7].vector, parts[7].words) == (0.9, None, 1.0, 0.0)


def test_fusing_random_rankings_agrees_with_numpy() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        rows = 60
        cosines, scores = random.random(rows), random.random(rows) * 20
        near = np.argsort(-cosines)[: random.integers(1, 40)]
        told = np.argsort(-scores)[: random.integers(1, 40)]
        weight = float(random.random())
        vector, words = np.zeros(rows), np.zeros(rows)
        low, high = cosines[near[-1]], cosines[near[0]]
        vector[near] = (cosines[near] - low) / (high - low) if high > low else 1
        words[told] = scores[told] / scores[told[0]]
        fused = (1 - weight) * vector + weight * words
        found = fuse(
            [(int(row), float(cosines[row])) for row in near],
            [(int(row), float(scores[row])) for row in told],
            weight,
            10,
        )
        np.testing.assert_allclose([score for _, score, _ in found], np.sort(fused)[::-1][: len(found)])
        np.testing.assert_allclose([fused[row] for row, _, _ in found], [score for _, score, _ in found])
        assert all(0 <= score <= 1 + 1e-9 for _, score, _ in found)


class Dense(FakeEncoder):
    """Similarities of which no two are the same."""

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool = False) -> np.ndarray:
        seeds = (zlib.crc32(text.encode()) for text in sentences)
        vectors = np.stack([np.random.default_rng(seed).standard_normal(16) for seed in seeds])
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    encode_query = encode_document

    def tokenize(self, texts: list[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[1] * len(text.split()) for text in texts]}


@pytest.mark.parametrize("hybrid", [True, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("per_document", [False, True])
@pytest.mark.parametrize("factory", ["Flat", "HNSW8"])
def test_the_first_hits_do_not_depend_on_k(
    tmp_path: Path, factory: str, hybrid: float, per_document: bool
) -> None:
    random = np.random.default_rng(0)
    common = np.array([f"word{n}" for n in range(50)])
    texts = [". ".join(" ".join(random.choice(common, 9)) for _ in range(3)) for _ in range(500)]
    passages = (9, 0) if per_document else None
    with Index.build(
        tmp_path / "index", texts, Dense(truncate_dim=16), factory=factory, passages=passages, language="none"
    ) as index:
        queries = [" ".join(random.choice(common, 3)) for _ in range(20)]
        few = index.search(queries, 10, hybrid=hybrid, per_document=per_document)
        more = index.search(queries, 100, hybrid=hybrid, per_document=per_document)
        all_ = index.search(queries, 500, hybrid=hybrid, per_document=per_document)
        for first, hits, every in zip(few, more, all_, strict=True):
            assert first == hits[:10]
            assert hits == every[:100]
            assert len({hit.document for hit in every}) == 500


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_what_is_no_candidate_follows_in_its_order(weight: float) -> None:
    by_vector = [(row, 1 - row / 100) for row in range(50)]
    by_words = [(row, 1.0 + row) for row in range(60, 10, -1)]
    found = fuse(by_vector, by_words, weight, 100, depth=20)
    wanted = [row for row, _ in (by_words if weight else by_vector)]
    assert [row for row, _, _ in found][:50] == wanted
    scores = [score for _, score, _ in found]
    assert scores == sorted(scores, reverse=True)
    assert sum(score > 0 for score in scores) == (20 if weight else 19)


def test_words_are_measured_by_the_rarest_of_the_query() -> None:
    idf = [np.log((1000 - n + 0.5) / (n + 0.5)) for n in (0, 3, 10, 40)]
    assert attainable([40, 3, 10, 0], 1000) == pytest.approx(sum(idf[:3]))
    assert attainable([900], 1000) == pytest.approx(1e-6)
    assert attainable([], 0) == 0
    found = {row: parts.words for row, _, parts in fuse([], [(1, 2.0), (2, 1.0)], 0.6, 5, rare=4.0)}
    assert found == {1: pytest.approx(0.5), 2: pytest.approx(0.25)}


def test_a_single_candidate_is_the_best() -> None:
    assert fuse([(3, 0.2)], [], 0.6, 5)[0][1] == pytest.approx(0.4)
    assert fuse([], [(3, 0.2)], 0.6, 5)[0][1] == pytest.approx(0.6)
    assert fuse([(3, 0.2), (4, 0.2)], [(3, 1.0)], 0.6, 5)[0][:2] == (3, pytest.approx(1.0))
    assert fuse([], [], 0.6, 5) == []


IDS = [
    "ERR-4711",
    "0x80070057",
    "XK-9942-B",
    "v2.18.3",
    "550e8400-e29b-41d4",
    "zyzzyva",
    "AB1234567",
    "192.168.17.9",
]


@pytest.mark.parametrize("rare", IDS)
@pytest.mark.parametrize(
    "question", ["{}", "what does {} mean", "how do I fix the error {} when the server restarts"]
)
def test_exact_rare_words_win(tmp_path: Path, rare: str, question: str) -> None:
    encoder = FakeEncoder()
    texts = [f"how to fix an error when the server restarts, case {n}" for n in range(60)]
    texts += [
        f"number {n}: the meaning of code ERR-{n} and of XK-{n}-A in version v{n}.1.0" for n in range(60)
    ]
    documents = [Document(text, str(n)) for n, text in enumerate(texts)]
    documents.insert(40, Document(f"Service note: {rare} is raised by the disk controller.", "rare"))
    with Index.build(tmp_path / "index", documents, encoder) as index:
        assert index.search(question.format(rare), k=1)[0][0].id == "rare"


def test_the_default_is_hybrid_where_there_are_texts_and_words(tmp_path: Path) -> None:
    encoder = FakeEncoder()
    texts = [f"text number {n}" for n in range(30)]
    with Index.build(tmp_path / "index", texts, encoder) as index:
        default, hybrid = index.search("number 7", k=5), index.search("number 7", k=5, hybrid=True)
        assert default == hybrid
        assert default == index.search("number 7", k=5, hybrid=WORDS_WEIGHT)
        assert all(hit.parts is not None for hit in default[0])
        plain = index.search("number 7", k=5, hybrid=False)[0]
        assert all(hit.parts is None for hit in plain)
        vector = encoder.encode_query(["number 7"], normalize_embeddings=True)
        assert [hit.id for hit in index.search(vector, k=5)[0]] == [hit.id for hit in plain]
        (stream,) = index.search_stream([["number 7"]], 5)
        assert stream == default
        for hit in default[0]:
            assert hit.parts is not None
            assert hit.score == pytest.approx(0.4 * hit.parts.vector + 0.6 * hit.parts.words)
        top = index.search("number 7", k=30, hybrid=0.0)[0]
        assert [hit.parts.similarity for hit in top[:5] if hit.parts] == pytest.approx(
            [hit.score for hit in plain]
        )
        words = index.search("number 7", k=5, hybrid=1.0)[0]
        assert words[0].id == "7" and words[0].score == pytest.approx(1.0)
        wrong: list[tuple[Any, type[Exception], str]] = [
            (1.5, ValueError, "from 0 to 1"),
            (float("nan"), ValueError, "from 0 to 1"),
            ("yes", TypeError, "hybrid must be"),
        ]
        numpy: Any
        for numpy in (np.True_, np.False_):
            assert index.search("number 7", k=5, hybrid=numpy) == index.search(
                "number 7", k=5, hybrid=bool(numpy)
            )
        assert [hit.id for hit in index.search(vector, k=5, hybrid=numpy)[0]] == [hit.id for hit in plain]
        for value, error, message in wrong:
            with pytest.raises(error, match=message):
                index.search("number 7", hybrid=value)
        with pytest.raises(ValueError, match="a hybrid search needs texts"):
            index.search(vector, hybrid=0.5)


def test_more_hits_than_candidates(tmp_path: Path) -> None:
    texts = [f"text number {n}" for n in range(700)]
    with Index.build(tmp_path / "index", texts, FakeEncoder()) as index:
        hits = index.search("text number 7", k=600)[0]
        assert len(hits) == 600 and len({hit.id for hit in hits}) == 600
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert len(index.search("text number 7", k=5, where="id = '3'")[0]) == 1


def test_the_command_explains_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("embedkit.Encoder", FakeEncoder, raising=False)
    path = str(tmp_path / "index")
    Index.build(path, [f"text number {n}" for n in range(30)], FakeEncoder()).close()

    def run(*options: str, code: int = 0) -> str:
        assert main(["query", path, "number 7", "-k", "2", *options]) == code
        out, err = capsys.readouterr()
        return err if code else out

    header, first, _ = run("--explain").splitlines()
    assert header.split() == ["rank", "score", "vector", "words", "similarity", "bm25", "id", "text"]
    assert first.split()[6] == "7"
    (line, _) = run("--explain", "--json").splitlines()
    entry = json.loads(line)
    assert set(entry["parts"]) == {"similarity", "bm25", "vector", "words"}
    assert "parts" not in json.loads(run("--json").splitlines()[0])
    assert "vector" not in run("--explain", "--no-hybrid").splitlines()[0]
    assert (
        run("--words-weight", "1", "--json").splitlines()[0] != run("--no-hybrid", "--json").splitlines()[0]
    )
    assert "expected a number from 0 to 1" in run("--words-weight", "2", code=2)
    assert "--no-hybrid switches off" in run("--words-weight", "0.5", "--no-hybrid", code=2)


def test_vectors_without_texts_are_searched_by_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("embedkit.Encoder", FakeEncoder, raising=False)
    texts = [Document(f"text number {n}", f"k{n}") for n in range(30)]
    with Index.build(tmp_path / "index", texts, FakeEncoder(), language="none") as index:
        assert index.info()["words"] == "not stemmed"
        index.export_faiss(tmp_path / "out.faiss")
        (expected,) = index.search("number 7", k=3, hybrid=False)
    with Index.import_faiss(tmp_path / "back", tmp_path / "out.faiss", FakeEncoder()) as index:
        assert index.info()["words"] is None
        (hits,) = index.search("number 7", k=3)
        assert [(hit.id, hit.score, hit.parts) for hit in hits] == [
            (hit.id, pytest.approx(hit.score), None) for hit in expected
        ]
        with pytest.raises(ValueError, match="those of this index hold none"):
            index.search("number 7", k=3, hybrid=True)
        assert main(["info", str(index.path)]) == 0
        assert re.search(r"^words +none$", capsys.readouterr().out, re.MULTILINE)
        index.add([Document("number seven", "more")])
        assert index.search("number seven", k=1)[0][0].parts is not None


def test_segments_are_brought_to_one_scale(tmp_path: Path) -> None:
    """By its own counts, a small segment would weigh a rare word as common."""
    encoder = FakeEncoder()
    texts = [f"a text about boats and water, number {n}" for n in range(300)]
    with Index.build(
        tmp_path / "index", [Document(text, str(n)) for n, text in enumerate(texts)], encoder
    ) as index:
        added = [Document("the harbour of zyzzyva", "in"), Document("the harbour of another town", "out")]
        index.add(added)
        asked = index.generation.asked("zyzzyva harbour")
        assert len(asked.words) == 2 and asked.weights[0] == asked.weights[1]
        assert asked.attainable == pytest.approx(attainable([1, 2], 302))
        several = index.search("zyzzyva harbour", k=2)[0]
        assert [hit.id for hit in several] == ["in", "out"]
        index.compact()
        assert index.generation.asked("zyzzyva harbour").attainable == pytest.approx(asked.attainable)
        for before, after in zip(several, index.search("zyzzyva harbour", k=2)[0], strict=True):
            assert before.id == after.id
            assert before.score == pytest.approx(after.score, rel=1e-6)
