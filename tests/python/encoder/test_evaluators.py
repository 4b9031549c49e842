"""sentence-transformers' own evaluators and utilities accept an `Encoder` and measure the same."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedkit import Encoder

evaluation = pytest.importorskip(
    "sentence_transformers.evaluation", reason="sentence-transformers is not installed: its evaluators run"
)

pytestmark = pytest.mark.filterwarnings("ignore:.*longer than max_length")

PROMPTS = {"query": "question: ", "document": "answer: "}


@pytest.fixture(scope="module")
def pair(make_model: Callable[..., Path], reference: Callable[[Path], Any]) -> tuple[Encoder, Any]:
    """An encoder, and the same folder in sentence-transformers."""
    folder = make_model(normalize=True, prompts=PROMPTS)
    return Encoder(folder), reference(folder)


def evaluator_of(name: str, texts: list[str], model: Any) -> Any:
    """An evaluator of ``sentence_transformers.evaluation`` over small data; ``model`` is its teacher."""
    left, right, other, more = (texts[first : first + 30] for first in (10, 40, 70, 100))
    scores = [i % 6 / 5 for i in range(30)]
    four = ["cosine", "dot", "euclidean", "manhattan"]
    if name.startswith("similarity"):
        options: dict[str, dict[str, Any]] = {
            "similarity": {"similarity_fn_names": four},
            "similarity of bits": {"precision": "ubinary"},
            "similarity of a few dimensions": {"truncate_dim": 8},
        }
        return evaluation.EmbeddingSimilarityEvaluator(left, right, scores, **options[name])
    if name == "binary":
        return evaluation.BinaryClassificationEvaluator(left, right, [i % 2 for i in range(30)])
    if name.startswith("retrieval"):
        options = {
            "retrieval": {},
            "retrieval with prompts": {"query_prompt": "find: ", "corpus_prompt_name": "document"},
        }
        return evaluation.InformationRetrievalEvaluator(
            {f"q{i}": text for i, text in enumerate(left)},
            {f"d{i}": text for i, text in enumerate(right)},
            {f"q{i}": {f"d{i}", f"d{(7 * i) % 30}"} for i in range(30)},
            **options[name],
        )
    if name == "triplet":
        return evaluation.TripletEvaluator(left, right, other, similarity_fn_names=four)
    if name == "paraphrases":
        sentences = {f"s{i}": text for i, text in enumerate(dict.fromkeys(left + right))}
        duplicates = [("s0", "s1"), ("s2", "s3"), ("s4", "s9")]
        return evaluation.ParaphraseMiningEvaluator(sentences, duplicates, top_k=5)
    if name == "reranking":
        samples = [
            {"query": a, "positive": [b], "negative": [c, d]}
            for a, b, c, d in zip(left, right, other, more, strict=True)
        ]
        return evaluation.RerankingEvaluator(samples)
    if name == "translation":
        return evaluation.TranslationEvaluator(left, right)
    if name == "mse":
        return evaluation.MSEEvaluator(left, right, teacher_model=model)
    rows = [{"en": a, "xx": b} for a, b in zip(left, right, strict=True) if a.strip() and b.strip()]
    return evaluation.MSEEvaluatorFromDataFrame(rows, model, [("en", "xx")])


NAMES = [
    "similarity",
    "similarity of bits",
    "similarity of a few dimensions",
    "binary",
    "retrieval",
    "retrieval with prompts",
    "triplet",
    "paraphrases",
    "reranking",
    "translation",
    "mse",
    "mse by language",
]


@pytest.mark.parametrize("name", NAMES)
def test_an_evaluator_measures_what_it_measures_on_a_sentence_transformer(
    name: str, pair: tuple[Encoder, Any], texts: list[str], tmp_path: Path
) -> None:
    encoder, expected_model = pair
    expected = evaluator_of(name, texts, expected_model)(expected_model)
    evaluator = evaluator_of(name, texts, encoder)
    measured = evaluator(encoder, output_path=str(tmp_path))
    assert measured == pytest.approx(expected, abs=1e-5)
    assert encoder.model_card_data.eval_results_dict[evaluator] == measured
    assert list(tmp_path.iterdir())


def test_several_evaluators_in_sequence(pair: tuple[Encoder, Any], texts: list[str]) -> None:
    encoder, _ = pair
    chosen = [evaluator_of(name, texts, encoder) for name in ("binary", "triplet")]
    results = evaluation.SequentialEvaluator(chosen)(encoder)
    assert {"cosine_accuracy", "cosine_ap", "sequential_score"} <= set(results)


def test_hard_negatives_are_mined_with_an_encoder(
    pair: tuple[Encoder, Any], texts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: what is mined is one")
    from sentence_transformers.util import mine_hard_negatives

    caplog.set_level(logging.ERROR)
    encoder, expected_model = pair
    rows = datasets.Dataset.from_dict({"anchor": texts[10:40], "positive": texts[40:70]})
    found, expected = (
        mine_hard_negatives(rows, model, num_negatives=2, range_max=8, verbose=False, output_format="n-tuple")
        for model in (encoder, expected_model)
    )
    assert found.to_dict() == expected.to_dict()


def test_results_of_evaluators_are_not_copied(pair: tuple[Encoder, Any], texts: list[str]) -> None:
    encoder = Encoder(pair[0].describe()["path"])
    evaluator_of("binary", texts, encoder)(encoder)
    assert encoder.model_card_data.eval_results_dict
    copied = pickle.loads(pickle.dumps(encoder))
    assert copied.model_card_data.eval_results_dict == {}
    assert copied.model_card_data.base_model == encoder.describe()["model"]
