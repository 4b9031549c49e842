"""`MTEBEncoder` in MTEB: its mock run, and two tasks with the scores of MTEB's own sentence-transformers wrapper."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import SentenceTransformerEncoderWrapper
from mteb.models.models_protocols import EncoderProtocol
from mteb.types import PromptType
from sentence_transformers import SentenceTransformer

from embedkit import Encoder
from embedkit.integrations.mteb import MTEBEncoder

pytestmark = pytest.mark.filterwarnings("ignore")  # of MTEB about its own tasks, and of the truncated texts

PAIRS = [
    ("A man is playing a guitar.", "Someone plays the guitar.", 4.6),
    ("A man is playing a guitar.", "A man is cutting an onion.", 0.4),
    ("The cat sleeps on the sofa.", "A cat is asleep on a couch.", 4.8),
    ("The cat sleeps on the sofa.", "Stocks fell for the third day.", 0.0),
    ("Two dogs run through the snow.", "Dogs are running in the snow.", 4.9),
    ("Two dogs run through the snow.", "A dog is sitting in the grass.", 1.8),
    ("The plane lands in Rome.", "The aircraft has landed in Rome.", 4.5),
    ("The plane lands in Rome.", "The train leaves Rome.", 1.4),
]
CORPUS = {
    "lentils": "Boil the lentils in water for half an hour, then add salt.",
    "bread": "Let the dough rest, then bake the bread until it is brown.",
    "server": "Restart the server after the update to load the new configuration.",
    "branch": "Merge the branch into main once the tests have passed.",
    "sky": "Air scatters blue light more than red, so the sky looks blue.",
    "tide": "The moon's gravity raises the tides of the sea.",
}
QUERIES = {
    "how to cook lentils": "lentils",
    "why is the sky blue": "sky",
    "when can a branch be merged": "branch",
    "what causes the tides": "tide",
}
PROMPTS = {"STS": "compare: ", "Retrieval-query": "question: ", "query": "unused: ", "document": "text: "}


def sts(pairs: list[tuple[str, str, float]]) -> Any:
    """MTEB's task STSBenchmark over local pairs."""
    task = mteb.get_task("STSBenchmark")
    left, right, score = zip(*pairs, strict=True)
    rows = Dataset.from_dict({"sentence1": left, "sentence2": right, "score": score})
    task.dataset, task.data_loaded = DatasetDict({"test": rows}), True
    return task


class LocalRetrieval(AbsTaskRetrieval):  # type: ignore[misc]
    """A retrieval task over local data."""

    metadata = TaskMetadata(
        name="LocalRetrieval",
        dataset={"path": "local/local", "revision": "1"},
        description="Documents and questions that lie here.",
        reference=None,
        type="Retrieval",
        category="t2t",
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )


def retrieval(
    corpus: Mapping[str, str], queries: Mapping[str, str], relevant: Mapping[str, Mapping[str, int]]
) -> Any:
    """Task `LocalRetrieval`; ``queries`` are id -> text."""
    task = LocalRetrieval()
    task.dataset = {
        "default": {
            "test": {
                "corpus": Dataset.from_dict(
                    {"id": list(corpus), "title": [""] * len(corpus), "text": list(corpus.values())}
                ),
                "queries": Dataset.from_dict({"id": list(queries), "text": list(queries.values())}),
                "relevant_docs": {query: dict(gains) for query, gains in relevant.items()},
                "top_ranked": None,
            }
        }
    }
    task.data_loaded = True
    return task


def local_tasks() -> list[Any]:
    queries = {f"q{i}": text for i, text in enumerate(QUERIES)}
    relevant = {f"q{i}": {document: 1} for i, document in enumerate(QUERIES.values())}
    return [sts(PAIRS), retrieval(CORPUS, queries, relevant)]


def scores(model: Any, tasks: list[Any]) -> dict[str, dict[str, float]]:
    results = mteb.evaluate(model, tasks, cache=None, show_progress_bar=False, co2_tracker=False)
    return {
        result.task_name: {
            name: value
            for name, value in result.scores["test"][0].items()
            if isinstance(value, float) and not np.isnan(value)
        }
        for result in results.task_results
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The built-in model as a folder that sentence-transformers loads."""
    path = tmp_path_factory.mktemp("model") / "minilm"
    Encoder().save(path, "fp32", dequantize=True)
    return str(path)


def test_the_protocol_is_kept() -> None:
    assert isinstance(MTEBEncoder(), EncoderProtocol)


def test_mock_run_of_mteb_passes() -> None:
    results = mteb.mock_run(MTEBEncoder())
    outcomes = dict(results.items())
    ran = [name for name, outcome in outcomes.items() if outcome is not None]
    assert results.all_passed, {name: outcomes[name] for name in ran}
    assert len(ran) >= 15


@pytest.mark.parametrize("prompts", [None, PROMPTS])
def test_two_tasks_have_the_scores_of_sentence_transformers(
    folder: str, prompts: dict[str, str] | None
) -> None:
    ours = scores(MTEBEncoder(folder, prompts=prompts), local_tasks())
    reference = SentenceTransformer(folder, device="cpu")
    theirs = scores(SentenceTransformerEncoderWrapper(reference, model_prompts=prompts), local_tasks())
    assert ours.keys() == theirs.keys() == {"STSBenchmark", "LocalRetrieval"}
    for task in ours:
        assert ours[task] == pytest.approx(theirs[task], abs=2e-5)
    assert ours["STSBenchmark"]["cosine_spearman"] > 0.7
    assert ours["LocalRetrieval"]["ndcg_at_10"] > 0.9


def test_prompts_go_by_task_then_by_type_then_by_prompt_type() -> None:
    class Recording(Encoder):
        def encode(self, sentences: Any = None, *args: Any, **options: Any) -> Any:  # type: ignore[override]
            seen.append(options["prompt"])
            return super().encode(sentences, *args, **options)

    seen: list[str | None] = []
    task, other = (item.metadata for item in local_tasks())
    prompts = {"STSBenchmark": "a ", "STS": "b ", "Retrieval-query": "c ", "Retrieval": "d ", "query": "e "}
    encoder = MTEBEncoder(Recording(prompts={"document": "f "}), prompts=prompts)
    for metadata, kind in (
        (task, None),
        (task, PromptType.query),
        (other, PromptType.query),
        (other, PromptType.document),
    ):
        encoder.encode(
            [{"text": ["a"]}], task_metadata=metadata, hf_split="test", hf_subset="default", prompt_type=kind
        )
    assert seen == ["a ", "a ", "c ", "d "]
    del encoder.model_prompts["Retrieval"]
    encoder.encode(
        [{"text": ["a"]}],
        task_metadata=other,
        hf_split="test",
        hf_subset="default",
        prompt_type=PromptType.document,
    )
    assert seen[-1] == "f "
    with pytest.raises(KeyError, match="NoSuchTask"):
        MTEBEncoder(prompts={"NoSuchTask": "x"})


def test_encode_kwargs_reach_the_encoder() -> None:
    class Recording(Encoder):
        def encode(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
            vectors = super().encode(*args, **options)
            seen.append(np.linalg.norm(vectors, axis=1))
            return vectors

    seen: list[Any] = []
    task = sts(PAIRS)
    model = MTEBEncoder(Recording(truncate_dim=32))  # vectors that are not of length 1
    options = {"normalize_embeddings": True, "show_progress_bar": False}
    mteb.evaluate(model, [task], encode_kwargs=options, cache=None, co2_tracker=False)
    assert seen and np.allclose(np.concatenate(seen), 1)

    def encoded(texts: list[str], **kwargs: Any) -> Any:
        batches = [{"text": texts}]
        return model.encode(
            batches, task_metadata=task.metadata, hf_split="test", hf_subset="default", **kwargs
        )

    for kwargs in ({}, {"precision": "binary"}, {"truncate_dim": 8}, {"batch_size": 2}):
        some, none = encoded(["a"], **kwargs), encoded([], **kwargs)
        assert none.shape == (0, some.shape[1]) and none.dtype == some.dtype
    with pytest.raises(TypeError, match="unexpected keyword argument 'normalise'"):
        encoded(["a"], normalise=True)


def test_results_are_kept_apart_by_options_of_the_vectors() -> None:
    options: list[dict[str, Any]] = [
        {},
        {"truncate_dim": 8},
        {"max_length": 3},
        {"on_overflow": "window"},
        {"prompts": {"STS": "compare: "}},
        {"prompts": {"STS": "match: "}},
    ]
    revisions = [MTEBEncoder(**one).mteb_model_meta.revision for one in options]
    assert len(set(revisions)) == len(options)
    assert MTEBEncoder(threads=1).mteb_model_meta.revision == revisions[0]


def test_results_are_kept_apart_by_fingerprint_and_precision(folder: str) -> None:
    metas = [MTEBEncoder(folder, precision=p).mteb_model_meta for p in ("fp32", "int8")]
    assert [meta.name for meta in metas] == ["embedkit/minilm"] * 2
    assert metas[0].revision != metas[1].revision
    assert metas[0].embed_dim == 256
    with pytest.raises(ValueError, match="device cannot be set here"):
        MTEBEncoder(Encoder(), device="cpu")


# The tasks on the data of training and evaluation, if available.


def table(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.fixture(scope="module")
def data() -> Path:
    folder = os.environ.get("EMBEDKIT_DATA")
    if not folder:
        pytest.skip("EMBEDKIT_DATA does not name the folder of evaluation data")
    return Path(folder)


def test_sts_benchmark_on_its_real_pairs(data: Path) -> None:
    rows = [
        row
        for row in table(data / "sts_en" / "sts_en.tsv.gz")
        if (row["task"], row["split"]) == ("STSB", "test")
    ]
    pairs = [(row["sentence1"], row["sentence2"], float(row["score"])) for row in rows]
    assert len(pairs) == 1379
    measured = scores(MTEBEncoder(), [sts(pairs)])["STSBenchmark"]["cosine_spearman"]
    assert measured == pytest.approx(
        0.8203, abs=0.0025
    )  # all-MiniLM-L6-v2 in fp32, benchmarks/results/sts.json


def test_cranfield_has_the_score_of_our_own_evaluation(data: Path) -> None:
    evaluate = pytest.importorskip("embedkit.training.evaluate", reason="the training package needs torch")
    encoder = Encoder(max_length=64)  # for speed; the abstracts are longer
    expected = evaluate.cranfield(encoder, data)
    documents = {row["doc_id"]: row["text"] for row in table(data / "retrieval" / "docs.tsv.gz")}
    queries = {row["query_id"]: row["text"] for row in table(data / "retrieval" / "queries.tsv.gz")}
    relevant: dict[str, dict[str, int]] = {}
    for row in table(data / "retrieval" / "qrels.tsv.gz"):
        gain = int(float(row["rel"]))
        if gain > 0:
            relevant.setdefault(row["query_id"], {})[row["doc_id"]] = gain
    measured = scores(MTEBEncoder(encoder), [retrieval(documents, queries, relevant)])["LocalRetrieval"]
    assert measured["ndcg_at_10"] == pytest.approx(expected.ndcg_at_10, abs=0.01)
