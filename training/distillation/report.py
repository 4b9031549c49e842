"""Teacher and student side by side, on texts that were held out: quality kept, speed and size; a card and a plot."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...encoder import Encoder
from ...output import unit
from ..card import front_matter, recipe_section
from ..recipe import Recipe
from ..teacher import TeacherOptions, encode_prompted, variance_scale
from ..whole_file import write_text
from .options import DistillOptions

__all__ = ["agreement", "compare", "labels", "write_report"]

_NEIGHBORS = 10
_ROUNDS = 3  # of timing
_TIMED = 512  # texts


def agreement(teacher: npt.NDArray[Any], student: npt.NDArray[Any]) -> dict[str, float]:
    """How alike two models are on the same texts.

    Args:
        teacher, student: (n, any dimension), unit vectors of n > 10 texts.

    Returns:
        ``neighbors``: the share of the teacher's 10 nearest texts that are among the student's 10, over all texts;
        ``spearman``: of the cosines of all pairs of texts, x 100.
    """
    from scipy.stats import spearmanr

    ours, theirs = (np.asarray(x @ x.T, np.float64) for x in (student, teacher))
    upper = np.triu_indices(len(ours), 1)
    correlation = float(spearmanr(ours[upper], theirs[upper]).statistic)
    count = min(_NEIGHBORS, len(ours) - 1)
    near = []
    for cosines in (ours, theirs):
        np.fill_diagonal(cosines, -np.inf)
        near.append(np.argpartition(-cosines, count - 1, axis=1)[:, :count])
    shared = [len(np.intersect1d(a, b)) for a, b in zip(*near, strict=True)]
    return {"neighbors": round(float(np.mean(shared)) / count, 4), "spearman": round(100 * correlation, 2)}


def compare(
    teachers: Sequence[TeacherOptions], options: DistillOptions, output: Path, held: Sequence[str]
) -> dict[str, Any]:
    """Quality, speed and size of the teachers, and of the student in fp32 and int8 and at each prefix.

    The quality of the teachers is that of their joined vectors, to which the student is compared: weighted, and
    without their mean, as the student learns them.
    """
    texts = list(held)
    rows: dict[str, dict[str, Any]] = {}
    joined = []
    for label, teacher in zip(labels([one.path for one in teachers]), teachers, strict=True):
        with Encoder(teacher.path, precision=teacher.precision) as encoder:
            vectors = encode_prompted(encoder, texts, teacher)
            units = unit(vectors)
            joined.append(units if teacher.weight is None else units * variance_scale(units, teacher.weight))
            cost = _cost(encoder, texts)
            rows[label] = {**cost, "dimension": vectors.shape[1]}
    both = np.concatenate(joined, axis=1)
    both = unit(both - both.mean(axis=0) if options.center else both)
    for label, folder in (("student, fp32", output / "float"), ("student, int8", output / "model")):
        with Encoder(folder) as encoder:
            vectors = encoder.encode(texts)
            rows[label] = {
                **_cost(encoder, texts),
                "dimension": vectors.shape[1],
                **agreement(both, unit(vectors)),
            }
    if options.index_precision != "fp32":
        rows[f"student, int8, stored in {options.index_precision}"] = {
            "dimension": vectors.shape[1],
            **agreement(both, unit(_in_codes(vectors, {"int8": 8, "int6": 6}[options.index_precision]))),
        }
    for width in options.nested():  # of the int8 student
        rows[f"student, int8, first {width}"] = {
            "dimension": width,
            **agreement(both, unit(vectors[:, :width])),
        }
    return {"rows": rows}


def labels(paths: Sequence[str]) -> list[str]:
    """The last names of the teachers' folders; where some are the same, each with its number in the recipe."""
    names = [Path(path).name for path in paths]
    if len(set(names)) == len(names):
        return names
    return [f"{name}, teacher {number}" for number, name in enumerate(names, 1)]


def write_report(output: Path, recipe: Recipe, report: Mapping[str, Any]) -> None:
    """Write ``report.json``, ``report.png`` and the cards of both folders."""
    card = _card(recipe, report)
    for name in ("float", "model"):
        write_text(output / name / "README.md", card)
    _plot(output / "report.png", report)
    write_text(output / "report.json", json.dumps(report, indent=2) + "\n")


def _in_codes(vectors: npt.NDArray[Any], bits: int) -> npt.NDArray[np.float32]:
    """What so many bits a column, as an index stores them, say of the vectors."""
    low, high = vectors.min(0), vectors.max(0)
    step = np.maximum(high - low, 1e-12) / (2**bits - 1)
    return np.asarray(low + np.rint((vectors - low) / step) * step, np.float32)


def _cost(encoder: Encoder, texts: Sequence[str]) -> dict[str, Any]:
    """Texts a second, and the bytes of the weights."""
    timed = list(texts[:_TIMED])
    rates = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        encoder.encode(timed)
        rates.append(len(timed) / (time.perf_counter() - begin))
    path = Path(str(encoder.describe()["path"]))
    size = sum(file.stat().st_size for file in path.rglob("*.safetensors"))
    return {"texts_per_second": round(statistics.median(rates), 1), "megabytes": round(size / 1e6, 1)}


def _card(recipe: Recipe, report: Mapping[str, Any]) -> str:
    counted, readings = "texts", ""
    if recipe.model.prompts.get("query"):  # the files have the short texts twice
        counted = "readings of texts"
        readings = " (each text, and each short one with the query prompt as well)"
    names = {
        "dimension": "dimension",
        "neighbors": f"nearest {_NEIGHBORS} kept",
        "spearman": "Spearman",
        "texts_per_second": "texts/s",
        "megabytes": "MB",
    }
    lines = [
        *front_matter(recipe.license, "sentence-similarity"),
        f"# {recipe.name}",
        "",
        f"{recipe.description}, made by `embedkit-train distill` from {report['texts']:,} {counted} without labels"
        f"{readings}: "
        f"{report['steps']:,} steps, {report['train_seconds'] / 3600:.2f} hours ({report['machine']}).",
        "",
        "```python",
        "from embedkit import Encoder",
        "",
        f'vectors = Encoder("path/to/{recipe.name}/model").encode(["a text"])',
        "```",
        "",
        "## Teacher and student",
        "",
        f"On {report['held_out']:,} {counted} that were held out: the share of the teacher's {_NEIGHBORS} nearest "
        "texts that the student finds as well, and the rank correlation of the cosines of all pairs (x 100).",
        "",
        f"| | {' | '.join(names.values())} |",
        "|---|" + "---|" * len(names),
    ]
    for label, row in report["rows"].items():
        cells = [f"{row[key]:,}" if key in row else "" for key in names]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    if report["dev"]:
        lines += ["", "## Dev scores", "", "| set | score |", "|---|---|"]
        lines += [f"| {name} | {value:.2f} |" for name, value in report["dev"].items()]
    lines += ["", *recipe_section(recipe)]
    return "\n".join(lines) + "\n"


def _plot(path: Path, report: Mapping[str, Any]) -> None:
    """Speed against quality, a point a model, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.add_subplot()
    for label, row in report["rows"].items():
        if "texts_per_second" not in row:
            continue
        quality = 100 * row.get("neighbors", 1.0)
        axis.plot(row["texts_per_second"], quality, "o")
        axis.annotate(
            f"{label}, {row['megabytes']:,} MB",
            (row["texts_per_second"], quality),
            xytext=(0, -12),
            textcoords="offset points",
            ha="center",
            fontsize="small",
        )
    axis.margins(0.3)
    axis.set(
        xlabel="texts per second",
        ylabel=f"teacher's nearest {_NEIGHBORS} kept, %",
        title="Teacher and student on texts that were held out",
    )
    figure.savefig(path, dpi=120)
