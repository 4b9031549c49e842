"""The options of a training reach what they are about: optimizer, seeds, the order of batches and annealing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tensorboard")

from embedkit.training import loop
from embedkit.training.model import ModelOptions, SentenceModel
from embedkit.training.objectives import objective_class
from embedkit.training.recipe import EvaluationOptions, Recipe, TrainingOptions
from embedkit.training.trainer import train
from objective_fixtures import make_recipe, nli_source, write_nli
from tiny_families import tiny


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, float, list[int]]]:
    """Of each batch that is trained on: the objective, the progress that it was told, and the token ids."""
    kind, batches = objective_class("sbert"), list[tuple[Any, float, list[int]]]()
    forward = kind.forward

    def watched(self: Any, **batch: Any) -> Any:
        batches.append((self, self.progress, batch["input_ids"].tolist()))
        return forward(self, **batch)

    monkeypatch.setattr(kind, "forward", watched)
    return batches


@pytest.fixture
def recipe(make_model: Callable[..., Path], tmp_path: Path) -> Callable[..., Recipe]:
    source = nli_source(write_nli(tmp_path / "train.tsv", 24, 1))

    def made(**training: Any) -> Recipe:
        return make_recipe({"name": "sbert"}, make_model(), {"nli": source}, batch_size=8, **training)

    return made


def test_options_of_the_optimizer_reach_it(tmp_path: Path) -> None:
    options = TrainingOptions(scheduler="cosine", warmup_ratio=0.25, max_grad_norm=0.5, weight_decay=0.3)
    found = loop.trainer_arguments(options, EvaluationOptions(), tmp_path, 8, evaluated=False, minimized=())
    assert (found.lr_scheduler_type, found.warmup_steps, found.max_grad_norm) == ("cosine", 2, 0.5)
    objective: Any = torch.nn.Module()
    objective.encoder = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    groups = loop.optimizer(objective, options, torch.device("cpu")).param_groups
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    for parameter in objective.parameters():  # not of biases and norms
        assert decay[id(parameter)] == (0.3 if parameter.ndim > 1 else 0.0)


def test_the_bias_of_relative_positions_is_not_decayed(tmp_path: Path) -> None:
    """A matrix in T5 and MPNet, which transformers.Trainer leaves out by its name."""
    from transformers import Trainer

    model = SentenceModel.load(ModelOptions(str(tiny(tmp_path, "t5")), max_length=32))
    objective = objective_class("simcse")(model, objective_class("simcse").Options(), {})
    groups = loop.optimizer(objective, TrainingOptions(weight_decay=0.3), torch.device("cpu")).param_groups
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    named = list(objective.named_parameters(remove_duplicate=False))
    decayed = {name for name, parameter in named if decay.get(id(parameter))}
    assert decayed == set(Trainer.get_decay_parameter_names(None, objective))  # type: ignore[arg-type]
    assert any("relative_attention_bias" in name for name, _ in named)


def test_polynomial_ends_at_the_rate_of_transformers() -> None:
    from transformers import get_scheduler

    objective: Any = torch.nn.Module()
    objective.encoder = torch.nn.Linear(2, 2)
    ours = loop.optimizer(objective, TrainingOptions(learning_rate=2e-5), torch.device("cpu"))
    scheduler = get_scheduler("polynomial", ours, 0, 2)
    for _ in range(2):
        ours.step()
        scheduler.step()
    assert ours.param_groups[0]["lr"] == pytest.approx(1e-7)


def test_the_objective_is_told_how_far_the_training_is(
    recipe: Callable[..., Recipe], seen: list[tuple[Any, float, list[int]]], tmp_path: Path
) -> None:
    train(recipe(max_steps=5), tmp_path / "run")
    assert [progress for _, progress, _ in seen] == [0, 0.25, 0.5, 0.75, 1]


def test_a_seed_is_of_the_order_and_of_the_heads_and_each_epoch_has_an_order(
    recipe: Callable[..., Recipe],
    seen: list[tuple[Any, float, list[int]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heads, orders = [], []
    for seed in (1, 2):
        seen.clear()
        train(recipe(seed=seed, epochs=2, learning_rate=1e-12), tmp_path / f"{seed}")
        batches = [ids for _, _, ids in seen]
        assert batches[:3] != batches[3:]
        orders.append(batches)
        heads.append(seen[0][0].classifier.weight.detach())  # as it began, at such a rate
    assert orders[0] != orders[1]
    assert not torch.allclose(*heads, atol=1e-3)


def test_annealing_is_over_the_epochs_of_the_run(
    make_model: Callable[..., Path],
    seen: list[tuple[Any, float, list[int]]],
    tmp_path: Path,
) -> None:
    sizes = {"a": 96, "b": 8}
    data = {name: nli_source(write_nli(tmp_path / f"{name}.tsv", rows, 1)) for name, rows in sizes.items()}
    losses = {name: {"name": "sbert"} for name in sizes}
    options: dict[str, Any] = {"batch_size": 8, "epochs": 2, "schedule": "annealed"}
    train(make_recipe({"name": "multi", "losses": losses}, make_model(), data, **options), tmp_path / "run")
    objectives = [objective for objective, _, _ in seen]
    first, last = Counter(objectives[:13]), Counter(objectives[13:])
    assert sorted(first.values()) == [1, 12]  # by size
    assert min(last.values()) > 3  # nearly alike


def test_annealing_takes_more_than_one_epoch(recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"annealed needs more than one epoch, .*max_steps 3 .*; use proportional"
    ):
        train(recipe(max_steps=3, schedule="annealed"), tmp_path / "run")
    train(recipe(max_steps=4, schedule="annealed"), tmp_path / "longer")
