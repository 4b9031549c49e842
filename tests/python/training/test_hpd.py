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

from embedkit.training.data.readers import Table  # noqa: E402
from embedkit.training.model import ModelOptions, Projection, SentenceModel  # noqa: E402
from embedkit.training.objectives.hpd import Augmentation, Hpd, HpdOptions, projective_loss  # noqa: E402
from embedkit.training.recipe import Recipe  # noqa: E402
from embedkit.training.teacher import TeacherOptions  # noqa: E402
from embedkit.training.trainer import train  # noqa: E402
from objective_fixtures import _NOUNS, _VERBS, losses, make_recipe  # noqa: E402

from embedkit import Encoder  # noqa: E402

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
    """A batch's loss is that of the texts' own targets, whatever task they are of."""
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
    assert Hpd.expand(options, tables, tmp_path)["t"].texts("text") == [
        "the automobile",
        "a day",
        "the motorcar now",
        "the motorcar",
        "the auto",
    ]
    assert Hpd.expand(dataclasses.replace(options, augment=None), tables, tmp_path) == tables


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
    with pytest.raises(ValueError, match="known are sum, mean"):
        HpdOptions(options.teachers, reduction="max")
    with pytest.raises(ValueError, match="known are float16, float32"):
        HpdOptions(options.teachers, storage="int8")
    with pytest.raises(ValueError, match="from 0 to 1"):
        Augmentation(wordnet=2)
