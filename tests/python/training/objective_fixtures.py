"""Small data sets with something to learn, and recipes over them, for the tests of the objectives."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from embedkit.training.recipe import Recipe, recipe_of

NLI = ["entailment", "neutral", "contradiction"]
_NOUNS = "people water time day world weather night query document stadium".split()  # noqa: SIM905
_VERBS = "use find see make look know said made called had".split()  # noqa: SIM905


def write_nli(path: Path, rows: int, seed: int) -> Path:
    """Pairs whose class is given away by a word of the hypothesis, so that a tiny model learns it in seconds."""
    choose = random.Random(seed)
    lines = ["premise\thypothesis\tlabel"]
    for i in range(rows):
        noun, verb = choose.choice(_NOUNS), choose.choice(_VERBS)
        cue = ("the", "many", "not")[i % 3]
        lines.append(f"the {noun} {verb}\t{cue} {noun} {verb}\t{NLI[i % 3]}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_sts(path: Path, rows: int, seed: int) -> Path:
    """Pairs scored 0 to 5 by the words that they share."""
    choose = random.Random(seed)
    lines = ["sentence1\tsentence2\tscore"]
    for _ in range(rows):
        words, others = choose.sample(_NOUNS, 5), choose.sample(_VERBS, 5)
        shared = choose.randint(0, 5)
        lines.append(f"{' '.join(words)}\t{' '.join(words[:shared] + others[shared:])}\t{shared}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def nli_source(path: Path) -> dict[str, Any]:
    return {
        "path": str(path),
        "columns": {"text1": "premise", "text2": "hypothesis", "label": "label"},
        "labels": NLI,
    }


def sts_source(path: Path) -> dict[str, Any]:
    return {
        "path": str(path),
        "columns": {"text1": "sentence1", "text2": "sentence2", "label": "score"},
    }


def make_recipe(
    objective: dict[str, Any],
    model: Path,
    data: dict[str, dict[str, Any]],
    dev: dict[str, dict[str, Any]] | None = None,
    select: str | None = None,
    **training: Any,
) -> Recipe:
    """A recipe of a few steps on a tiny model, logged at every step."""
    return recipe_of(
        {
            "objective": objective,
            "model": {"path": str(model), "random": True, "dropout": 0.0, "max_length": 64},
            "data": data,
            "training": {"batch_size": 16, "learning_rate": 5e-3, "logging_steps": 1, **training},
            "evaluation": {"dev": dev or {}, "select": select},
        },
        "test",
        "test",
    )


def logged(folder: Path, name: str) -> list[float]:
    """The values of a run's steps, "loss" or "grad_norm", from its TensorBoard log."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder / "tensorboard"))
    log.Reload()
    return [event.value for event in log.Scalars(f"train/{name}")]


def losses(folder: Path) -> list[float]:
    """The training losses of a run."""
    return logged(folder, "loss")
