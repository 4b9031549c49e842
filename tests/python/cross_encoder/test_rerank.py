"""Reranking of search results, as a function and in `embedkit-index query`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embedkit import CrossEncoder

pytest.importorskip("faiss")

from embedkit.cli.main import main
from embedkit.index import Hit, rerank
from embedkit.index.search.rerank import reordered

TEXTS = ["the weather is lovely", "people stay out", "now and then", "a b c", "the people and the weather"]


def test_hits_are_ordered_by_the_cross_encoder(make_cross_encoder: Callable[..., Path]) -> None:
    model = CrossEncoder(make_cross_encoder("bert", 1))
    hits = [Hit(rank, 1.0 / rank, str(rank), text) for rank, text in enumerate(TEXTS, 1)]
    found = rerank(model, ["weather", "people"], [hits, hits[:2]], 3)
    assert [len(answers) for answers in found] == [3, 2]
    for query, answers in zip(["weather", "people"], found, strict=True):
        candidates = TEXTS if query == "weather" else TEXTS[:2]
        expected = model.rank(query, candidates, top_k=3)
        assert [int(hit.id) - 1 for hit in answers] == [one["corpus_id"] for one in expected]
        assert [hit.score for hit in answers] == [one["score"] for one in expected]
        assert [hit.rank for hit in answers] == list(range(1, len(answers) + 1))
    assert rerank(model, iter(["weather", "people"]), iter([hits, hits[:2]]), 3) == found
    assert rerank(model, ["weather"], [[]], 3) == [[]]
    for k in (0, -1):
        with pytest.raises(ValueError, match=f"k must be a positive integer, not {k}"):
            rerank(model, ["weather"], [hits], k)
    with pytest.raises(TypeError, match=r"k must be a positive integer, not 1\.5"):
        rerank(model, ["weather"], [hits], 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="queries must be a list of texts, not a str"):
        rerank(model, "ab", [hits, hits], 3)
    with pytest.raises(ValueError, match="a cross-encoder of one class"):
        rerank(CrossEncoder(make_cross_encoder("bert", 3)), ["weather"], [hits], 3)


def test_equal_scores_keep_the_order_of_the_search() -> None:
    hits = [Hit(rank, 1.0, str(rank), "text") for rank in range(50)]
    scores = np.arange(50) % 3 / 2
    assert [int(hit.id) for hit in reordered(hits, scores, 40)] == [
        *range(2, 50, 3),
        *range(1, 50, 3),
        *range(0, 21, 3),
    ]
    assert [int(hit.id) for hit in reordered(hits, np.zeros(50), 50)] == list(range(50))


def test_query_reranks(
    make_cross_encoder: Callable[..., Path],
    make_model: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    corpus, index = tmp_path / "corpus.txt", tmp_path / "index"
    corpus.write_text("\n".join(TEXTS), encoding="utf-8")
    assert main(["build", str(corpus), "-o", str(index), "--model", str(make_model())]) == 0
    folder = str(make_cross_encoder("bert", 1))
    capsys.readouterr()
    assert main(["query", str(index), "the weather", "-k", "2", "--json", "--rerank", folder]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = CrossEncoder(folder).rank("the weather", TEXTS, top_k=2, return_documents=True)
    assert [hit["text"] for hit in found] == [hit["text"] for hit in expected]
    assert [hit["score"] for hit in found] == [pytest.approx(hit["score"], abs=1e-6) for hit in expected]
    several = str(make_cross_encoder("bert", 3))
    assert main(["query", str(index), "the weather", "--rerank", several]) == 2
    assert (
        "the reranker cannot be loaded: reranking needs a cross-encoder of one class"
        in capsys.readouterr().err
    )
