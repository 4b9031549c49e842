"""The minBERT multitask system: losses in numpy, tasks with one and two sentences, a small training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from embedkit.training.data.readers import Table, read
from embedkit.training.data.store import TextStore
from embedkit.training.model import ModelOptions
from embedkit.training.objectives.minbert import MinBert, MinBertOptions, score_classes, sts_loss
from embedkit.training.trainer import train
from objective_fixtures import losses, make_recipe, sts_source, write_nli, write_sts

SCORES = np.array([0.2, 4.0, 2.5, 5.0])
LABELS = np.array([0.0, 2.0, 2.8, 4.2])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", (SCORES - LABELS) ** 2),
        ("l1", np.abs(SCORES - LABELS)),
        ("hinge", np.maximum(np.abs(SCORES - LABELS) - 0.5, 0)),
    ],
)
def test_sts_losses(loss: str, expected: np.ndarray) -> None:
    found = sts_loss(torch.tensor(SCORES), torch.tensor(LABELS), loss, 0.5)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_a_score_is_split_between_its_neighbors() -> None:
    expected = np.zeros((4, 6))
    for row, y in zip(expected, LABELS, strict=True):
        low = int(y)
        row[low] = low + 1 - y
        if y > low:
            row[low + 1] = y - low
    found = score_classes(torch.tensor(LABELS), 5).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(found @ np.arange(6), LABELS, atol=1e-12)


def sources(folder: Path, rows: int, seed: int) -> dict[str, dict[str, Any]]:
    nli = write_nli(folder / f"nli{seed}.tsv", rows, seed)
    labels = ["entailment", "neutral", "contradiction"]
    return {
        "sentiment": {
            "path": str(nli),
            "columns": {"text1": "hypothesis", "label": "label"},
            "labels": labels,
        },
        "paraphrase": {
            "path": str(nli),
            "columns": {"text1": "premise", "text2": "hypothesis", "label": "label"},
            "where": {"label": labels[:2]},
            "labels": labels[:2],
        },
        "sts": sts_source(write_sts(folder / f"sts{seed}.tsv", rows, seed)),
    }


def objective_of(model: Path, folder: Path, **options: Any) -> tuple[MinBert, dict[str, Any]]:
    tables = {task: read(source) for task, source in sources(folder, 12, 0).items()}
    chosen = MinBertOptions(**options)
    torch.manual_seed(0)
    encoder = MinBert.load_encoder(ModelOptions(str(model), max_length=32), chosen, tables)
    return MinBert(encoder, chosen, tables).eval(), tables


def run(
    objective: MinBert, tables: dict[str, Any], task: str
) -> tuple[dict[str, Any], list[np.ndarray], Any]:
    """Outputs of a task's head for its whole table, its vectors by field, and its labels."""
    table = tables[task]
    columns = [table.texts(field) for field in objective.fields_of(task, table)]
    store = TextStore(objective.encoder.tokenizer_folder, [text for column in columns for text in column], 32)
    texts = store.rows.reshape(len(columns), -1).T.astype(np.int64)
    batch = objective.collate(store, texts, objective.prepare(task, table, Path()))
    with torch.no_grad():
        found = objective(task=torch.tensor(objective.tasks.index(task)), **batch)
    vectors = [objective.encoder.encode(column).astype(np.float64) for column in columns]
    return {name: value.double().numpy() for name, value in found.items()}, vectors, table["label"]


def linear(layer: Any, x: np.ndarray) -> np.ndarray:
    weight, bias = (p.detach().double().numpy() for p in (layer.weight, layer.bias))
    return x @ weight.T + bias


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_the_sentiment_head(make_model: Callable[..., Path], tmp_path: Path) -> None:
    objective, tables = objective_of(make_model(), tmp_path)
    found, (u,), y = run(objective, tables, "sentiment")
    logits = linear(objective.sentiment, u)
    np.testing.assert_allclose(found["logits"], logits, atol=1e-5)
    assert found["loss"] == pytest.approx(-log_softmax(logits)[np.arange(12), y].mean(), rel=1e-4)


@pytest.mark.parametrize("kind", ["u.v", "u,v,u*v", "u,v,|u-v|"])
def test_paraphrase_heads(make_model: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    objective, tables = objective_of(make_model(), tmp_path, paraphrase=kind)
    found, (u, v), y = run(objective, tables, "paraphrase")
    seen = {
        "u.v": (u * v).sum(1, keepdims=True),
        "u,v,u*v": np.hstack([u, v, u * v]),
        "u,v,|u-v|": np.hstack([u, v, np.abs(u - v)]),
    }[kind]
    logit = linear(objective.paraphrase, seen)[:, 0]
    np.testing.assert_allclose(found["logit"], logit, rtol=1e-3, atol=1e-4)
    assert found["loss"] == pytest.approx((np.log1p(np.exp(logit)) - y * logit).mean(), rel=1e-3)


@pytest.mark.parametrize(
    ("loss", "similarity"), [("mse", "cosine"), ("l1", "u.v"), ("cross_entropy", "cosine")]
)
def test_sts_heads(make_model: Callable[..., Path], tmp_path: Path, loss: str, similarity: str) -> None:
    objective, tables = objective_of(make_model(), tmp_path, sts_loss=loss, sts_similarity=similarity)
    found, (u, v), y = run(objective, tables, "sts")
    if loss == "cross_entropy":
        log_q = log_softmax(linear(objective.sts, np.hstack([u, v, np.abs(u - v)])))
        score, expected = np.exp(log_q) @ np.arange(6), -log_q[np.arange(12), y.astype(int)].mean()
    elif similarity == "u.v":
        score = linear(objective.sts, (u * v).sum(1, keepdims=True))[:, 0]
        expected = np.abs(score - y).mean()
    else:
        score = 5 * (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
        expected = ((score - y) ** 2).mean()
    np.testing.assert_allclose(found["score"], score, rtol=1e-3, atol=1e-4)
    assert found["loss"] == pytest.approx(expected, rel=1e-3)


def test_the_softmax_baseline_of_the_report(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """A softmax for every task, over the dot product for pairs, with dropout of the vectors before the product."""
    options = {"paraphrase": "u.v", "paraphrase_loss": "softmax", "sts_loss": "cross_entropy"}
    objective, tables = objective_of(
        make_model(), tmp_path, **options, sts_features="u.v", dropout_of="vectors", dropout=0.5
    )
    found, (u, v), y = run(objective, tables, "paraphrase")
    dot = (u * v).sum(1, keepdims=True)
    logits = linear(objective.paraphrase, dot)
    assert logits.shape == (len(y), 2)
    np.testing.assert_allclose(found["logit"], logits[:, 1] - logits[:, 0], rtol=1e-3, atol=1e-4)
    expected = -log_softmax(logits)[np.arange(len(y)), y.astype(int)].mean()
    assert found["loss"] == pytest.approx(expected, rel=1e-3)

    found, (u, v), y = run(objective, tables, "sts")
    log_q = log_softmax(linear(objective.sts, (u * v).sum(1, keepdims=True)))
    assert log_q.shape == (len(y), 6)
    np.testing.assert_allclose(found["score"], np.exp(log_q) @ np.arange(6), rtol=1e-3, atol=1e-4)
    assert found["loss"] == pytest.approx(-log_q[np.arange(len(y)), y.astype(int)].mean(), rel=1e-3)


@pytest.mark.parametrize(("of", "columns"), [("vectors", True), ("features", False)])
def test_what_dropout_is_applied_to(
    make_model: Callable[..., Path], tmp_path: Path, of: str, columns: bool
) -> None:
    objective, _ = objective_of(make_model(), tmp_path, dropout=0.5, dropout_of=of, paraphrase="u*v")
    seen: list[Any] = []
    objective.dropout.train()
    objective.dropout.register_forward_hook(lambda _, given, out: seen.append((given[0], out)))
    u = torch.ones(2, 4, objective.encoder.dimension)
    objective.encode = lambda *_: u  # type: ignore[method-assign]
    objective.options = MinBertOptions(dropout_of=of, paraphrase="u*v")
    none = torch.zeros(0, dtype=torch.int64)
    task = torch.tensor(objective.tasks.index("paraphrase"))
    objective(task=task, input_ids=none, cu_seqlens=none, label=torch.zeros(4, dtype=torch.int64))
    ((given, out),) = seen  # once, not twice
    assert given.shape == (u.shape if columns else u[0].shape)
    assert set(out.unique().tolist()) == {0.0, 2.0}


def test_scores_and_their_mean(make_model: Callable[..., Path], tmp_path: Path) -> None:
    objective, _ = objective_of(make_model(), tmp_path)
    scores = {
        **objective.score("sentiment", {"logits": np.eye(3)}, {"label": np.array([0, 1, 1])}),
        **objective.score("sts", {"score": SCORES}, {"label": LABELS}),
    }
    assert scores["accuracy"] == pytest.approx(200 / 3)
    centred = [x - x.mean() for x in (SCORES, LABELS)]
    pearson = (centred[0] @ centred[1]) / np.sqrt((centred[0] @ centred[0]) * (centred[1] @ centred[1]))
    assert scores["pearson"] == pytest.approx(100 * pearson)
    assert objective.summary({"a": 50.0, "b": 70.0, "c": 90.0}) == {"mean": 70.0}


def test_what_does_not_fit_is_refused(make_model: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"objective\.sts_loss"):
        MinBertOptions(sts_loss="kl")
    objective, tables = objective_of(make_model(), tmp_path)
    with pytest.raises(ValueError, match="has no head"):
        objective.check("evaluation.dev.mood", "mood", tables["sentiment"])
    with pytest.raises(ValueError, match="not a task of minbert"):
        MinBert(objective.encoder, MinBertOptions(), {"mood": tables["sentiment"]})
    with pytest.raises(ValueError, match=r"two classes, no and then yes: data\.paraphrase\.labels"):
        MinBert(objective.encoder, MinBertOptions(), {"paraphrase": tables["sentiment"]})
    with pytest.raises(ValueError, match=r"data\.sts needs scores"):
        objective.check("data.sts", "sts", tables["paraphrase"])
    with pytest.raises(ValueError, match=r"data\.paraphrase has the classes .*, and the classifier"):
        objective.check("data.paraphrase", "paraphrase", tables["sts"])
    sts = tables["sts"]
    negative = Table({**{name: sts[name] for name in sts.names}, "label": -sts["label"] - 1})
    with pytest.raises(ValueError, match="so that they start at 0"):
        objective.check("data.sts", "sts", negative)


def test_a_balanced_fraction_of_a_source(tmp_path: Path) -> None:
    source = sources(tmp_path, 60, 3)["sentiment"]
    table = read({**source, "balanced_fraction": 0.25})
    assert np.bincount(table["label"]).tolist() == [5, 5, 5]
    with pytest.raises(ValueError, match="balanced_fraction"):
        read({**source, "balanced_fraction": "half"})


def test_classes_are_drawn_equally_often(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """An epoch of a quarter of the rows, with replacement, as torch's WeightedRandomSampler."""
    data = {"sentiment": sources(tmp_path, 120, 1)["sentiment"] | {"weighted_fraction": 0.25}}
    result = train(make_recipe({"name": "minbert"}, make_model(), data, batch_size=10), tmp_path / "run")
    assert (result["steps"], result["examples"]) == (3, {"sentiment": 120})


@pytest.mark.parametrize("schedule", ["sequential", "round_robin", "annealed"])
def test_it_learns_three_tasks(make_model: Callable[..., Path], tmp_path: Path, schedule: str) -> None:
    data, dev = sources(tmp_path, 160, 1), sources(tmp_path, 60, 2)
    data["paraphrase"]["balanced_fraction"] = 0.5
    recipe = make_recipe(
        {"name": "minbert"},
        make_model(),
        data,
        dev,
        "mean",
        epochs=3,
        schedule=schedule,
        learning_rate=2e-3,
        eval_steps=0.5,
    )
    result = train(recipe, tmp_path / "run")
    scores = result["dev"]
    tasks = [scores[name] for name in ("sentiment_accuracy", "paraphrase_accuracy", "sts_pearson")]
    assert scores["mean"] == pytest.approx(np.mean(tasks))
    assert result["majority"] == {"sentiment": pytest.approx(100 / 3), "paraphrase": 50.0}
    assert result["examples"] == {"sentiment": 160, "paraphrase": 54, "sts": 160}
    assert scores["mean"] > (33.4 + 50 + 0) / 3 + 20
    history = losses(tmp_path / "run")
    assert len(history) == result["steps"]
    epoch = len(history) // 3  # of all three tasks, in each schedule
    assert np.mean(history[-epoch:]) < 0.5 * np.mean(history[:epoch])
