"""SBERT's losses against their formulas in numpy, and small trainings of each."""

from __future__ import annotations

import json
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
from embedkit.training.objectives.base import check_scale, check_scores
from embedkit.training.objectives.sbert import CONCATENATIONS, Sbert, SbertOptions, features
from embedkit.training.recipe import find_recipe, list_recipes, load_recipe
from embedkit.training.trainer import train
from objective_fixtures import losses, make_recipe, nli_source, sts_source, write_nli, write_sts

RANDOM = np.random.default_rng(0)
U, V = RANDOM.normal(size=(2, 4, 3))
SEEN = {
    "u,v": np.hstack([U, V]),
    "|u-v|": np.abs(U - V),
    "u*v": U * V,
    "|u-v|,u*v": np.hstack([np.abs(U - V), U * V]),
    "u,v,u*v": np.hstack([U, V, U * V]),
    "u,v,|u-v|": np.hstack([U, V, np.abs(U - V)]),
    "u,v,|u-v|,u*v": np.hstack([U, V, np.abs(U - V), U * V]),
    "u.v": (U * V).sum(1, keepdims=True),
}


@pytest.mark.parametrize("concatenation", CONCATENATIONS)
def test_what_the_classifier_sees(concatenation: str) -> None:
    found = features(torch.tensor(U), torch.tensor(V), concatenation)
    np.testing.assert_allclose(found.numpy(), SEEN[concatenation], rtol=1e-12)


def run(
    model: Path, table: Table, pooling: str = "mean", **options: Any
) -> tuple[Sbert, dict[str, Any], list[np.ndarray]]:
    """The objective, its outputs for a whole table, and the vectors of each field."""
    chosen = SbertOptions(**options)
    torch.manual_seed(0)
    encoder = Sbert.load_encoder(
        ModelOptions(str(model), max_length=64, pooling=pooling), chosen, {"task": table}
    )
    objective = Sbert(encoder, chosen, {"task": table}).eval()
    columns = [table.texts(field) for field in objective.fields]
    store = TextStore(encoder.tokenizer_folder, [text for column in columns for text in column], 64)
    texts = store.rows.reshape(len(columns), -1).T.astype(np.int64)
    with torch.no_grad():
        found = objective(
            task=torch.tensor(0),
            **objective.collate(store, texts, objective.prepare("task", table, Path())),
        )
    vectors = [encoder.encode(column).astype(np.float64) for column in columns]
    return objective, {name: value.double().numpy() for name, value in found.items()}, vectors


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_classification(make_model: Callable[..., Path], tmp_path: Path, pooling: str) -> None:
    table = read(nli_source(write_nli(tmp_path / "nli.tsv", 12, 0)))
    objective, found, (u, v) = run(make_model(), table, pooling)
    weight = objective.classifier.weight.detach().double().numpy()
    logits = np.hstack([u, v, np.abs(u - v)]) @ weight.T
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert found["loss"] == pytest.approx(-log_p[np.arange(12), table["label"]].mean(), rel=1e-4)


def test_regression(make_model: Callable[..., Path], tmp_path: Path) -> None:
    table = read(sts_source(write_sts(tmp_path / "sts.tsv", 12, 0)))
    _, found, (u, v) = run(make_model(), table, loss="regression")
    cosine = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    assert found["loss"] == pytest.approx(((cosine - table["label"] / 5) ** 2).mean(), rel=1e-4)


def triplets(path: Path, rows: int, seed: int) -> dict[str, Any]:
    """A sentence, its words in another order, and a sentence with another noun."""
    nli = write_nli(path, rows, seed).read_text(encoding="utf-8").splitlines()[1:]
    anchors = [line.split("\t")[0] for line in nli]
    lines = [
        f"{one}\t{' '.join(one.split()[::-1])}\t{other}"
        for one, other in zip(anchors, anchors[1:] + anchors[:1], strict=True)
        if one.split()[1] != other.split()[1]
    ]
    path.write_text("\n".join(["anchor\tpositive\tnegative", *lines]) + "\n", encoding="utf-8")
    return {"path": str(path)}


def test_triplets(make_model: Callable[..., Path], tmp_path: Path) -> None:
    table = read(triplets(tmp_path / "triplets.tsv", 12, 0))
    _, found, (a, p, n) = run(make_model(), table, loss="triplet", margin=0.7)
    distance = np.linalg.norm(a - p, axis=1) - np.linalg.norm(a - n, axis=1)
    assert found["loss"] == pytest.approx(np.maximum(distance + 0.7, 0).mean(), rel=1e-4)


def test_triplets_have_no_scale(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """A column ``label`` is not read, so its range does not matter: alone, and as one of several objectives."""
    rows = [
        {"anchor": f"a {i}", "positive": f"b {i}", "negative": f"c {i}", "label": i % 2} for i in range(16)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    triplet = {"name": "sbert", "loss": "triplet"}
    for number, objective in enumerate((triplet, {"name": "multi", "losses": {"t": triplet}})):
        recipe = make_recipe(objective, make_model(), {"t": {"path": str(tmp_path / "t.jsonl")}})
        assert train(recipe, tmp_path / f"run-{number}")["steps"] == 1


@pytest.mark.parametrize("loss", ["classification", "regression", "triplet"])
def test_it_learns(make_model: Callable[..., Path], tmp_path: Path, loss: str) -> None:
    make: Callable[[Path, int, int], dict[str, Any]] = {
        "classification": lambda path, rows, seed: nli_source(write_nli(path, rows, seed)),
        "regression": lambda path, rows, seed: sts_source(write_sts(path, rows, seed)),
        "triplet": triplets,
    }[loss]
    data, dev = make(tmp_path / "train.tsv", 240, 1), make(tmp_path / "dev.tsv", 60, 2)
    recipe = make_recipe(
        {"name": "sbert", "loss": loss}, make_model(), {"task": data}, {"task": dev}, epochs=3
    )
    result = train(recipe, tmp_path / "run")
    history = losses(tmp_path / "run")
    assert np.mean(history[-5:]) < 0.7 * np.mean(history[:5])
    least = {"classification": 33.4 + 25, "regression": 60, "triplet": 75}[loss]
    assert next(iter(result["dev"].values())) > least


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"objective\.loss"):
        SbertOptions(loss="hinge")
    with pytest.raises(ValueError, match=r"objective\.concatenation"):
        SbertOptions(concatenation="u+v")
    with pytest.raises(ValueError, match=r"objective\.max_score must be positive, not 0"):
        SbertOptions(loss="regression", max_score=0)


@pytest.mark.parametrize("name", sorted(list_recipes()))
def test_the_recipes_of_the_package_are_valid(name: str) -> None:
    recipe = load_recipe(find_recipe(name), ["training.seed=3"])
    assert recipe.description
    assert recipe.training.seed == 3


def test_dev_labels_that_the_head_does_not_know(make_model: Callable[..., Path], tmp_path: Path) -> None:
    nli = nli_source(write_nli(tmp_path / "n.tsv", 12, 1))
    sts = sts_source(write_sts(tmp_path / "s.tsv", 12, 1))
    other = {**nli, "labels": nli["labels"][::-1]}
    unnamed = {**nli, "columns": {"text1": "premise", "text2": "hypothesis"}}
    for loss, data, dev, message in (
        ("classification", nli, other, r"evaluation\.dev\.own has the classes"),
        ("classification", nli, sts, r"evaluation\.dev\.own has the classes \(none\)"),
        ("classification", nli, unnamed, r"evaluation\.dev\.own\.columns\.label"),
        ("regression", sts, nli, r"evaluation\.dev\.own needs scores"),
    ):
        recipe = make_recipe({"name": "sbert", "loss": loss}, make_model(), {"task": data}, {"own": dev})
        with pytest.raises(ValueError, match=message):
            train(recipe, tmp_path / f"{loss}-{len(message)}")


def test_labels_that_do_not_fit_the_loss(make_model: Callable[..., Path], tmp_path: Path) -> None:
    nli, sts = (
        nli_source(write_nli(tmp_path / "n.tsv", 12, 1)),
        sts_source(write_sts(tmp_path / "s.tsv", 12, 1)),
    )
    other = {**nli, "labels": nli["labels"][::-1]}
    unnamed = {**nli, "columns": {"text1": "premise", "text2": "hypothesis"}}
    for loss, data, message in (
        ("classification", {"sts": sts}, r"names of its classes: data\.sts\.labels"),
        ("classification", {"a": nli, "b": other}, r"data\.b\.labels are"),
        ("classification", {"nli": unnamed}, "needs the field label"),
        ("regression", {"nli": nli}, r"data\.nli needs scores"),
        ("triplet", {"nli": nli}, "no field 'anchor'"),
    ):
        recipe = make_recipe({"name": "sbert", "loss": loss}, make_model(), data)
        with pytest.raises(ValueError, match=message):
            train(recipe, tmp_path / f"{loss}-{len(message)}")
    recipe = make_recipe({"name": "sbert", "loss": "regression", "max_score": 4}, make_model(), {"sts": sts})
    with pytest.raises(ValueError, match="has the score 5, but"):
        train(recipe, tmp_path / "high")
    low = Table({"text1": ["a"], "text2": ["b"], "label": np.array([-1.0])})
    with pytest.raises(
        ValueError, match=r"data\.t has the score -1, .* add a number to all scores of the file"
    ):
        check_scores("data.t", low, 5.0)
    high = Table({"text1": ["a"], "text2": ["b"], "label": np.array([4.0])})
    ones = Table({"text1": ["a", "b"], "text2": ["b", "c"], "label": np.array([1.0, 0.2])})
    with pytest.raises(
        ValueError, match=r"no score of data\.a, data\.b is above 1, .* is 5: set objective\.max_score=1"
    ):
        check_scale(SbertOptions(loss="regression"), {"a": ones, "b": ones})
    check_scale(SbertOptions(loss="regression", max_score=1.0), {"a": ones})
    check_scale(SbertOptions(loss="regression"), {"a": ones, "b": high})
