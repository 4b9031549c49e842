"""Tables of a paper: many runs of recipes, resumable and parallel, with their scores side by side.

A table is a YAML file in ``tables/``:

    title: one line
    note: data, sizes ({plain.examples.nli}), differences from the paper
    set: [model.layers=2]                    # overrides of every run
    prepare: {vocab: [embedkit.training.vocabulary, ...]}   # a module and its arguments, which create {vocab}
    runs:
      teacher: {recipe: cross-encoder-nli}   # a run without a name has no row
      annealed:
        name: one teacher, annealed          # the row of the table
        recipe: dvbert
        set: ["objective.teachers=[{teacher}]"]   # {teacher}: the model folder of that run
        seeds: [1, 2, 3]
        paper: {STS-B: 76.1}                 # what the paper has in this row, shown beside ours
    columns: {STS-B: test.sts.STS-B}         # column -> where in a run's result.json
    plot: STS-B                              # the column to plot
    curve: stsb_dev                          # the dev score to plot against the step, or none
    claims:                                  # what the table shows; a test holds them to the results
      - {text: teachers help, column: STS-B, order: [annealed, plain]}   # runs, the highest mean first
      - {text: by a point, column: STS-B, order: [annealed, plain], by: 1.0}

Each difference that a claim names, and its significance, is computed from the seeds that both runs have. Claims, and
sentences of the note with sizes, are left out while a run that they are about is not measured.

A run that refers to another waits for it. ``{name}`` is the other run with the same seed if it has that seed, else
with its first one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from embedkit.training.recipe import build, find_recipe, load_recipe

from papers.text import claim_lines, note_text, table_lines

__all__ = ["Claim", "Run", "Spec", "Table", "collect", "list_tables", "load_table", "markdown", "measure"]

_FOLDER = Path(__file__).parent / "tables"
_REFERENCE = re.compile(r"\{([\w-]+)\}")
_COUNT = re.compile(r"\{([\w-]+)\.([\w.-]+)\}")
_BETWEEN_SENTENCES = re.compile(r"(?<=\.) ")


@dataclass(frozen=True)
class Run:
    """A row of a table, or a model that other runs need.

    Attributes:
        recipe: name of a recipe.
        name: the row's name; None if the run has no row.
        part: the part of the table that the row belongs to.
        set: overrides, after those of the table.
        seeds: one run each.
        paper: column -> the paper's figure for this row.
    """

    recipe: str
    name: str | None = None
    part: str = ""
    set: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [1])
    paper: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """What a table shows.

    Attributes:
        text: the claim, for the documentation.
        column: the column that it is about.
        order: keys of runs, the highest mean first.
        by: each mean is at least this much above the next.
    """

    text: str
    column: str
    order: list[str]
    by: float = 0.0

    def holds(self, rows: Mapping[str, Mapping[str, Any]]) -> bool | None:
        """Whether the means of ``rows``, by key of the run, fall in this order; None if one is not measured."""
        scores = [rows[key]["scores"].get(self.column) if key in rows else None for key in self.order]
        if any(score is None for score in scores):
            return None
        means = [score["mean"] for score in scores if score is not None]
        return all(first > second and first - second >= self.by for first, second in pairwise(means))


@dataclass(frozen=True)
class Table:
    """A checked table file; see the module's docstring."""

    title: str
    runs: dict[str, Run]
    columns: dict[str, str]
    plot: str
    note: str = ""
    curve: str | None = None
    claims: list[Claim] = field(default_factory=list)
    set: list[str] = field(default_factory=list)
    prepare: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Spec:
    """One training: a run with a seed."""

    key: str
    seed: int
    recipe: str
    overrides: tuple[str, ...]  # as on the command line
    told: list[str]  # as in the table file
    needs: tuple[str, ...]  # folders of other trainings

    @property
    def folder(self) -> str:
        """Its folder below the work folder."""
        return f"{self.key}-{self.seed}"


def load_table(path: Path) -> Table:
    """Read and check a table file, all its recipes and overrides included.

    Raises:
        ValueError: a key, a recipe, a reference or an override is unknown.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("a table holds title, runs and columns")
        table = build(Table, content, "table")
        if table.plot not in table.columns:
            raise ValueError(f"plot {table.plot!r} is none of the columns {', '.join(table.columns)}")
        for claim in table.claims:
            unknown = [key for key in claim.order if key not in table.runs]
            if unknown or claim.column not in table.columns or len(claim.order) < 2:
                raise ValueError(f"claims: {claim.text!r} needs a column and two or more runs of the table")
        for key, run in table.runs.items():
            if not run.seeds:
                raise ValueError(f"runs.{key}: give at least one seed")
            if unknown := [column for column in run.paper if column not in table.columns]:
                raise ValueError(f"runs.{key}: paper names {unknown[0]!r}, which is no column")
        every = {spec.folder: spec for spec in specs(table, Path("work"))}
        for spec in every.values():
            _check_order(spec, every, ())
            load_recipe(find_recipe(spec.recipe), spec.overrides)
    except (ValueError, FileNotFoundError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from None
    return table


def _check_order(spec: Spec, every: Mapping[str, Spec], before: tuple[str, ...]) -> None:
    """Refuse cyclic dependencies."""
    path = (*before, spec.folder)
    if spec.folder in before:
        raise ValueError(f"no run can start first: {' needs '.join(path)}")
    for need in spec.needs:
        _check_order(every[need], every, path)


def specs(table: Table, work: Path) -> list[Spec]:
    """The trainings of a table, in the order of its file."""
    found = []
    for key, run in table.runs.items():
        for seed in run.seeds:
            needs: list[str] = []

            def folder(match: re.Match[str], seed: int = seed, needs: list[str] = needs) -> str:
                other = match[1]
                if other in table.prepare:
                    return str((work / other).absolute())
                if other not in table.runs:
                    raise ValueError(f"there is no run {other!r} for {{{other}}}")
                seeds = table.runs[other].seeds
                needs.append(f"{other}-{seed if seed in seeds else seeds[0]}")
                return str((work / needs[-1] / "model").absolute())

            told = [*table.set, *run.set, f"training.seed={seed}"]
            overrides = tuple(_REFERENCE.sub(folder, text) for text in told)
            found.append(Spec(key, seed, run.recipe, overrides, [run.recipe, *told], tuple(needs)))
    return found


def measure(
    table: Table,
    work: Path,
    known: Mapping[str, Any],
    *,
    data_root: Path | None,
    workers: int,
    report: Callable[[str], None],
    only: Callable[[Spec], bool] = lambda spec: True,
    finished: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run the missing trainings, each in its own process, and collect all results.

    Args:
        work: contains a folder per training; finished ones are not repeated, stopped ones are resumed.
        known: results of an earlier call, possibly on another machine: such a training is repeated only if its
            settings or those of a run that it refers to have changed, or if a missing one needs its model.
        workers: parallel trainings; each has one thread if there are several.
        report: called at each start and end.
        only: selects the trainings to run, besides those that they need.
        finished: called after each training, to write the results so far.

    Returns:
        ``rows`` (name, seeds, scores by column with mean and standard deviation), ``claims`` and ``runs``.

    Raises:
        RuntimeError: a training failed; names its log. Others that were running are stopped.
        ValueError: a finished training is of other settings; found before one is started.
    """
    work.mkdir(parents=True, exist_ok=True)
    collect(table, work, known)
    waiting = _missing(table, work, known, only)
    for name, command in table.prepare.items() if waiting else ():
        if not (work / name).is_dir():
            report(f"{name}: created by {command[0]}")
            part = work / f".{name}"
            shutil.rmtree(part, ignore_errors=True)  # of a killed call
            _run_module(command, part, data_root)
            part.rename(work / name)
    running: dict[subprocess.Popen[bytes], tuple[Spec, float]] = {}
    try:
        while waiting or running:
            for process, (spec, started) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[process]
                if process.returncode:
                    log = work / spec.folder / "log.txt"
                    tail = log.read_text(encoding="utf-8", errors="replace")[-1500:]
                    raise RuntimeError(f"{spec.folder} failed; {log} ends with:\n{tail}")
                report(f"{spec.folder}: {time.monotonic() - started:.0f} s")
                finished()
            ready = [spec for spec in waiting if all(_finished(work, need) for need in spec.needs)]
            for spec in ready[: workers - len(running)]:
                waiting.remove(spec)
                running[_start(spec, work, data_root, workers)] = (spec, time.monotonic())
                report(f"{spec.folder}: started")
            time.sleep(0.5 if running else 0)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    return collect(table, work, known)


def _run_module(command: list[str], output: Path, data_root: Path | None) -> None:
    """Run ``python -m`` a module that creates a folder."""
    data = [] if data_root is None else ["--data", str(data_root)]
    process = [sys.executable, "-m", *command, "--output", str(output), *data]
    done = subprocess.run(process, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.decode(errors='replace')[-1500:]}")


def _missing(table: Table, work: Path, known: Mapping[str, Any], only: Callable[[Spec], bool]) -> list[Spec]:
    """The trainings to run, each after those that it needs."""
    every = {spec.folder: spec for spec in specs(table, work)}
    needed: dict[str, Spec] = {}

    def need(spec: Spec) -> None:
        if spec.folder not in needed and not _finished(work, spec.folder):
            for other in spec.needs:
                need(every[other])
            needed[spec.folder] = spec

    for spec in every.values():
        if only(spec) and (spec.folder not in known or _changed(spec, every, known)):
            need(spec)
    return list(needed.values())


def _changed(spec: Spec, every: Mapping[str, Spec], known: Mapping[str, Any]) -> bool:
    """Whether a known result is of other settings: its own, or those of a run that it refers to.

    A run that is not among the results says nothing: models that only others need are not always kept.
    """
    own = known.get(spec.folder)
    return (own is not None and own["set"] != spec.told) or any(
        _changed(every[need], every, known) for need in spec.needs
    )


def _finished(work: Path, folder: str) -> bool:
    return (work / folder / "result.json").is_file()


def _start(spec: Spec, work: Path, data_root: Path | None, workers: int) -> subprocess.Popen[bytes]:
    output = work / spec.folder
    output.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "embedkit.training.cli", spec.recipe, *spec.overrides]
    command += ["--output", str(output), "--cache", str(work / "cache")]
    if data_root is not None:
        command += ["--data", str(data_root)]
    environment = dict(os.environ)
    if workers > 1:
        environment["OMP_NUM_THREADS"] = "1"
    with (output / "log.txt").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )


def collect(table: Table, work: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    """The available results, in ``work`` or ``known``."""
    runs: dict[str, Any] = {}
    every = {spec.folder: spec for spec in specs(table, work)}
    for spec in every.values():
        if _finished(work, spec.folder):
            _check_settings(work, spec)
            result = json.loads((work / spec.folder / "result.json").read_text(encoding="utf-8"))
            runs[spec.folder] = {"set": spec.told, **result}
        elif spec.folder in known and not _changed(spec, every, known):
            runs[spec.folder] = known[spec.folder]
    rows = _majority(table, runs)
    for key, run in table.runs.items():
        results = {seed: runs[f"{key}-{seed}"] for seed in run.seeds if f"{key}-{seed}" in runs}
        if run.name is not None and results:
            scores = {}
            for column, where in table.columns.items():
                values = [value for one in results.values() if (value := _at(one, where)) is not None]
                scores[column] = _spread(values)
            rows.append(
                {
                    "name": run.name,
                    "part": run.part,
                    "run": key,
                    "seeds": list(results),
                    "of": run.seeds,
                    "scores": scores,
                    "paper": run.paper,
                }
            )
    return {
        "title": table.title,
        "note": _with_counts(table, runs),
        "rows": rows,
        "claims": [
            {"text": claim.text, "column": claim.column, "differences": _differences(table, claim, runs)}
            for claim in table.claims
        ],
        "runs": runs,
    }


def _differences(table: Table, claim: Claim, runs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How far each run of a claim is above the next, in the mean of the seeds that both have; empty if there is none.

    ``p`` is the significance by the two-sided paired t-test over these seeds; None with fewer than two, or without
    variance.
    """

    def scores(key: str) -> dict[int, float]:
        found = {
            seed: _at(runs.get(f"{key}-{seed}", {}), table.columns[claim.column])
            for seed in table.runs[key].seeds
        }
        return {seed: value for seed, value in found.items() if value is not None}

    measured = [scores(key) for key in claim.order]
    found = []
    for (above, first), (below, second) in pairwise(zip(claim.order, measured, strict=True)):
        differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
        if not differences:
            return []
        found.append(
            {
                "above": above,
                "below": below,
                "difference": statistics.fmean(differences),
                "seeds": len(differences),
                "p": _paired(differences),
            }
        )
    return found


def _paired(differences: list[float]) -> float | None:
    """The p-value of differences under the hypothesis that their mean is 0."""
    from scipy.stats import ttest_1samp

    if len(set(differences)) < 2:
        return None
    return float(ttest_1samp(differences, 0).pvalue)


def _with_counts(table: Table, runs: Mapping[str, Any]) -> str:
    """The note, with ``{run.examples.task}`` and other ``{run.path}`` replaced by that number of the run's result.

    Sentences about a run that is not measured are left out.

    Raises:
        ValueError: the table has no such run, or its result no such number.
    """

    def result(key: str) -> Any:
        if key not in table.runs:
            raise ValueError(f"the note names the run {key!r}, which the table does not have")
        return runs.get(f"{key}-{table.runs[key].seeds[0]}")

    def count(match: re.Match[str]) -> str:
        key, where = match.groups()
        number = _at(result(key), where)
        if number is None:
            raise ValueError(f"the note names {where!r}, which the result of {key!r} does not have")
        return f"{number:,.0f}"

    sentences = [
        sentence
        for sentence in _BETWEEN_SENTENCES.split(table.note)
        if all(result(key) is not None for key, _ in _COUNT.findall(sentence))
    ]
    return _COUNT.sub(count, " ".join(sentences))


def _majority(table: Table, runs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The row of always predicting a dev set's most frequent class, if a column is an accuracy."""
    for folder, result in runs.items():
        shares = {f"dev.{task}_accuracy": share for task, share in (result.get("majority") or {}).items()}
        scores = {name: _spread([shares[at]] if at in shares else []) for name, at in table.columns.items()}
        key, _, seed = folder.rpartition("-")
        if table.runs[key].name is not None and any(scores.values()):
            row = {"name": "the majority class", "part": "nothing learned", "run": "majority"}
            return [row | {"seeds": [int(seed)], "of": [int(seed)], "scores": scores}]
    return []


def _check_settings(work: Path, spec: Spec) -> None:
    """Refuse the result of a run with an earlier version of the table file."""
    held = json.loads((work / spec.folder / "recipe.json").read_text(encoding="utf-8"))
    wanted = load_recipe(find_recipe(spec.recipe), spec.overrides).resolved()
    for section in ("objective", "postprocess", "model", "data", "training", "evaluation"):
        for key, value in wanted.get(section, {}).items():
            # an option that did not exist yet had no effect
            if key in held.get(section, {}) and held[section][key] != value:
                raise ValueError(
                    f"{work / spec.folder} contains a run with other settings ({section}.{key}); "
                    "remove it and those of the runs that refer to it, or give another work folder"
                )


def _at(result: Mapping[str, Any], where: str) -> float | None:
    """A number in nested results, e.g. ``test.sts.STS-B``."""
    value: Any = result
    for key in where.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return float(value)


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}


def markdown(results: Mapping[str, Any]) -> str:
    """The table as Markdown, with what it shows and its note."""
    claims = claim_lines(results)
    return "\n".join(
        [
            f"**{results['title']}**",
            *table_lines(results),
            "",
            *claims,
            *([""] if claims else []),
            note_text(results),
        ]
    )


def list_tables() -> dict[str, Path]:
    """Name -> file of the tables."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*.yaml"))}
