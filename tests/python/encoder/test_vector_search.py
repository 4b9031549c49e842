"""`semantic_search` and `paraphrase_mining` against numpy and sentence-transformers, and their memory."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peak_memory import PEAK_KIB, needs_peak

from embedkit import Encoder, paraphrase_mining, semantic_search

pytest.importorskip("faiss", reason="faiss is not installed: it finds the neighbors")


class Given:
    """An encoder with given vectors."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = vectors

    def encode(self, sentences: list[str], **_: Any) -> np.ndarray:
        return self.vectors[: len(sentences)]


def mine(vectors: np.ndarray, **options: Any) -> list[list[Any]]:
    return paraphrase_mining(Given(vectors), [""] * len(vectors), **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(500, 12)).astype(np.float32)


@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_semantic_search_is_exact(score: Any, vectors: np.ndarray) -> None:
    queries, corpus = vectors[:20], vectors[20:]
    found = semantic_search(queries, corpus, top_k=7, score_function=score)
    wide = [v.astype(np.float64) for v in (queries, corpus)]
    if score == "cosine":
        wide = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in wide]
    expected = wide[0] @ wide[1].T
    for line, scores in zip(found, expected, strict=True):
        best = np.argsort(-scores)[:7]
        assert [hit["corpus_id"] for hit in line] == best.tolist()
        np.testing.assert_allclose([hit["score"] for hit in line], scores[best], rtol=1e-5)


def test_arguments_stand_where_sentence_transformers_has_them(vectors: np.ndarray) -> None:
    util = pytest.importorskip("sentence_transformers.util", reason="sentence-transformers is not installed")
    for function in (semantic_search, paraphrase_mining):
        theirs = list(inspect.signature(getattr(util, function.__name__)).parameters)
        assert list(inspect.signature(function).parameters)[: len(theirs)] == theirs
    assert semantic_search(vectors[:2], vectors, 100, 500_000, 3) == semantic_search(
        vectors[:2], vectors, top_k=3
    )
    chunks = {"query_chunk_size": 10, "corpus_chunk_size": 20}
    assert mine(vectors, max_pairs=9, **chunks) == mine(vectors, max_pairs=9)


@pytest.mark.parametrize("name", ["cos_sim", "dot_score"])
def test_results_are_those_of_sentence_transformers(name: str, vectors: np.ndarray) -> None:
    util = pytest.importorskip("sentence_transformers.util", reason="sentence-transformers is not installed")
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(vectors)
    score = getattr(util, name)
    found = semantic_search(tensor[:9], tensor, top_k=4, score_function=score)
    expected = util.semantic_search(tensor[:9], tensor, top_k=4, score_function=score)
    assert [[hit["corpus_id"] for hit in line] for line in found] == [
        [hit["corpus_id"] for hit in line] for line in expected
    ]
    # Half precision, a list of tensors and a single vector are also accepted.
    assert semantic_search(tensor[0].double(), list(tensor), top_k=4, score_function=score)[0] == found[0]


def test_paraphrases_are_those_of_sentence_transformers(
    make_model: Callable[..., Path], reference: Callable[[Path], Any], texts: list[str]
) -> None:
    util = pytest.importorskip("sentence_transformers.util", reason="sentence-transformers is not installed")
    folder = make_model(normalize=True)
    sentences = [text for text in dict.fromkeys(texts) if 5 < len(text) < 150][:80]
    found = paraphrase_mining(Encoder(folder), sentences, top_k=5, max_pairs=60)
    expected = util.paraphrase_mining(reference(folder), sentences, top_k=5, max_pairs=60)
    assert len(found) == len(expected) == 60
    # Scores that are equal in float32 may swap places.
    np.testing.assert_allclose([p[0] for p in found], [p[0] for p in expected], atol=2e-6)
    assert len({(i, j) for _, i, j in found} & {(i, j) for _, i, j in expected}) >= 59


@pytest.mark.parametrize(("k", "most"), [(3, 10**6), (3, 40), (499, 1000), (10**6, 5)])
def test_a_pair_counts_once_and_the_best_are_kept(
    k: int, most: int, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    import embedkit.vector_search as module

    monkeypatch.setattr(module, "_BLOCK_CELLS", 100)  # many blocks and many prunings
    monkeypatch.setattr(module, "_BUFFERED_PAIRS", 50)
    small = vectors[:120]
    found = mine(small, top_k=k, max_pairs=most, score_function="dot")
    scores = small.astype(np.float64) @ small.T.astype(np.float64)
    pairs = set()
    for i in range(len(small)):
        neighbors = [j for j in np.argsort(-scores[i]).tolist() if j != i][:k]
        pairs |= {(min(i, j), max(i, j)) for j in neighbors}
    expected = sorted(pairs, key=lambda pair: -scores[pair])[:most]
    assert [(i, j) for _, i, j in found] == expected
    np.testing.assert_allclose([p[0] for p in found], [scores[pair] for pair in expected], rtol=1e-5)


def test_copies_of_a_sentence_are_pairs() -> None:
    copies = np.ones((30, 4), np.float32)
    found = mine(copies, top_k=3)
    assert all(i < j and score == pytest.approx(1.0) for score, i, j in found)
    assert len({(i, j) for _, i, j in found}) == len(found) > 30


def test_an_index_finds_nearly_all_pairs_of_many_sentences() -> None:
    random = np.random.default_rng(2)
    base = random.normal(size=(2500, 16))
    copies = (base + 0.05 * random.normal(size=base.shape))[:500]
    vectors = np.concatenate([base, copies]).astype(np.float32)
    found = mine(vectors, top_k=1, max_pairs=500, factory="IVF20,Flat")
    assert sum(j - i == 2500 for _, i, j in found) >= 480


def test_an_index_of_codes_is_trained_in_seconds(vectors: np.ndarray) -> None:
    begin = time.process_time()
    assert mine(vectors, top_k=1, max_pairs=9, factory="IVF4,PQ2")
    assert time.process_time() - begin < 3  # 6 s with polysemous training


def test_an_unbuildable_index_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot build 'IVF20,Flat' from 4 vectors"):
        mine(np.eye(4), factory="IVF20,Flat")
    with pytest.raises(ValueError, match="unknown factory 'Nothing'"):
        mine(np.eye(4), factory="Nothing")


def test_small_inputs() -> None:
    assert semantic_search(np.empty((0, 3)), np.ones((2, 3))) == []
    assert semantic_search(np.ones((2, 3)), []) == [[], []]
    assert [len(line) for line in semantic_search(np.ones(3), np.ones((2, 3)))] == [2]
    assert mine(np.ones((1, 3))) == [] == paraphrase_mining(Encoder(), [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k must be a positive integer"),
        ({"score_function": max}, "use 'cosine' or 'dot'"),
        ({"score_function": np.dot}, "use 'cosine' or 'dot'"),
        ({"corpus": np.ones((2, 4))}, "3 dimensions and corpus_embeddings 4"),
        ({"corpus": np.ones((2, 3, 1))}, r"corpus_embeddings: the shape is \(2, 3, 1\)"),
        ({"corpus": [[1, 2, 3], [1, np.nan, 3]]}, "corpus_embeddings: row 1 holds NaN"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], message: str) -> None:
    corpus = options.pop("corpus", np.ones((2, 3)))
    with pytest.raises(ValueError, match=message):
        semantic_search(np.ones((1, 3)), corpus, **options)


@needs_peak
def test_memory_is_not_quadratic() -> None:
    script = f"""
import numpy as np
from embedkit import paraphrase_mining
n = 10_000
class Given:
    def encode(self, sentences, **_):
        return np.random.default_rng(0).normal(size=(len(sentences), 8)).astype(np.float32)
paraphrase_mining(Given(), [""] * 50, top_k=1)
before = {PEAK_KIB}
assert len(paraphrase_mining(Given(), [""] * n, top_k=2, max_pairs=1000)) == 1000
print(({PEAK_KIB} - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 150  # MiB; the matrix of all scores has 381


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1.0, 1e25])
def test_cosines_of_any_length(scale: float) -> None:
    query = np.ones(4, np.float32) * scale
    ((hit,),) = semantic_search(query, np.eye(4, dtype=np.float32) * scale, top_k=1)
    assert hit["score"] == pytest.approx(0.5)


def test_without_faiss_mining_encodes_nothing(vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    model = Given(vectors)
    monkeypatch.setattr(model, "encode", None)
    with pytest.raises(ImportError, match="Faiss"):
        paraphrase_mining(model, ["a", "b"])  # type: ignore[arg-type]


def test_mining_encodes_as_told(vectors: np.ndarray) -> None:
    given = {"batch_size": 7, "truncate_dim": 5, "prompt_name": "query", "prompt": "query: "}
    told = {}

    class Noting(Given):
        def encode(self, sentences: list[str], **options: Any) -> np.ndarray:
            told.update(options)
            return super().encode(sentences)

    paraphrase_mining(Noting(vectors), ["a", "b"], show_progress_bar=True, **given)  # type: ignore[arg-type]
    assert told == {**given, "show_progress_bar": True}


def test_without_faiss_no_index_is_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    vectors = np.eye(2, dtype=np.float32)
    for search in (
        lambda: semantic_search(vectors, vectors),
        lambda: paraphrase_mining(Given(vectors), ["a", "b"]),  # type: ignore[arg-type]
    ):
        with pytest.raises(
            ImportError, match=r"^Faiss is needed and not installed: pip install 'embedkit\[cpu\]'$"
        ):
            search()
