"""Dev scores that do not depend on the objective select the best checkpoint; held-out examples; an evaluator."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tensorboard")
metrics = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")

from embedkit.training.data.checks import check
from embedkit.training.data.holdout import hold_out
from embedkit.training.data.readers import Table
from embedkit.training.dev import DevSets
from embedkit.training.evaluate.collection import collection_quality, read_collection
from embedkit.training.model import ModelOptions, SentenceModel
from embedkit.training.recipe import EvaluationOptions, Recipe, recipe_of
from embedkit.training.trainer import train
from objective_fixtures import nli_source, sts_source, write_nli, write_sts
from transformers.trainer_callback import TrainerCallback

from embedkit import Encoder

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def collection(tmp_path: Path) -> dict[str, str]:
    """Five documents, one of them blank, and three queries, one without a relevant document."""
    (tmp_path / "q.tsv").write_text(
        "query_id\ttext\na\tthe people use water\nb\tmany days\nc\tnot judged\n", encoding="utf-8"
    )
    documents = ["the people find water", "many people", "the weather day", "", "time and night"]
    rows = "".join(f"d{i}\t{text}\n" for i, text in enumerate(documents))
    (tmp_path / "d.tsv").write_text("doc_id\ttext\n" + rows, encoding="utf-8")
    judged = "a\td0\t2\na\td1\t1\na\td2\t0\nb\td2\t1\nb\td3\t1\nc\td4\t0\n"
    (tmp_path / "r.tsv").write_text("query_id\tdoc_id\trel\n" + judged, encoding="utf-8")
    return {"queries": "q.tsv", "documents": "d.tsv", "judgments": "r.tsv"}


@pytest.fixture
def content(make_model: Callable[..., Path], tmp_path: Path, collection: dict[str, str]) -> dict[str, Any]:
    files = {part: str(tmp_path / file) for part, file in collection.items()}
    return {
        "objective": {"name": "sbert"},
        "model": {"path": str(make_model()), "dropout": 0.0, "max_length": 64},
        "data": {"nli": nli_source(write_nli(tmp_path / "train.tsv", 96, 1))},
        "training": {"batch_size": 8, "learning_rate": 1e-3, "logging_steps": 1, "eval_steps": 4},
        "evaluation": {
            "pairs": {"mine": sts_source(write_sts(tmp_path / "pairs.tsv", 40, 3))},
            "retrieval": {"small": files},
            "select": "mine_spearman",
        },
    }


def make(content: dict[str, Any], **training: Any) -> Recipe:
    return recipe_of({**content, "training": {**content["training"], **training}}, "test", "test")


def test_the_scores_are_those_of_the_written_model(content: dict[str, Any], tmp_path: Path) -> None:
    """Spearman by scipy and nDCG by scikit-learn, of the saved folder's vectors."""
    result = train(make(content), tmp_path / "run")
    assert result["best_step"] in (4, 8, 12)
    assert [entry["step"] for entry in result["curve"]] == [0, 4, 8, 12]
    best = max(entry["mine_spearman"] for entry in result["curve"] if entry["step"])
    assert result["dev"]["mine_spearman"] == pytest.approx(best, abs=1e-3)

    encoder = Encoder(tmp_path / "run" / "model")
    rows = [line.split("\t") for line in (tmp_path / "pairs.tsv").read_text().splitlines()[1:]]
    left, right = (encoder.encode([row[i] for row in rows], normalize_embeddings=True) for i in (0, 1))
    expected = stats.spearmanr((left * right).sum(1), [float(row[2]) for row in rows]).statistic
    assert result["dev"]["mine_spearman"] == pytest.approx(100 * expected, abs=0.5)  # near ties

    documents = ["the people find water", "many people", "the weather day", "time and night"]
    queries = encoder.encode(["the people use water", "many days"], normalize_embeddings=True)
    similarity = queries @ encoder.encode(documents, normalize_embeddings=True).T
    gains = np.array([[2, 1, 0, 0], [0, 0, 1, 0]])
    assert result["dev"]["small_ndcg"] == pytest.approx(100 * metrics.ndcg_score(gains, similarity), abs=1e-3)
    assert "sentences of mine (dev) seen" in result["data"]["nli"]


def test_an_evaluator_and_callbacks_from_python(content: dict[str, Any], tmp_path: Path) -> None:
    """Its scores select and stop as the recipe's own do."""
    scores = iter([50.0, 60.0, 55.0, 52.0])  # at steps 0, 2, 4 and 6; those of the kept model are known
    seen: list[int] = []

    class Steps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append(state.global_step)

    def evaluate(encoder: Any) -> dict[str, float]:
        assert encoder.encode(["a day"]).shape == (1, 32)
        return {"score": next(scores), "constant": 1.0}

    content["evaluation"] = {"select": "own_score"}
    result = train(
        make(content, eval_steps=2, early_stopping=2),
        tmp_path / "run",
        evaluators={"own": evaluate},
        callbacks=[Steps()],
    )
    assert (result["steps"], result["best_step"]) == (6, 2)
    assert result["dev"] == {"own_score": 60.0, "own_constant": 1.0}
    assert seen == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match=r"evaluation\.select names a dev score, but there is none"):
        train(make(content), tmp_path / "none")


def test_dev_scores_of_one_name_are_refused(content: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two dev scores are named 'mine_spearman'; rename"):
        train(make(content, max_steps=1), tmp_path / "run", evaluators={"mine_spearman": lambda encoder: 1.0})
    assert not list((tmp_path / "run").rglob("checkpoint-*"))


def all_texts(_: str, table: Table) -> tuple[str, ...]:
    return table.text_names


def test_held_out_examples_share_no_text_with_training(tmp_path: Path) -> None:
    pairs = Table({"text1": [f"a{i % 40}" for i in range(200)], "text2": [f"b{i}" for i in range(200)]})
    single = Table({"text": [f"a{i}" for i in range(60)], "label": np.arange(60)})
    left, held = hold_out({"pairs": pairs, "single": single}, 5, all_texts)
    assert [len(table) for table in held.values()] == [5, 5]
    texts = {
        text
        for table, names in ((held["pairs"], ("text1", "text2")), (held["single"], ("text",)))
        for name in names
        for text in table.texts(name)
    }
    assert not texts & {
        *left["pairs"].texts("text1"),
        *left["pairs"].texts("text2"),
        *left["single"].texts("text"),
    }
    gone = {text for text in pairs.texts("text1") if text in texts}
    assert len(left["pairs"]) == sum(text not in gone for text in pairs.texts("text1"))
    again, _ = hold_out({"pairs": pairs, "single": single}, 5, all_texts)
    assert list(again["pairs"].texts("text2")) == list(left["pairs"].texts("text2"))
    with pytest.raises(ValueError, match=r"data\.single has only 60 examples"):
        hold_out({"pairs": pairs, "single": single}, 60, all_texts)
    with pytest.raises(ValueError, match=r"every example of data\.same shares a text"):
        hold_out({"same": Table({"text": ["a"] * 9})}, 1, all_texts)


def test_held_out_texts_are_compared_as_leaks_are() -> None:
    table = Table({"text": [f"a text {i}" for i in range(20)] + [f"A  Text {i}" for i in range(20)]})
    left, held = hold_out({"one": table}, 5, all_texts)
    found = check(left["one"], {"dev": [(text, text) for text in held["one"].texts("text")]}, ["text"])
    assert found.overlaps["dev"].seen_sentences == 0


def test_sets_of_one_name_are_both_checked(content: dict[str, Any], tmp_path: Path) -> None:
    evaluation = content["evaluation"]
    evaluation["retrieval"]["mine"] = evaluation["retrieval"].pop("small")
    evaluation["dev"] = {"mine": nli_source(tmp_path / "train.tsv")}
    recipe = make(content, epochs=0)
    pairs = len(DevSets(recipe.evaluation, Path()).texts()["mine"])
    assert pairs == 40 + 2  # scored pairs, and queries
    data = train(recipe, tmp_path / "run")["data"]["nli"]
    assert data["also in mine (dev)"] == data["rows"]


def test_scores_of_a_mapped_model_are_those_of_its_folder(
    make_model: Callable[..., Path], tmp_path: Path, content: dict[str, Any]
) -> None:
    folder = shutil.copytree(make_model(), tmp_path / "model")
    settings = {"prompts": {"query": "the day ", "document": "many people find water "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings), encoding="utf-8")
    (tmp_path / "texts.txt").write_text(
        "\n".join(f"the day {i} people find {i % 7}" for i in range(99)), encoding="utf-8"
    )
    recipe = recipe_of(
        {
            "postprocess": {"name": "linear_map", "dimension": 8},
            "model": {"path": str(folder)},
            "data": {"texts": {"path": str(tmp_path / "texts.txt")}},
            "evaluation": {
                "retrieval": content["evaluation"]["retrieval"],
                "pairs": {"mine": {**content["evaluation"]["pairs"]["mine"], "prompts": {"text1": "night "}}},
            },
        },
        "test",
        "test",
    )
    result = train(recipe, tmp_path / "run")
    sets = DevSets(recipe.evaluation, Path())
    assert result["dev"] == pytest.approx(sets.scores(Encoder(tmp_path / "run" / "model")), abs=1e-4)
    source = {**recipe.data["texts"], "prompts": {"text": "water "}}
    train(dataclasses.replace(recipe, data={"texts": source}), tmp_path / "prompted")
    mapped = [Encoder(tmp_path / name / "model").encode("the day") for name in ("run", "prompted")]
    assert np.abs(mapped[0] - mapped[1]).max() > 1e-3  # fitted on other texts
    by_default = shutil.copytree(folder, tmp_path / "default")
    settings["default_prompt_name"] = "query"  # which texts with a prompt of their own do without
    (by_default / "config_sentence_transformers.json").write_text(json.dumps(settings), encoding="utf-8")
    other = dataclasses.replace(recipe, data={"texts": source}, model=ModelOptions(str(by_default)))
    train(other, tmp_path / "alone")
    with pytest.raises(ValueError, match=r"set only model\.path"):
        train(dataclasses.replace(recipe, model=ModelOptions(str(folder), max_length=8)), tmp_path / "cut")
    alone = Encoder(tmp_path / "alone" / "model").encode("the day", prompt="")
    np.testing.assert_allclose(alone, mapped[1], atol=1e-5)


def test_held_out_examples_may_share_what_is_no_text(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """A source is a column of strings, but none that the objective reads."""
    rows = [f"the day {i}\tmany people {i}\t{i % 5}\t{'ab'[i % 2]}\tnews" for i in range(60)]
    header = "text1\ttext2\tlabel\tsource\tgenre\n"
    (tmp_path / "p.tsv").write_text(header + "\n".join(rows) + "\n", encoding="utf-8")
    recipe = recipe_of(
        {
            "objective": {"name": "cosent"},
            "model": {"path": str(make_model()), "dropout": 0.0, "max_length": 64},
            "data": {"pairs": {"path": str(tmp_path / "p.tsv")}},
            "training": {"batch_size": 16, "max_steps": 1},
            "evaluation": {"holdout": 10},
        },
        "test",
        "test",
    )
    result = train(recipe, tmp_path / "run")
    assert result["examples"] == {"pairs": 50}
    assert "pairs_spearman" in result["dev"]


def test_hpd_is_scored_on_held_out_sentences(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """R^2 of the student's vectors, as scikit-learn computes it from the written model and the teacher's."""
    words = "people water time day world weather night query document stadium".split()  # noqa: SIM905
    texts = [f"{a} {b} {c}" for a in words for b in words[:6] for c in words[:4]]
    (tmp_path / "s.tsv").write_text("text\n" + "\n".join(texts) + "\n", encoding="utf-8")
    teacher, student = make_model(seed=1), make_model()
    recipe = recipe_of(
        {
            "objective": {
                "name": "hpd",
                "teachers": [{"path": str(teacher), "precision": "fp32"}],
                "storage": "float32",
                "start": "least_squares",
            },
            "model": {"path": str(student), "dropout": 0.0, "projection": {"dimension": 8}, "max_length": 64},
            "data": {"sentences": {"path": str(tmp_path / "s.tsv")}},
            "training": {"batch_size": 16, "max_steps": 6, "eval_steps": 3, "learning_rate": 1e-4},
            "evaluation": {"holdout": 40},
        },
        "test",
        "test",
    )
    result = train(recipe, tmp_path / "run")
    assert result["examples"] == {"sentences": 200}
    assert result["dev"]["r2"] == result["dev"]["sentences_r2"] > 10
    _, held = hold_out({"sentences": Table({"text": texts})}, 40, all_texts)
    kept = [text for text in texts if text not in set(held["sentences"].texts("text"))]
    with Encoder(teacher, precision="fp32") as model:
        from sklearn.decomposition import PCA

        known = PCA(8, random_state=0).fit(model.encode(kept))
        wanted = known.transform(model.encode(held["sentences"].texts("text")))
    with Encoder(tmp_path / "run" / "model") as model:
        found = model.encode(held["sentences"].texts("text"))
    expected = metrics.r2_score(wanted, found, multioutput="variance_weighted")
    assert result["dev"]["r2"] == pytest.approx(100 * expected, abs=0.1)


def test_copies_of_held_out_texts_are_left_out(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """A paraphrase may be a text that is held out."""
    texts = [f"sentence number {n} of many" for n in range(60)]
    (tmp_path / "s.tsv").write_text("text\n" + "\n".join(texts) + "\n", encoding="utf-8")
    _, held = hold_out({"sentences": Table({"text": texts})}, 20, all_texts)
    kept = next(text for text in texts if text not in set(held["sentences"].texts("text")))
    copies = ["a copy", *held["sentences"].texts("text")]
    rows = [f"{kept}\t{copy}" for copy in copies]
    (tmp_path / "copies.tsv").write_text("\n".join(["text\tparaphrase", *rows]) + "\n", encoding="utf-8")
    recipe = recipe_of(
        {
            "objective": {
                "name": "hpd",
                "teachers": [{"path": str(make_model(seed=1)), "precision": "fp32"}],
                "augment": {"paraphrases": str(tmp_path / "copies.tsv")},
            },
            "model": {"path": str(make_model()), "projection": {"dimension": 4}, "max_length": 64},
            "data": {"sentences": {"path": str(tmp_path / "s.tsv")}},
            "training": {"batch_size": 16, "max_steps": 1, "eval_steps": 1},
            "evaluation": {"holdout": 20},
        },
        "test",
        "test",
    )
    assert train(recipe, tmp_path / "run")["examples"] == {"sentences": 41}


def test_pairs_with_prompts_are_compared_without_them(content: dict[str, Any], tmp_path: Path) -> None:
    source = content["evaluation"]["pairs"]["mine"]
    prompted = {**source, "prompts": {"text1": "query: ", "text2": "passage: "}}
    plain, found = (
        DevSets(EvaluationOptions(pairs={"mine": one}), tmp_path).texts() for one in (source, prompted)
    )
    assert found == plain and len(plain["mine"]) > 0


def test_a_collection_is_read_or_refused(collection: dict[str, str], tmp_path: Path) -> None:
    found = read_collection(collection, tmp_path)
    assert list(found.queries) == ["a", "b"]  # the third has no relevant document
    assert "d3" not in found.documents  # blank
    assert found.gains == {"a": {"d0": 2.0, "d1": 1.0}, "b": {"d2": 1.0}}

    class Known:
        def encode(self, texts: list[str]) -> np.ndarray:
            raise AssertionError

        def encode_query(self, texts: list[str]) -> np.ndarray:
            return np.array([[1.0, 0], [0, 1.0]])

        def encode_document(self, texts: list[str]) -> np.ndarray:
            return np.array([[1.0, 0], [0.9, 0.1], [0.1, 0.9], [0, 1]])

    quality = collection_quality(Known(), found)
    second = 1 / np.log2(3)
    assert quality.ndcg_at_10 == pytest.approx((1 + second) / 2)
    assert quality.mrr_at_10 == pytest.approx(0.75)
    (tmp_path / "named.tsv").write_text("id\tquestion\na\tx\nb\ty\nc\tz\n", encoding="utf-8")
    named = {"path": "named.tsv", "columns": {"query_id": "id", "text": "question"}}
    assert read_collection({**collection, "queries": named}, tmp_path).queries["a"] == "x"
    for change, message in (
        ({"queries": "named.tsv"}, r"no column 'query_id'; the columns are id, question"),
        ({"judgments": "q.tsv"}, "no column 'doc_id'"),
        ({"queries": {"path": "q.tsv", "columns": {"id": "x"}}}, "name the columns of query_id, text"),
        ({"documents": 5}, "documents is 5; give a file"),
    ):
        with pytest.raises(ValueError, match=message):
            read_collection({**collection, **change}, tmp_path)
    (tmp_path / "r.tsv").write_text("query_id\tdoc_id\trel\na\tzz\t1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="there is no doc_id 'zz'"):
        read_collection(collection, tmp_path)


@pytest.mark.parametrize("default", [{}, {"prompts": {"own": "many people "}, "default_prompt": "own"}])
def test_prompts_of_scored_pairs(content: dict[str, Any], tmp_path: Path, default: dict[str, Any]) -> None:
    """They are all that precedes the texts: the model's default prompt does not."""
    source = content["evaluation"]["pairs"]["mine"]
    model = SentenceModel.load(ModelOptions(content["model"]["path"], max_length=64, **default))
    found = {}
    for prompt in ("", "the weather "):
        options = EvaluationOptions(pairs={"mine": {**source, "prompts": {"text1": prompt}}})
        found[prompt] = DevSets(options, tmp_path).scores(model)["mine_spearman"]
    rows = [line.split("\t") for line in (tmp_path / "pairs.tsv").read_text().splitlines()[1:]]
    left = model.encode(["the weather " + row[0] for row in rows], prompt="")
    right = model.encode([row[1] for row in rows], prompt="")
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    expected = stats.spearmanr(cosines, [float(row[2]) for row in rows]).statistic
    assert found["the weather "] == pytest.approx(100 * expected, abs=0.5)
    assert found["the weather "] != found[""]
    with pytest.raises(ValueError, match="prompts: 'text3' is no field of scored pairs"):
        DevSets(EvaluationOptions(pairs={"mine": {**source, "prompts": {"text3": ""}}}), tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query_id": "b", "text": null}', r"q\.jsonl:2: text is None, which is neither text nor a number"),
        ('{"query_id": "b", "text": ["x"]}', r"q\.jsonl:2: text is \['x'\]"),
        ('{"query_id": null, "text": "x"}', r"q\.jsonl:2: query_id is None"),
        ('{"query_id": "b"}', r"q\.jsonl:2: no field 'text', which the first line has; add it"),
    ],
)
def test_values_of_a_collection_are_texts(
    line: str, message: str, collection: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "q.jsonl").write_text('{"query_id": "a", "text": "water", "unused": 1}\n' + line + "\n")
    with pytest.raises(ValueError, match=message):
        read_collection({**collection, "queries": "q.jsonl"}, tmp_path)
