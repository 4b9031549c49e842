"""DvBERT against its formulas in numpy, its teachers' cache, and small trainings."""

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
from embedkit.training.model import ModelOptions
from embedkit.training.objectives import teachers as teachers_module
from embedkit.training.objectives.cross_encoder import PairClassifier, probabilities
from embedkit.training.objectives.dvbert import DvBert, DvBertOptions, distillation_loss
from embedkit.training.objectives.teachers import teacher_outputs
from embedkit.training.trainer import train
from objective_fixtures import (
    NLI,
    losses,
    make_recipe,
    nli_source,
    sts_source,
    write_nli,
    write_sts,
)
from safetensors.torch import load_file

from embedkit import CrossEncoder

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(5, 3))
LABELS = np.eye(3)[[0, 2, 1, 1, 0]]
TEACHERS = np.exp(2 * RANDOM.normal(size=(5, 2, 3)))
TEACHERS /= TEACHERS.sum(-1, keepdims=True)
COSINES, SCORES, RATED = RANDOM.uniform(-1, 1, 5), RANDOM.uniform(0, 1, 5), RANDOM.uniform(0, 1, (5, 2))


def kl(target: np.ndarray, logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    kept = np.where(target > 0, target, 1)
    return np.where(target > 0, target * (np.log(kept) - np.log(p)), 0).sum(-1)


def loss(output: Any, target: Any, told: Any, **options: Any) -> np.ndarray:
    tensors = [torch.tensor(x) for x in (output, target, told)]
    found: np.ndarray = distillation_loss(*tensors, **options).numpy()
    return found


@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_annealed_divergence(progress: float) -> None:
    expected = sum(kl(progress * LABELS + (1 - progress) * TEACHERS[:, k], LOGITS) for k in range(2))
    found = loss(LOGITS, LABELS, TEACHERS, progress=progress, alpha=None, regression=False)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_fixed_weights(alpha: float) -> None:
    log_p = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))
    cross_entropy = -(LABELS * log_p).sum(-1)
    expected = alpha * sum(kl(TEACHERS[:, k], LOGITS) for k in range(2)) + (1 - alpha) * cross_entropy
    found = loss(LOGITS, LABELS, TEACHERS, progress=0.7, alpha=alpha, regression=False)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("alpha", [None, 0.4])
def test_scored_pairs(alpha: float | None) -> None:
    progress = 0.3
    if alpha is None:
        expected = sum((COSINES - (progress * SCORES + (1 - progress) * RATED[:, k])) ** 2 for k in range(2))
    else:
        rated = sum((COSINES - RATED[:, k]) ** 2 for k in range(2))
        expected = alpha * rated + (1 - alpha) * (COSINES - SCORES) ** 2
    found = loss(
        COSINES[:, None], SCORES[:, None], RATED[..., None], progress=progress, alpha=alpha, regression=True
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_without_teachers_it_is_sbert() -> None:
    found = loss(LOGITS, LABELS, np.empty((5, 0, 3)), progress=0.5, alpha=None, regression=False)
    np.testing.assert_allclose(found, kl(LABELS, LOGITS), rtol=1e-12)


@pytest.mark.parametrize("alpha", [None, 0.4])
@pytest.mark.parametrize("regression", [False, True])
def test_gradients(alpha: float | None, regression: bool) -> None:
    output, target, told = (
        (COSINES[:, None], SCORES[:, None], RATED[..., None]) if regression else (LOGITS, LABELS, TEACHERS)
    )
    output = torch.tensor(output, requires_grad=True)

    def of(x: Any) -> Any:
        return distillation_loss(
            x, torch.tensor(target), torch.tensor(told), progress=0.0, alpha=alpha, regression=regression
        )

    assert torch.autograd.gradcheck(of, [output])


def save_teacher(model: Path, folder: Path, labels: list[str], seed: int = 0) -> Path:
    torch.manual_seed(seed)
    teacher = PairClassifier.load(ModelOptions(str(model), max_length=64), labels)
    with torch.no_grad():
        teacher.backbone.classifier.weight.normal_()
    folder.mkdir()
    teacher.save(folder)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return read(nli_source(write_nli(tmp_path / "nli.tsv", 20, 0)))


def test_teachers_run_once_and_a_stopped_run_resumes(
    make_model: Callable[..., Path], tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_teacher(make_model(), tmp_path / "teacher", NLI)
    expected = PairClassifier.load(ModelOptions(str(path), max_length=32)).logits(
        table.texts("text1"), table.texts("text2")
    )
    monkeypatch.setattr(teachers_module, "_CHUNK", 8)
    asked: list[int] = []
    whole = False
    predict = CrossEncoder.predict

    def stopped(self: Any, pairs: list[tuple[str, str]]) -> Any:
        if asked and not whole:
            raise KeyboardInterrupt
        asked.append(len(pairs))
        return predict(self, pairs)

    monkeypatch.setattr(CrossEncoder, "predict", stopped)
    with pytest.raises(KeyboardInterrupt):
        teacher_outputs(str(path), table, 32, tmp_path / "cache")
    whole = True
    found = teacher_outputs(str(path), table, 32, tmp_path / "cache")
    assert sorted(asked) == [4, 8, 8]
    np.testing.assert_allclose(found, expected, atol=1e-4)  # the core and torch round differently
    np.testing.assert_array_equal(teacher_outputs(str(path), table, 32, tmp_path / "cache"), found)
    assert len(asked) == 3
    teacher_outputs(str(path), table, 31, tmp_path / "cache")
    teacher_outputs(str(path), table.select(range(8)), 32, tmp_path / "cache")
    assert sorted(asked[3:]) == [4, 8, 8, 8]


def test_teachers_read_pairs_at_their_own_length(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair is longer than the student's texts."""
    path = save_teacher(make_model(), tmp_path / "teacher", NLI)  # reads 64 tokens
    long = ["good day " * count for count in (10, 11, 12, 13)]
    table = Table({"text1": long, "text2": long[::-1], "label": np.zeros(4, np.int64)}, NLI)
    own, short = (
        PairClassifier.load(ModelOptions(str(path), max_length=length)).logits(long, long[::-1])
        for length in (64, 32)
    )
    assert np.abs(own - short).max() > 1e-3
    student = ModelOptions(str(make_model()), max_length=32)

    def told(folder: str, length: int | None) -> Any:
        options = DvBertOptions(teachers=[str(path)], teacher_max_length=length)
        objective = DvBert(DvBert.load_encoder(student, options, {"nli": table}), options, {"nli": table})
        return objective.prepare("nli", table, tmp_path / folder)["teachers"][:, 0]

    for runner in ("core", "torch"):
        if runner == "torch":
            monkeypatch.setattr(teachers_module, "_runs_in_core", lambda *_, **__: False)
        for length, logits in ((None, own), (32, short)):
            expected = probabilities(torch.from_numpy(logits)).numpy()
            np.testing.assert_allclose(told(runner, length), expected, atol=1e-4)


def test_torch_runs_the_teachers_that_the_core_does_not(
    make_model: Callable[..., Path], tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_teacher(make_model(), tmp_path / "teacher", NLI)
    settings = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["model_input_names"] = ["input_ids", "attention_mask"]  # which the core honors
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    monkeypatch.setattr(CrossEncoder, "predict", None)
    found = teacher_outputs(str(path), table, 32, tmp_path / "cache")
    expected = PairClassifier.load(ModelOptions(str(path), max_length=32)).logits(
        table.texts("text1"), table.texts("text2")
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_outputs_are_kept_by_the_weights_of_their_file(
    make_model: Callable[..., Path], tmp_path: Path, table: Table
) -> None:
    keys = []
    for seed in (1, 2):
        path = save_teacher(make_model(), tmp_path / str(seed), NLI, seed)
        keys.append(teachers_module._key(path, table, 32))
        weights = path / "model.safetensors"
        torch.save(load_file(weights), path / "pytorch_model.bin")
        weights.unlink()
        keys.append(teachers_module._key(path, table, 32))
    assert len(set(keys)) == 4


def test_a_teacher_of_other_classes_is_refused(
    make_model: Callable[..., Path], tmp_path: Path, table: Table
) -> None:
    path = save_teacher(make_model(), tmp_path / "teacher", NLI[::-1])
    right = Table(
        {name: list(table.texts(name)) for name in ("text1", "text2")} | {"label": table["label"]}, NLI[::-1]
    )
    teacher_outputs(str(path), right, 32, tmp_path / "cache")  # the same texts
    with pytest.raises(ValueError, match="same order"):
        teacher_outputs(str(path), table, 32, tmp_path / "cache")
    with pytest.raises(ValueError, match="no trained cross-encoder"):
        teacher_outputs(str(make_model()), table, 32, tmp_path / "cache")


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"objective\.alpha must be"):
        DvBertOptions(teachers=["a"], alpha=1.5)
    with pytest.raises(ValueError, match=r"objective\.teachers is empty"):
        DvBertOptions(alpha=0.5)
    with pytest.raises(ValueError, match="triplet"):
        DvBertOptions(loss="triplet")


def test_the_objective_uses_what_the_teachers_say(
    make_model: Callable[..., Path], tmp_path: Path, table: Table
) -> None:
    paths = [str(save_teacher(make_model(), tmp_path / f"t{i}", NLI, i)) for i in range(2)]
    options = DvBertOptions(teachers=paths)
    objective = DvBert(
        DvBert.load_encoder(ModelOptions(str(make_model()), max_length=32), options, {"nli": table}),
        options,
        {"nli": table},
    ).eval()
    arrays = objective.prepare("nli", table, tmp_path)
    assert arrays["teachers"].shape == (20, 2, 3)
    np.testing.assert_allclose(arrays["teachers"].sum(-1), 1, rtol=1e-5)
    assert set(objective.prepare("nli", table.select(range(4)), tmp_path)) == {"label"}

    from embedkit.training.data.store import TextStore

    store = TextStore(objective.encoder.tokenizer_folder, [*table.texts("text1"), *table.texts("text2")], 32)
    batch = objective.collate(store, store.rows.reshape(2, -1).T.astype(np.int64), arrays)
    objective.progress = 0.25
    with torch.no_grad():
        found = objective(task=torch.tensor(0), **batch)
    logits, labels = found["logits"].double().numpy(), np.eye(3)[arrays["label"]]
    mixed = 0.25 * labels[:, None] + 0.75 * arrays["teachers"].astype(np.float64)
    expected = sum(kl(mixed[:, k], logits) for k in range(2)).mean()
    assert found["loss"].item() == pytest.approx(expected, rel=1e-4)


def test_it_learns_from_a_teacher_and_alone(
    make_model: Callable[..., Path], tmp_path: Path, reference: Callable[[Path], Any]
) -> None:
    model = make_model()
    data = {"nli": nli_source(write_nli(tmp_path / "train.tsv", 320, 1))}
    dev = {"nli": nli_source(write_nli(tmp_path / "dev.tsv", 60, 2))}
    run = train(make_recipe({"name": "cross_encoder"}, model, data, epochs=3), tmp_path / "teacher")
    assert run["steps"] == 60
    teacher = str(tmp_path / "teacher" / "model")
    options = {"name": "dvbert", "teachers": [teacher]}
    result = train(make_recipe(options, model, data, dev, epochs=3), tmp_path / "run")
    history = losses(tmp_path / "run")
    assert np.mean(history[-5:]) < 0.7 * np.mean(history[:5])
    assert result["dev"]["nli_accuracy"] > 33.4 + 25

    from embedkit import Encoder

    folder = tmp_path / "run" / "model"
    texts = ["the weather is lovely", "people use water", "a"]
    np.testing.assert_allclose(Encoder(folder).encode(texts), reference(folder).encode(texts), atol=2e-6)


def test_the_second_stage_learns(make_model: Callable[..., Path], tmp_path: Path) -> None:
    data = {"sts": sts_source(write_sts(tmp_path / "train.tsv", 160, 1))}
    dev = {"sts": sts_source(write_sts(tmp_path / "dev.tsv", 60, 2))}
    teacher = save_teacher(make_model(), tmp_path / "teacher", ["score"])
    options = {"name": "dvbert", "teachers": [str(teacher)], "loss": "regression"}
    result = train(make_recipe(options, make_model(), data, dev, epochs=3), tmp_path / "run")
    history = losses(tmp_path / "run")
    assert np.mean(history[-5:]) < 0.5 * np.mean(history[:5])
    assert result["dev"]["sts_spearman"] > 60
