"""The model card and the learning curve of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..index.figure import plain
from .objectives import objective_class
from .objectives.base import Objective
from .recipe import Recipe

__all__ = ["front_matter", "recipe_section", "write_card", "write_curve"]


def front_matter(license: str, tag: str) -> list[str]:
    """The lines that the Hub reads of a card; ``tag`` is its name of the task."""
    return [
        "---",
        "library_name: sentence-transformers",
        f"pipeline_tag: {tag}",
        f"license: {license}",
        "tags: [embedkit]",
        "---",
    ]


def recipe_section(recipe: Recipe) -> list[str]:
    """The lines of a card that hold the whole recipe."""
    import yaml

    resolved = yaml.safe_dump(recipe.resolved(), sort_keys=False, allow_unicode=True).rstrip()
    return ["## Recipe", "", "```yaml", resolved, "```"]


def write_card(folder: Path, recipe: Recipe, result: Mapping[str, Any]) -> None:
    """Write the ``README.md`` of a model folder: data, scores, license and the recipe."""
    objective = Objective if recipe.postprocess is not None else objective_class(recipe.objective_name)
    lines = [
        *front_matter(recipe.license, objective.pipeline_tag),
        f"# {recipe.name}",
        "",
        f"{recipe.description}. Made with embedkit.".removeprefix(". "),
        "",
        "```python",
        objective.usage.replace("{path}", f"path/to/{recipe.name}"),
        "```",
        "",
        "## Data",
        "",
    ]
    for task, source in recipe.data.items():
        checks = result["data"].get(task, {})
        found = "; ".join(f"{name}: {value}" for name, value in checks.items())
        lines.append(
            f"- {task}: {source.get('path', source.get('dataset'))}, {result['examples'][task]} examples. {found}"
        )
    lines += ["", "## Scores", "", "| set | score |", "|---|---|"]
    lines += [
        f"| {name} | {value:.2f} |"
        for name, value in _scores({name: result[name] for name in ("dev", "majority", "test")})
    ]
    lines += [
        "",
        *_history(recipe, result),
        "",
        "## License",
        "",
        f"{recipe.license}. The terms of the backbone ({recipe.model.path}) and of the data above apply as well.",
        "",
        *recipe_section(recipe),
    ]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _history(recipe: Recipe, result: Mapping[str, Any]) -> list[str]:
    if recipe.postprocess is not None:
        return [f"Post-processed by `{recipe.postprocess_name}`; not trained ({result['machine']})."]
    return [
        f"Trained for {result['steps']} steps in {result['train_seconds'] / 3600:.2f} hours ({result['machine']}).",
        f"The weights are those of step {result['best_step'] or result['steps']}.",
    ]


def _scores(scores: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    flat: list[tuple[str, float]] = []
    for name, value in scores.items():
        if isinstance(value, Mapping):
            flat += _scores(value, f"{prefix}{name} ")
        elif isinstance(value, int | float):
            flat.append((f"{prefix}{name}", float(value)))
    return flat


def write_curve(path: Path, recipe: Recipe, history: list[dict[str, Any]]) -> None:
    """Plot the loss and every dev score against the step, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    loss_axis = figure.add_subplot()
    losses = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
    loss_axis.plot(*zip(*losses, strict=True) if losses else ([], []), color="0.6", label="loss")
    loss_axis.set(xlabel="step", ylabel="training loss", title=plain(recipe.name))
    names = sorted({key for entry in history for key in entry if key.startswith("eval_")})
    if names:
        score_axis = loss_axis.twinx()
        score_axis.set_ylabel("dev score")
    for name in names:
        points = [(entry["step"], entry[name]) for entry in history if name in entry]
        score_axis.plot(*zip(*points, strict=True), marker="o", label=plain(name.removeprefix("eval_")))
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(path, dpi=120)
