"""HPD against its formula, its augmentation, its resume, and a run that learns."""

from __future__ import annotations

import dataclasses
import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("sklearn")

from embedkit.training.data.readers import Table
from embedkit.training.model import ModelOptions, Projection, SentenceModel
from embedkit.training.objectives.hpd import Augmentation, Hpd, HpdOptions, projective_loss, similarity_loss
from embedkit.training.recipe import Recipe
from embedkit.training.teacher import TeacherOptions
from embedkit.training.trainer import train
from objective_fixtures import _NOUNS, _VERBS, losses, make_recipe

from embedkit import Encoder

MakeModel = Callable[..., Path]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_loss_is_the_formula(reduction: str) -> None:
    random = np.random.default_rng(0)
    student, teacher = random.normal(size=(2, 6, 5))
    want = np.mean([np.linalg.norm(s - t) ** 2 for s, t in zip(student, teacher, strict=True)])
    want /= 1 if reduction == "sum" else 5
    got = projective_loss(torch.tensor(student), torch.tensor(teacher), reduction)
    assert got.item() == pytest.approx(want, rel=1e-12)
    leaf = torch.tensor(student, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: projective_loss(x, torch.tensor(teacher), reduction), leaf)


@pytest.mark.parametrize("texts", [1, 3])
def test_similarity_loss_is_the_formula(texts: int) -> None:
    random = np.random.default_rng(0)
    student, teacher = random.normal(size=(2, texts, 4, 5))
    cosines = [
        np.array([[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in flat] for a in flat])
        for flat in (student.reshape(-1, 5), teacher.reshape(-1, 5))
    ]
    error = np.square(cosines[0] - cosines[1])
    every = range(4 * texts)
    want = np.mean([error[i, j] for i in every for j in every if i != j])
    if texts > 1:
        want += np.mean([error[i, j] for i in every for j in every if i != j and i % 4 == j % 4])
    leaf = torch.tensor(student, requires_grad=True)
    assert similarity_loss(leaf, torch.tensor(teacher)).item() == pytest.approx(want, rel=1e-5)


def test_each_width_of_cosines_has_half_the_weight_of_the_one_before(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = HpdOptions([TeacherOptions("t")], reduction="cosine", similarity=3.0, matryoshka=[2, 4])
    encoder = SentenceModel.load(ModelOptions(str(make_model()), projection=Projection(8), max_length=32))
    objective = Hpd(encoder, options, {"t": Table({"text": ["a"]})})
    ours, theirs = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0)).unbind()
    monkeypatch.setattr(objective, "encode", lambda *_: ours[None])
    want = 0.0
    for width, weight in ((8, 1), (4, 0.5), (2, 0.25)):
        cosine = torch.cosine_similarity(ours[:, :width], theirs[:, :width])
        similarity = similarity_loss(ours[None, :, :width], theirs[None])
        want += weight * ((1 - cosine).mean() + 3 * similarity).item()
    none = torch.zeros(0)
    assert objective(none, none, none, teacher=theirs)["loss"].item() == pytest.approx(want, rel=1e-5)


def test_groups_of_related_texts(make_model: MakeModel, texts: list[str], tmp_path: Path) -> None:
    """Each text of a group learns its own target, and its distance to the others."""
    tables = {
        "single": Table({"text": texts[:40], "source": ["other columns are ignored"] * 40}),
        "pairs": Table({"anchor": texts[40:60], "positive": texts[60:80]}),
    }
    options = HpdOptions([TeacherOptions(str(make_model(seed=3)))], storage="float32", similarity=7)
    model = ModelOptions(str(make_model()), projection=Projection(8), max_length=32)
    objective = Hpd(SentenceModel.load(model), options, tables).eval()
    from embedkit.training.dataset import Examples

    examples = Examples(objective, tables, objective.encoder.tokenizer_folder, 32, tmp_path)
    batch = examples.batch([40 + 3, 40 + 11])
    together = objective._teachers.targets(texts[:80])  # type: ignore[union-attr]
    assert isinstance(examples.arrays("pairs")["teacher"], np.memmap)
    np.testing.assert_allclose(batch["teacher"][:, 0], together[[43, 51]], atol=1e-6)
    outputs = objective(**batch)
    vectors = objective.encoder.encode([texts[i] for i in (43, 51, 63, 71)])
    teacher = together[[43, 51, 63, 71]]
    cosine = similarity_loss(*(torch.tensor(x).view(2, 2, 8) for x in (vectors, teacher))).item()
    want = np.square(vectors - teacher).sum(1).mean() + 7 * cosine
    assert outputs["loss"].item() == pytest.approx(want, rel=1e-4)
    np.testing.assert_allclose(outputs["vectors"].detach()[1, 1], vectors[3], atol=1e-5)
    assert np.isfinite(objective.score("pairs", {"vectors": np.asarray(batch["teacher"])}, batch)["r2"])


def test_dev_tasks_have_their_own_fields(make_model: MakeModel, texts: list[str], tmp_path: Path) -> None:
    """Mined examples have three texts, the dev set's one; a dev task may have another name; a label is not a text."""
    options = HpdOptions([TeacherOptions(str(make_model(seed=3)))], mine=True)
    tables = Hpd.expand(options, {"t": Table({"text": texts[:40]})}, tmp_path, tmp_path)
    dev = Table({"text": texts[40:44]})
    labelled = Table({"left": texts[:2], "right": texts[2:4], "label": np.array([0.5, 1.0])})
    model = ModelOptions(str(make_model()), projection=Projection(8), max_length=32)
    objective = Hpd(SentenceModel.load(model), options, tables)
    assert objective.fields_of("t", tables["t"]) == ("text", "near", "far")
    assert objective.fields_of("t", dev) == ("text",)
    assert objective.fields_of("other", labelled) == ("left", "right")
    objective.prepare("t", tables["t"], tmp_path)
    assert objective.prepare("t", dev, tmp_path)["teacher"].shape == (4, 8)
    assert objective.prepare("other", labelled, tmp_path)["teacher"].shape == (2, 2, 8)
    with pytest.raises(ValueError, match="no task has a column text"):
        Hpd.expand(options, {"pairs": labelled}, tmp_path, tmp_path)
    one = {"teacher": np.ones((1, 8))}
    assert objective.score("t", {"vectors": np.ones((1, 8))}, one) == {}  # one text has no variance


def sentences(count: int, seed: int) -> list[str]:
    choose = random.Random(seed)
    parts = (_NOUNS, _VERBS, _NOUNS, ["not"], _VERBS)
    return ["the " + " ".join(map(choose.choice, parts)) for _ in range(count)]


def write_texts(path: Path, count: int, seed: int) -> dict[str, Any]:
    path.write_text("\n".join(sentences(count, seed)) + "\n", encoding="utf-8")
    return {"path": str(path)}


def make_hpd(make_model: MakeModel, folder: Path, activation: str = "identity", **training: Any) -> Recipe:
    objective = {"name": "hpd", "teachers": [{"path": str(make_model(seed=3, normalize=True))}]}
    data = {"t": write_texts(folder / "train.txt", 480, 1)}
    dev = {"t": write_texts(folder / "dev.txt", 60, 2)}
    recipe = make_recipe(objective, make_model(), data, dev, "t_r2", **training)
    model = dataclasses.replace(recipe.model, projection=Projection(8, activation))
    return dataclasses.replace(recipe, model=model)


def test_batch_holds_the_teachers_vectors(make_model: MakeModel, texts: list[str], tmp_path: Path) -> None:
    """A batch's loss is that of the texts' own targets, whichever task they belong to."""
    tables = {"a": Table({"text": texts[:90]}), "b": Table({"text": texts[60:160]})}
    options = HpdOptions([TeacherOptions(str(make_model(seed=3)))], storage="float32")
    model = ModelOptions(str(make_model()), projection=Projection(8), max_length=32)
    from embedkit.training.dataset import Examples

    objective = Hpd(SentenceModel.load(model), options, tables).eval()
    examples = Examples(objective, tables, objective.encoder.tokenizer_folder, 32, tmp_path)
    batch = examples.batch([95, 120])
    together = objective._teachers.targets(texts[:160])  # type: ignore[union-attr]
    np.testing.assert_allclose(batch["teacher"], together[[65, 90]], atol=1e-6)
    outputs = objective(**batch)
    want = np.square(objective.encoder.encode([texts[65], texts[90]]) - together[[65, 90]]).sum(1).mean()
    assert outputs["loss"].item() == pytest.approx(want, rel=1e-5)


def test_projection_starts_from_the_students_components(
    make_model: MakeModel, texts: list[str], tmp_path: Path
) -> None:
    from sklearn.decomposition import PCA

    tables = {"t": Table({"text": list(dict.fromkeys(texts))})}
    options = HpdOptions([TeacherOptions(str(make_model(seed=3)))], start="pca")
    model = ModelOptions(str(make_model()), projection=Projection(8), max_length=32)
    objective = Hpd(SentenceModel.load(model), options, tables)
    objective.prepare("t", tables["t"], tmp_path)
    bare = SentenceModel.load(dataclasses.replace(model, projection=None)).encode(tables["t"].texts("text"))
    want = bare @ PCA(8, svd_solver="full").fit(bare).components_.T
    got = objective.encoder.encode(tables["t"].texts("text"))
    np.testing.assert_allclose(got, want * np.sign((got * want).sum(0)), atol=5e-3)
    tanh = dataclasses.replace(model, projection=Projection(8, "tanh"))
    with pytest.raises(ValueError, match="needs a linear"):
        Hpd(SentenceModel.load(tanh), options, tables)


def test_projection_starts_from_the_regression_on_the_teacher(
    make_model: MakeModel, texts: list[str], tmp_path: Path
) -> None:
    """numpy's least squares with the penalty as further rows; on sentences of training better than any other start."""
    distinct = list(dict.fromkeys(texts))
    tables, unseen = {"t": Table({"text": distinct[:-20]})}, Table({"text": distinct[-20:]})
    model = ModelOptions(str(make_model()), projection=Projection(8), max_length=32)
    r2 = {}
    for start in ("random", "pca", "least_squares"):
        options = HpdOptions([TeacherOptions(str(make_model(seed=3)))], start=start, storage="float32")
        objective = Hpd(SentenceModel.load(model), options, tables)
        teacher = objective.prepare("t", tables["t"], tmp_path)["teacher"]
        outputs = {"vectors": objective.encoder.encode(tables["t"].texts("text"))}
        r2[start] = objective.score("t", outputs, {"teacher": teacher})["r2"]
    x = SentenceModel.load(dataclasses.replace(model, projection=None)).encode(distinct[:-20]).astype(float)
    center, mean = x.mean(0), teacher.mean(0)
    penalty = np.sqrt(1e-3 * len(x) * x.var(0).mean()) * np.eye(x.shape[1])
    rows = np.vstack([x - center, penalty]), np.vstack([teacher - mean, np.zeros((x.shape[1], 8))])
    weight = np.linalg.lstsq(*rows, rcond=None)[0]
    np.testing.assert_allclose(outputs["vectors"], (x - center) @ weight + mean, atol=1e-3)
    assert r2["least_squares"] > max(0.0, r2["random"], r2["pca"])
    held_out = objective.prepare("held_out", unseen, tmp_path)
    scores = objective.score("t", {"vectors": objective.encoder.encode(unseen.texts("text"))}, held_out)
    assert np.isfinite(scores["r2"])
    with pytest.raises(ValueError, match=r"remove objective\.teacher_dimension"):
        dataclasses.replace(options, projective=0, similarity=1, teacher_dimension=8)
    with pytest.raises(ValueError, match="expected one of random; pca; least_squares"):
        dataclasses.replace(options, start="zero")


def test_similarity_alone_learns(make_model: MakeModel, tmp_path: Path) -> None:
    """Vectors of length 1, half of them enough, from a teacher of more dimensions."""
    recipe = make_hpd(make_model, tmp_path, epochs=4)
    objective = dataclasses.replace(
        recipe.objective, similarity=100, projective=0, teacher_dimension=16, start="pca", matryoshka=[4]
    )
    model = dataclasses.replace(recipe.model, normalize=True)
    evaluation = dataclasses.replace(recipe.evaluation, dev={}, select=None)
    recipe = dataclasses.replace(recipe, objective=objective, model=model, evaluation=evaluation)
    train(recipe, tmp_path / "run")
    history = losses(tmp_path / "run")
    assert np.mean(history[-5:]) < 0.7 * np.mean(history[:5])
    vectors = Encoder(tmp_path / "run" / "model").encode(sentences(20, 5))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("activation", ["identity", "tanh"])
def test_it_learns_and_the_folder_loads(
    make_model: MakeModel, reference: Callable[[Path], Any], tmp_path: Path, activation: str
) -> None:
    result = train(make_hpd(make_model, tmp_path, activation, epochs=6), tmp_path / "run")
    history = losses(tmp_path / "run")
    assert np.mean(history[-5:]) < 0.5 * np.mean(history[:5])
    assert result["dev"]["t_r2"] > 40  # 0 for the mean vector, negative at the start
    texts = sentences(20, 5)
    vectors = Encoder(tmp_path / "run" / "model", precision="fp32").encode(texts)
    assert vectors.shape == (20, 8)
    np.testing.assert_allclose(vectors, reference(tmp_path / "run" / "model").encode(texts), atol=2e-5)


def test_augmented_copies(make_model: MakeModel, tmp_path: Path) -> None:
    folder = tmp_path / "wordnet"
    folder.mkdir()
    for name, lines in {
        "synsets": ["ss_type\toffset\tlemmas", "n\t1\tautomobile|motorcar"],
        "index": ["lemma\tpos\tn_tagged_senses\toffsets_in_sense_order", "automobile\tn\t1\t1"],
        "exceptions": ["form\tpos\tlemmas"],
    }.items():
        with gzip.open(folder / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    paraphrases = (
        "text\tparaphrase\nthe automobile\tthe auto\nthe automobile\tthe motorcar\nelsewhere\tnowhere\n"
    )
    (tmp_path / "p.tsv").write_text(paraphrases)
    options = HpdOptions(
        [TeacherOptions(str(make_model()))], augment=Augmentation(wordnet=1.0, paraphrases="p.tsv")
    )
    tables = {"t": Table({"text": ["the automobile", "a day", "the motorcar now"]})}
    assert list(Hpd.expand(options, tables, tmp_path, tmp_path)["t"].texts("text")) == [
        "the automobile",
        "a day",
        "the motorcar now",
        "the motorcar",
        "the auto",
    ]
    assert Hpd.expand(dataclasses.replace(options, augment=None), tables, tmp_path, tmp_path) == tables


def test_refusals(make_model: MakeModel) -> None:
    tables = {"t": Table({"text": ["a", "b"]})}
    options = HpdOptions([TeacherOptions(str(make_model()))])
    with pytest.raises(ValueError, match=r"set model\.normalize to false"):
        Hpd(
            SentenceModel.load(ModelOptions(str(make_model()), max_length=64, normalize=True)),
            options,
            tables,
        )
    with pytest.raises(ValueError, match="teachers is empty"):
        HpdOptions([])
    with pytest.raises(ValueError, match="expected one of sum; mean"):
        HpdOptions(options.teachers, reduction="max")
    for reduction in ("sum", "mean"):  # of the projective loss alone
        with pytest.raises(
            ValueError, match=rf"objective\.matryoshka has no effect .*reduction {reduction}:"
        ):
            HpdOptions(options.teachers, reduction=reduction, matryoshka=[4])
    with pytest.raises(ValueError, match="expected one of float16; float32"):
        HpdOptions(options.teachers, storage="int8")
    with pytest.raises(ValueError, match="must not be negative"):
        HpdOptions(options.teachers, similarity=-1)
    with pytest.raises(ValueError, match="one must be positive"):
        HpdOptions(options.teachers, projective=0)
    with pytest.raises(ValueError, match=r"needs objective\.projective to be 0"):
        HpdOptions(options.teachers, teacher_dimension=9)
    with pytest.raises(ValueError, match="positive dimensions"):
        HpdOptions(options.teachers, matryoshka=[0])
    with pytest.raises(ValueError, match="teacher_dimension must be positive"):
        HpdOptions(options.teachers, projective=0, similarity=1, teacher_dimension=0)
    with pytest.raises(ValueError, match="from 0 to 1"):
        Augmentation(wordnet=2)
