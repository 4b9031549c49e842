"""Losses against those of sentence-transformers on the same vectors, values and gradients, and short trainings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
st = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

from embedkit.training.data.readers import Table
from embedkit.training.evaluate.collection import collection_quality, read_collection
from embedkit.training.objectives import gist, objective_class, triplet_distillation
from embedkit.training.objectives.angle import angle_similarity
from embedkit.training.objectives.cosent import CoSent, ranking_loss
from embedkit.training.objectives.distill_kl import DistillKlOptions, divergence
from embedkit.training.objectives.gist import GistOptions, guided_loss
from embedkit.training.objectives.margin_mse import MarginMse, margin_loss
from embedkit.training.objectives.simcse import SimCseOptions
from embedkit.training.objectives.symmetric import Symmetric
from embedkit.training.objectives.triplet_distillation import TripletDistillationOptions, dot_scores
from embedkit.training.objectives.vector_loss import ScoredPairsOptions, VectorLoss
from embedkit.training.teacher import TeacherOptions
from embedkit.training.trainer import train
from objective_fixtures import losses, make_recipe, sts_source, write_sts
from torch import Tensor, nn

import embedkit


class Encoder(nn.Module):
    dimension = 7


def vectors(fields: int, seed: int = 0, width: int = 7) -> Tensor:
    return torch.randn(fields, 6, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def compare(ours: Callable[[Tensor], Tensor], theirs: Callable[[list[Tensor]], Tensor], fields: int) -> None:
    """The same loss and the same gradient."""
    x, y = (vectors(fields).requires_grad_() for _ in range(2))
    a, b = ours(x), theirs(list(y.unbind()))
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    a.backward()
    b.backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-6)


SCORES = torch.tensor([0.0, 1.0, 1.0, 3.5, 5.0, 2.0], dtype=torch.float64)


def test_cosent() -> None:
    cosine = torch.nn.functional.cosine_similarity
    reference = st.CoSENTLoss(None)
    compare(
        lambda x: ranking_loss(cosine(x[0], x[1]), SCORES, 20.0),
        lambda y: reference.compute_loss_from_embeddings(y, SCORES),
        2,
    )


@pytest.mark.parametrize("width", [6, 7])
def test_angle(width: int) -> None:
    from sentence_transformers.util import pairwise_angle_sim

    u, v = vectors(2, 1, width)
    torch.testing.assert_close(angle_similarity(u, v), pairwise_angle_sim(u, v))
    reference = st.AnglELoss(None)
    compare(
        lambda x: ranking_loss(angle_similarity(x[0], x[1]), SCORES, 20.0),
        lambda y: reference.compute_loss_from_embeddings(y, SCORES),
        2,
    )


def test_margin_mse_and_divergence() -> None:
    teacher = vectors(1, 2)[0, :, :2]
    margin, kl = st.MarginMSELoss(None), st.DistillKLDivLoss(None, temperature=2.0)
    compare(
        lambda x: margin_loss(dot_scores(x), teacher),
        lambda y: margin.compute_loss_from_embeddings(y, teacher),
        3,
    )
    compare(
        lambda x: divergence(dot_scores(x), teacher, 2.0),
        lambda y: kl.compute_loss_from_embeddings(y, teacher),
        3,
    )


@pytest.mark.parametrize("fields", [2, 3])
@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_gist(fields: int, margin: float, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = vectors(fields, 3, 5)
    reference = object.__new__(st.GISTEmbedLoss)
    nn.Module.__init__(reference)
    settings = {
        "temperature": 0.1,
        "margin": margin,
        "margin_strategy": "absolute",
        "model": "m",
        "guide": "g",
    }
    settings |= {"contrast_anchors": True, "contrast_positives": True, "gather_across_devices": False}
    settings |= {"must_retokenize": False, "similarity_fct": nn.CosineSimilarity(dim=-1)}
    for name, value in {**settings, "cross_entropy_loss": nn.CrossEntropyLoss()}.items():
        setattr(reference, name, value)

    def theirs(own: list[Tensor]) -> Tensor:
        columns = {"m": own, "g": list(guide.unbind())}
        module = __import__(st.GISTEmbedLoss.__module__, fromlist=["embed_columns"])
        monkeypatch.setattr(module, "embed_columns", lambda model, features: columns[model])
        loss: Tensor = reference([{}] * fields, None)
        return loss

    compare(lambda x: guided_loss(x, guide, 0.1, margin), theirs, fields)


@pytest.mark.parametrize("fields", [2, 4])
def test_gist_of_two_processes_is_that_of_one(fields: int, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = vectors(fields, 3, 5)
    whole, halves = (vectors(fields).requires_grad_() for _ in range(2))
    expected = guided_loss(whole, guide, 0.1, 0.1)
    expected.backward()

    everything = [nn.functional.normalize(x, dim=-1) for side in (halves, guide) for x in side]
    losses = []
    for rank in range(2):
        part = slice(3 * rank, 3 * rank + 3)
        monkeypatch.setattr(
            gist, "gather", lambda x, part=part: next(y for y in everything if torch.equal(y[part], x))
        )
        monkeypatch.setattr(gist, "first_row", lambda count, rank=rank: rank * count)
        losses.append(guided_loss(halves[:, part], guide[:, part], 0.1, 0.1))
    found = torch.stack(losses).mean()
    found.backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(halves.grad, whole.grad)


@pytest.mark.parametrize("hard", [False, True])
def test_symmetric(hard: bool) -> None:
    ours = Symmetric(Encoder(), SimCseOptions(hard_negatives=hard), {})  # type: ignore[arg-type]
    reference = st.MultipleNegativesSymmetricRankingLoss(None)
    compare(
        lambda x: ours.loss(x, {}),
        lambda y: reference.compute_loss_from_embeddings(y, None),
        3 if hard else 2,
    )


def test_matryoshka_is_the_mean_over_the_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    x = vectors(3)
    for kind, options, targets in (
        (CoSent, ScoredPairsOptions([2, 4]), {"label": SCORES}),
        (MarginMse, TripletDistillationOptions([2, 4], teacher="t"), {"scores": vectors(1, 2)[0, :, :2]}),
    ):
        objective: VectorLoss = kind(Encoder(), options, {})  # type: ignore[arg-type]
        monkeypatch.setattr(objective, "encode", lambda *_: x)
        want = torch.stack([objective.loss(x[..., :width], targets) for width in (2, 4, 7)]).mean()
        none = torch.zeros(0)
        torch.testing.assert_close(objective(none, none, none, **targets)["loss"], want)
        with pytest.raises(ValueError, match="must be less than the 7"):
            kind(Encoder(), type(options)([7], **({"teacher": "t"} if kind is MarginMse else {})), {})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cosent", "angle"])
def test_scored_pairs_learn(name: str, make_model: Callable[..., Path], tmp_path: Path) -> None:
    data = sts_source(write_sts(tmp_path / "train.tsv", 160, 1))
    dev = sts_source(write_sts(tmp_path / "dev.tsv", 40, 2))
    recipe = make_recipe({"name": name}, make_model(), {"sts": data}, {"sts": dev}, "sts_spearman", epochs=3)
    result = train(recipe, tmp_path / "run")
    assert len(losses(tmp_path / "run")) == 30
    assert result["dev"]["sts_spearman"] > 30


def triplets(path: Path) -> dict[str, Any]:
    rows = ["anchor\tpositive\tnegative"]
    for noun in ("people", "water", "time", "day", "world", "weather", "night", "query"):
        rows += [
            f"the {noun} {verb}\tmany {noun} {verb}\tnot {verb}" for verb in ("use", "find", "see", "make")
        ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return {"path": str(path)}


def test_a_guided_training(make_model: Callable[..., Path], tmp_path: Path) -> None:
    objective = {"name": "gist", "guide": {"path": str(make_model(seed=3))}, "hard_negatives": True}
    source = triplets(tmp_path / "t.tsv")
    result = train(make_recipe(objective, make_model(), {"t": source}, {"t": source}), tmp_path / "run")
    assert result["steps"] == 2 and 0 <= result["dev"]["t_accuracy"] <= 100


def test_dot_products_are_learned_scored_and_saved(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dev scores of an objective that learns dot products, and the folder's similarity, are theirs."""
    monkeypatch.setattr(
        triplet_distillation,
        "teacher_outputs",
        lambda path, table, length, cache: np.linspace(-3, 3, len(table), dtype=np.float32)[:, None],
    )
    source = triplets(tmp_path / "t.tsv")
    (tmp_path / "q.tsv").write_text("query_id\ttext\n1\tthe people use\n2\tthe day see\n")
    (tmp_path / "d.tsv").write_text("doc_id\ttext\n1\tmany people use\n2\tmany day see\n3\tnot use\n")
    (tmp_path / "j.tsv").write_text("query_id\tdoc_id\trel\n1\t1\t1\n2\t2\t1\n")
    parts = {"queries": "q.tsv", "documents": "d.tsv", "judgments": "j.tsv"}
    objective = {"name": "margin_mse", "teacher": "none"}
    recipe = make_recipe(objective, make_model(), {"t": source}, {"t": source})
    recipe = dataclasses.replace(
        recipe,
        evaluation=dataclasses.replace(
            recipe.evaluation, retrieval={"own": {k: str(tmp_path / v) for k, v in parts.items()}}
        ),
    )
    result = train(recipe, tmp_path / "run")
    trained = embedkit.Encoder(tmp_path / "run" / "model")
    assert trained.similarity_fn_name == "dot"
    rows = [line.split("\t") for line in (tmp_path / "t.tsv").read_text().splitlines()[1:]]
    anchors, positives, negatives = (trained.encode(list(column)) for column in zip(*rows, strict=True))
    assert np.ptp(np.linalg.norm(anchors, axis=1)) > 0.01
    nearer = (anchors * positives).sum(1) > (anchors * negatives).sum(1)
    assert result["dev"]["t_accuracy"] == pytest.approx(100 * nearer.mean())
    collection = read_collection(recipe.evaluation.retrieval["own"], tmp_path)
    assert result["dev"]["own_mrr"] == pytest.approx(100 * collection_quality(trained, collection).mrr_at_10)
    ranks = (
        trained.encode(list(collection.queries.values()))
        @ trained.encode(list(collection.documents.values())).T
    )
    order = [sorted(range(3), key=lambda d, row=row: -row[d]).index(n) + 1 for n, row in enumerate(ranks)]
    assert result["dev"]["own_mrr"] == pytest.approx(100 * np.mean([1 / rank for rank in order]))


def test_targets_are_the_teachers_logits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from embedkit.training.objectives import triplet_distillation

    def outputs(path: str, table: Table, length: int, cache: Path) -> np.ndarray:
        return np.array([[float(text)] for text in table.texts("text2")], np.float32)

    monkeypatch.setattr(triplet_distillation, "teacher_outputs", outputs)
    table = Table({"anchor": ["a", "b"], "positive": ["20", "-1"], "negative": ["17", "0.5"]})
    options = TripletDistillationOptions(teacher="t")
    objective = MarginMse(Encoder(), options, {"t": table})  # type: ignore[arg-type]
    found = objective.prepare("t", table, tmp_path)["scores"]
    np.testing.assert_array_equal(found, [[20, 17], [-1, 0.5]])


def test_large_logits_of_a_teacher_are_kept(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """The sigmoid of logits above 17 is 1 in float32: all margins would be 0."""
    from embedkit.training.data.readers import read
    from embedkit.training.model import ModelOptions
    from embedkit.training.objectives.cross_encoder import PairClassifier

    teacher = PairClassifier.load(ModelOptions(str(make_model()), max_length=64), ["score"])
    with torch.no_grad():
        teacher.backbone.classifier.weight.normal_(generator=torch.Generator().manual_seed(0))
        teacher.backbone.classifier.bias.fill_(20.0)
    (tmp_path / "teacher").mkdir()
    teacher.save(tmp_path / "teacher")
    table = read(triplets(tmp_path / "t.tsv"))
    options = TripletDistillationOptions(teacher=str(tmp_path / "teacher"), teacher_max_length=64)
    objective = MarginMse(Encoder(), options, {"t": table})  # type: ignore[arg-type]
    found = objective.prepare("t", table, tmp_path)["scores"]
    expected = [teacher.logits(table.texts("anchor"), table.texts(name)) for name in ("positive", "negative")]
    np.testing.assert_allclose(found, np.concatenate(expected, axis=1), atol=1e-4)
    assert found.min() > 10 and (found[:, 0] - found[:, 1]).std() > 0.01


@pytest.mark.parametrize("core", [True, False])
def test_a_length_that_a_teacher_does_not_have(
    core: bool, make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedkit.training.model import ModelOptions
    from embedkit.training.objectives import teachers
    from embedkit.training.objectives.cross_encoder import PairClassifier

    (tmp_path / "teacher").mkdir()
    PairClassifier.load(ModelOptions(str(make_model()), max_length=64), ["score"]).save(tmp_path / "teacher")
    monkeypatch.setattr(teachers, "_runs_in_core", lambda *_, **__: core)
    table = Table({"anchor": ["a"], "positive": ["b"], "negative": ["c"]})
    options = TripletDistillationOptions(teacher=str(tmp_path / "teacher"))
    objective = MarginMse(Encoder(), options, {"t": table})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^the teacher .*/teacher: objective\.teacher_max_length .* 64"):
        objective.prepare("t", table, tmp_path)


@pytest.mark.parametrize("name", ["margin_mse", "gist"])
def test_dev_data_need_no_teacher(name: str, tmp_path: Path) -> None:
    """Which would be missed here: it does not exist."""
    options = {
        "margin_mse": TripletDistillationOptions(teacher="none"),
        "gist": GistOptions(guide=TeacherOptions("none"), hard_negatives=True),
    }
    columns = {"anchor": ["a"], "positive": ["b"], "negative": ["c"]}
    objective = objective_class(name)(Encoder(), options[name], {"t": Table(columns)})
    assert objective.prepare("t", Table(columns), tmp_path) == {}
    objective.encode = lambda *_: vectors(3)  # type: ignore[method-assign]
    with torch.inference_mode():
        found = objective(task=torch.tensor(0), input_ids=torch.zeros(0), cu_seqlens=torch.zeros(0))
    assert found.keys() == {"similarity"} and found["similarity"].shape == (6, 2)


def test_the_vectors_of_a_guide_stay_on_disk(make_model: Callable[..., Path], tmp_path: Path) -> None:
    table = Table({"anchor": ["a day", "b", "a day"], "positive": ["people", "water", "b"]})
    options = GistOptions(guide=TeacherOptions(str(make_model(seed=3))))
    objective = gist.Gist(Encoder(), options, {"t": table})  # type: ignore[arg-type]
    found = objective.prepare("t", table, tmp_path)["guide"]
    assert isinstance(found, np.memmap) and found.shape == (3, 2, 32)
    with embedkit.Encoder(make_model(seed=3)) as model:
        for column, name in enumerate(table.names):
            np.testing.assert_allclose(found[:, column], model.encode(table.texts(name)), atol=1e-5)


def test_only_the_order_of_scores_counts() -> None:
    """So they may have any range."""
    objective = CoSent(Encoder(), ScoredPairsOptions(), {})  # type: ignore[arg-type]
    objective.check(
        "data.t", "t", Table({"text1": ["a"] * 2, "text2": ["b"] * 2, "label": np.array([-1, 7.0])})
    )


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"objective\.guide is missing"):
        GistOptions()
    with pytest.raises(ValueError, match=r"objective\.teacher is missing"):
        TripletDistillationOptions()
    with pytest.raises(ValueError, match="temperature must be positive"):
        DistillKlOptions(teacher="t", temperature=0)
    with pytest.raises(ValueError, match="scale must be positive"):
        ScoredPairsOptions(scale=0)
    guide = TeacherOptions("unused")
    for options in (
        lambda: GistOptions(guide=guide, negatives=2),
        lambda: SimCseOptions(hard_negatives=False, negatives=2),
    ):
        with pytest.raises(
            ValueError, match=r"objective\.negatives is 2, but objective\.hard_negatives is false"
        ):
            options()
