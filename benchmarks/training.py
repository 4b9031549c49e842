"""Reproduce the tables of the papers: ``python benchmarks/training.py TABLE... --data DIR --work DIR``.

A table (``papers/tables/*.yaml``) consists of many trainings, each in its own process, several at once. A
second call resumes where the first was stopped, a training at its last checkpoint. Results are written after each
training, to benchmarks/results/training/ or the folder of --results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from common import TRAINING_RESULTS, machine_info, versions, write_json
from papers import plots
from papers import table as tables


def write(
    table: tables.Table, work: Path, held: dict[str, Any], path: Path, machine: dict[str, Any]
) -> dict[str, Any]:
    """Write the results so far, those of earlier calls (``held``) included, and their plots."""
    results = tables.collect(table, work, held["runs"])
    if held["runs"] and results["runs"] == held["runs"]:  # nothing new was measured
        results |= {"machine": held["machine"], "versions": held["versions"]}
    else:
        results |= {
            "machine": machine,
            "versions": versions(["torch", "transformers", "scikit-learn"]),
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, results)
    plots.plot(results, table.plot, path.with_suffix(".png"))
    if table.curve is not None:
        plots.plot_curves(results, table.curve, path.with_name(f"{path.stem}-curve.png"))
    return results


def main() -> int:
    known = tables.list_tables()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", nargs="+", choices=sorted(known), help="which table")
    parser.add_argument(
        "--work", type=Path, default=Path("runs"), help="folder for the trainings (default: runs)"
    )
    parser.add_argument(  # a shell does not expand what follows "="
        "--data",
        type=lambda text: Path(os.path.expanduser(text)),
        help="data folder (default: EMBEDKIT_DATA)",
    )
    parser.add_argument(
        "--results", type=Path, help="folder for the results (default: benchmarks/results/training)"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="trainings to run at once")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="RUN",
        help="run only these and what they need: KEY, or KEY-SEED for one seed",
    )
    parser.add_argument("--collect", action="store_true", help="run nothing, only write the results so far")
    options = parser.parse_args()
    if options.workers < 1:
        parser.error(f"--workers must be 1 or more, not {options.workers}")
    if options.data is not None and not options.data.is_dir():
        parser.error(f"--data {options.data} is not a folder")
    machine = machine_info()
    chosen = {name: tables.load_table(known[name]) for name in options.table}
    every = [spec for table in chosen.values() for spec in tables.specs(table, options.work)]
    only = set(options.only or [])
    if unknown := only - {spec.key for spec in every} - {spec.folder for spec in every}:
        parser.error(f"--only: no such run: {', '.join(sorted(unknown))}")
    try:
        for name, table in chosen.items():
            work = options.work / name
            path = (options.results or TRAINING_RESULTS) / f"{name}.json"
            held = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"runs": {}}
            if not options.collect:
                tables.measure(
                    table,
                    work,
                    held["runs"],
                    data_root=options.data,
                    workers=options.workers,
                    report=lambda line: print(line, file=sys.stderr, flush=True),
                    only=lambda spec: not only or bool({spec.key, spec.folder} & only),
                    finished=partial(write, table, work, held, path, machine),
                )
            print(tables.markdown(write(table, work, held, path, machine)), end="\n\n")
    except (RuntimeError, ValueError, FileNotFoundError) as error:
        raise SystemExit(str(error)) from None
    return 0


if __name__ == "__main__":
    sys.exit(main())
