"""What the tables of `training.py` cost, before they run: ``python benchmarks/training_plan.py --data DIR TABLE...``.

A trained token costs 6 x the parameters of its layers (2 forward, 4 backward; word embeddings cost nothing), with
GradCache 8 x. Tokens are counted with the built-in model's tokenizer on a sample of the rows. Dev and test scores and
teachers' outputs are not counted, nor trainings whose results are there.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from common import TRAINING_RESULTS
from embedkit.training.data.readers import read
from embedkit.training.recipe import Recipe, find_recipe, load_recipe
from papers import table as tables

_SAMPLE = 500  # rows of a source whose tokens are counted
_LAYERS = {  # layers and their width; a layer has 12 width^2 parameters
    "all-MiniLM-L6-v2": (6, 384),
    "bert-base-uncased": (12, 768),
    "all-mpnet-base-v2": (12, 768),
    "multilingual-e5-small": (12, 384),
    "bge-small-en-v1.5": (12, 384),
    "zh-char-small": (4, 256),
}
_WIDE = (
    768  # a layer narrower than this is trained at half the speed: its products are too small for the tiles
)


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


def layers(recipe: Recipe, recipes: Mapping[str, Recipe]) -> tuple[float, int]:
    """How many, and their width; a path into another training's folder counts as that training's model."""
    path = recipe.model.path
    other = re.search(r"([\w.-]+)/model$", path)
    if other is not None and other[1] in recipes:
        number, width = layers(recipes[other[1]], recipes)
        return number if recipe.model.layers is None else number * _kept(recipe, 12), width
    name = path.rsplit("/", 1)[-1]
    if name not in _LAYERS:
        raise ValueError(f"{path}: a model of unknown size; add it to _LAYERS")
    number, width = _LAYERS[name]
    return _kept(recipe, int(number)) * number, width


def _kept(recipe: Recipe, total: int) -> float:
    """The share of the layers that is kept."""
    chosen = recipe.model.layers
    if chosen is None:
        return 1.0
    return (len(chosen) if isinstance(chosen, list) else chosen) / total


def costs(table: tables.Table, root: Path, flops: float, known: Mapping[str, Any]) -> list[Cost]:
    """The cost of each training of a table that is not in ``known``, the longest first."""
    import yaml

    every = tables.specs(table, Path("work"))
    recipes = {spec.folder: load_recipe(find_recipe(spec.recipe), spec.overrides) for spec in every}
    found = []
    for spec in every:
        if known.get(spec.folder, {}).get("set") == spec.told:
            continue
        recipe = recipes[spec.folder]
        options = recipe.training
        sizes = {task: _size(yaml.safe_dump(source), root) for task, source in recipe.data.items()}
        drawn = {
            task: rows * (recipe.data[task].get("weighted_fraction") or 1.0)
            for task, (rows, _) in sizes.items()
        }
        examples = sum(drawn.values())
        tokens = sum(drawn[task] * sizes[task][1] for task in sizes) / examples  # of an example
        if options.schedule == "round_robin":  # as many batches of each task as the largest has
            tokens = sum(width for _, width in sizes.values()) / len(sizes)
            batches = len(drawn) * max(math.ceil(rows / options.batch_size) for rows in drawn.values())
        else:
            batches = examples / options.batch_size
        if recipe.objective_name == "roformer_sim":  # reads each pair in both directions
            tokens *= 2
        steps = options.max_steps if options.max_steps > 0 else round(options.epochs * batches)
        if recipe.postprocess is not None:
            steps = 0
        read_tokens = steps * options.batch_size * tokens
        number, width = layers(recipe, recipes)
        size = number * 12 * width**2
        passes = 6 if options.mini_batch_size is None else 8
        speed = flops if width >= _WIDE else flops / 2
        hours = passes * size * read_tokens / speed / 3600
        found.append(Cost(spec.folder, steps, read_tokens, size, hours))
    return sorted(found, key=lambda one: -one.hours)


def _hours(found: list[Cost]) -> float:
    return sum(one.hours for one in found)


def markdown(name: str, table: tables.Table, found: list[Cost]) -> str:
    """A table's costs as Markdown; what takes no hour is summed up."""
    lines = [
        f"## {name}: {table.title}",
        "",
        "| training | steps | tokens (M) | layers' parameters (M) | hours |",
    ]
    lines.append("|---|---|---|---|---|")
    for one in found:
        if one.steps:
            figures = f"{one.steps:,} | {one.tokens / 1e6:.1f} | {one.parameters / 1e6:.1f} | {one.hours:.1f}"
            lines.append(f"| {one.folder} | {figures} |")
    untrained = sum(not one.steps for one in found)
    if untrained:
        lines.append(f"| {untrained} that train nothing | 0 | | | 0.0 |")
    return "\n".join([*lines, f"| **all** | | | | **{_hours(found):.1f}** |", ""])


def main() -> int:
    known = tables.list_tables()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", nargs="*", help="which tables (default: all)")
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument(
        "--gflops",
        type=float,
        default=600,
        help="speed of the machine for layers of BERT-base (default: 600)",
    )
    options = parser.parse_args()
    if unknown := sorted(set(options.table) - set(known)):
        parser.error(f"no such table: {', '.join(unknown)}")
    plans = {}
    for name in options.table or sorted(known):
        table, path = tables.load_table(known[name]), TRAINING_RESULTS / f"{name}.json"
        held = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else {}
        try:
            found = costs(table, options.data, options.gflops * 1e9, held)
        except FileNotFoundError as error:
            parser.error(str(error))
        if found:
            plans[name] = table, found
        print(f"{name}: {len(found)} trainings", file=sys.stderr, flush=True)
    order = sorted(plans, key=lambda name: -_hours(plans[name][1]))
    print("# What the tables cost\n")
    print(
        f"Made by `benchmarks/training_plan.py` for {options.gflops:g} GFLOP/s in layers as wide as BERT-base's (two "
        "cores with AMX, bf16), and half of that in narrower ones. Dev scores, test scores and teachers' outputs come "
        "on top. The longest first, as they should be started, except that hpd-rates comes before hpd-main, whose "
        "baselines take their learning rates from it. `benchmarks/training.py TABLE --work DIR` resumes each training "
        "and leaves out what is done.\n"
    )
    print("| table | trainings | hours |\n|---|---|---|")
    for name in order:
        print(f"| {name} | {len(plans[name][1])} | {_hours(plans[name][1]):.1f} |")
    print(f"| **all** | | **{sum(_hours(found) for _, found in plans.values()):.1f}** |\n")
    for name in order:
        print(markdown(name, *plans[name]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
