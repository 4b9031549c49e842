"""What the tables of `training.py` cost, before any is run: ``python benchmarks/training_plan.py --data DIR TABLE...``.

A trained token costs 6 x the parameters of its layers (2 forward, 4 backward; word embeddings cost nothing). Tokens are
counted with the built-in model's tokenizer on a sample of the rows. Dev and test scores and teachers are not counted.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from embedkit.training import table as tables
from embedkit.training.data.readers import read
from embedkit.training.recipe import Recipe, find_recipe, load_recipe

_SAMPLE = 500  # rows of a source whose tokens are counted
_LAYERS = {  # layers and their width; a layer has 12 width^2 parameters
    "all-MiniLM-L6-v2": (6, 384),
    "bert-base-uncased": (12, 768),
    "all-mpnet-base-v2": (12, 768),
    "multilingual-e5-small": (12, 384),
    "zh-char-small": (4, 256),
}


@dataclass(frozen=True)
class Cost:
    """One training.

    Attributes:
        folder: of the training, as in the work folder.
        steps: of the optimizer.
        tokens: read in training, over all steps.
        parameters: of the trained layers.
        hours: at the given speed.
    """

    folder: str
    steps: int
    tokens: float
    parameters: float
    hours: float


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    from embedkit.model_folder.folder import BUILTIN
    from embedkit.model_folder.tokenizer import load_tokenizer

    return load_tokenizer(BUILTIN)


@lru_cache(maxsize=256)
def _size(source: str, root: Path) -> tuple[int, float]:
    """Rows of a source, and the mean tokens of a row in all of its texts."""
    import yaml

    table = read(yaml.safe_load(source), root=root)
    rows = np.random.default_rng(0).choice(len(table), min(_SAMPLE, len(table)), replace=False)
    columns = [[texts[i] for i in rows] for texts in map(table.texts, table.text_names)]
    tokens = sum(len(ids) + 2 for column in columns for ids in _tokenizer().encode_batch(column))
    return len(table), tokens / len(rows)


def parameters(recipe: Recipe, recipes: Mapping[str, Recipe]) -> float:
    """Of the layers; a path into another training's folder counts as that training's model."""
    path = recipe.model.path
    other = re.search(r"([\w.-]+)/model$", path)
    if other is not None and other[1] in recipes:
        inner = parameters(recipes[other[1]], recipes)
        return inner if recipe.model.layers is None else inner * _kept(recipe, 12)
    name = path.rsplit("/", 1)[-1]
    if name not in _LAYERS:
        raise ValueError(f"{path}: a model of unknown size; add it to _LAYERS")
    layers, width = _LAYERS[name]
    return _kept(recipe, int(layers)) * layers * 12 * width**2


def _kept(recipe: Recipe, total: int) -> float:
    """The share of the layers that is kept."""
    chosen = recipe.model.layers
    if chosen is None:
        return 1.0
    return (len(chosen) if isinstance(chosen, list) else chosen) / total


def costs(table: tables.Table, root: Path, flops: float) -> list[Cost]:
    """The cost of each training of a table, in the order of its file."""
    import yaml

    every = tables.specs(table, Path("work"))
    recipes = {spec.folder: load_recipe(find_recipe(spec.recipe), spec.overrides) for spec in every}
    found = []
    for folder, recipe in recipes.items():
        options = recipe.training
        sizes = {task: _size(yaml.safe_dump(source), root) for task, source in recipe.data.items()}
        drawn = {
            task: rows * recipe.data[task].get("weighted_fraction", 1.0) for task, (rows, _) in sizes.items()
        }
        examples = sum(drawn.values())
        tokens = sum(drawn[task] * sizes[task][1] for task in sizes) / examples  # of an example
        steps = (
            options.max_steps
            if options.max_steps > 0
            else round(options.epochs * examples / options.batch_size)
        )
        if recipe.postprocess is not None:
            steps = 0
        read_tokens = steps * options.batch_size * tokens
        size = parameters(recipe, recipes)
        hours = 6 * size * read_tokens / flops / 3600
        found.append(Cost(folder, steps, read_tokens, size, hours))
    return found


def markdown(name: str, table: tables.Table, found: list[Cost]) -> str:
    """A table's costs as Markdown, the longest training first."""
    lines = [
        f"## {name}: {table.title}",
        "",
        "| training | steps | tokens (M) | layers' parameters (M) | hours |",
    ]
    lines.append("|---|---|---|---|---|")
    for one in sorted(found, key=lambda one: -one.hours):
        lines.append(
            f"| {one.folder} | {one.steps:,} | {one.tokens / 1e6:.1f} | {one.parameters / 1e6:.1f} | {one.hours:.1f} |"
        )
    total = sum(one.hours for one in found)
    return "\n".join([*lines, f"| **all** | | | | **{total:.1f}** |", ""])


def main() -> int:
    known = tables.list_tables()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", nargs="*", help="which tables (default: all)")
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument(
        "--gflops", type=float, default=150, help="speed of the machine, GFLOP/s (default: 150)"
    )
    options = parser.parse_args()
    print("# What the tables cost\n")
    print(
        f"Made by `benchmarks/training_plan.py` for {options.gflops:g} GFLOP/s (2 cores, fp32; bf16 is faster where "
        "the processor has it). Dev scores, test scores and teachers' outputs come on top.\n"
    )
    for name in options.table or sorted(known):
        table = tables.load_table(known[name])
        print(markdown(name, table, costs(table, options.data, options.gflops * 1e9)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
