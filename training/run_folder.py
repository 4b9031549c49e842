"""The folder of a training run: its recipe, checkpoints, model and results."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .. import Encoder
from .card import write_card, write_curve
from .data.readers import Table
from .recipe import Recipe
from .scores import test_scores
from .whole_file import write_text

__all__ = ["claim", "facts", "finish", "last_checkpoint", "process_rank", "world_size"]


def claim(output: Path, recipe: Recipe) -> None:
    """Refuse a folder with the run of another recipe; otherwise write this one to it.

    A run that failed before its first checkpoint, for example by a mistyped path, is overwritten.
    """
    path, content = output / "recipe.json", json.dumps(recipe.resolved(), indent=2, sort_keys=True) + "\n"
    if path.is_file() and path.read_text(encoding="utf-8") == content:
        return
    if path.is_file() and (
        (output / "result.json").is_file() or any(output.glob("checkpoints/checkpoint-*"))
    ):
        raise FileExistsError(
            f"{output} holds a run of another recipe (see its recipe.json); choose another output, or remove it"
        )
    if process_rank() == 0:
        write_text(path, content)


def facts(recipe: Recipe, tables: Mapping[str, Table], checks: dict[str, Any], device: str) -> dict[str, Any]:
    """The part of ``result.json`` that is known before training."""
    return {
        "recipe": recipe.name,
        "seed": recipe.training.seed,
        "examples": {task: len(table) for task, table in tables.items()},
        "data": checks,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {device}",
    }


def finish(
    recipe: Recipe,
    save: Callable[[Path], None],
    result: dict[str, Any],
    history: list[dict[str, Any]],
    *,
    output: Path,
    root: Path,
) -> None:
    """Write ``model/`` with its card, complete or not at all, the learning curve and ``result.json``.

    The test scores, which ``result`` gets here, are those of the folder as it will be used: by `embedkit.Encoder` in
    fp32.
    """
    work, target = output / ".model", output / "model"
    for folder in (work, target):
        shutil.rmtree(folder, ignore_errors=True)
    work.mkdir()
    save(work)
    result["test"] = {}
    if recipe.evaluation.test:
        encoder = Encoder(work, threads=torch.get_num_threads())
        result["test"] = test_scores(encoder, recipe.evaluation.test, root)
    write_card(work, recipe, result)
    work.rename(target)
    write_curve(output / "curve.png", recipe, history)
    write_text(output / "result.json", json.dumps(result, indent=2) + "\n")
    shutil.rmtree(output / "checkpoints", ignore_errors=True)


def last_checkpoint(folder: Path) -> Path | None:
    """The last complete checkpoint; incomplete ones of a killed run are removed."""
    whole = []
    for path in folder.glob("checkpoint-*"):
        states = ["rng_state.pth"] if world_size() == 1 else []
        states += [f"rng_state_{rank}.pth" for rank in range(world_size()) if world_size() > 1]
        try:
            json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))  # Trainer writes it last
        except (OSError, ValueError):
            if process_rank() == 0:
                shutil.rmtree(path)
            continue
        missing = [name for name in states if not (path / name).is_file()]
        if missing:
            raise ValueError(
                f"{path} has no {missing[0]}: its run had another number of processes; "
                "resume with the same number, or choose another output"
            )
        whole.append(path)
    return max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def world_size() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))  # as torchrun and accelerate set it


def process_rank() -> int:
    """The number of this process; 0 writes the files."""
    return int(os.environ.get("RANK", "0"))
