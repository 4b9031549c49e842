"""Reproduce the tables of the papers: ``python benchmarks/training.py TABLE... --data DIR --work DIR``.

A table (``training/recipes/tables/*.yaml``) consists of many trainings, each in its own process, several at once. A
second call resumes where the first was stopped. Results are written to benchmarks/results/training/.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from common import machine_info, versions, write_json
from embedkit.training import table as tables

RESULTS = Path(__file__).parent / "results" / "training"


def main() -> int:
    known = tables.list_tables()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", nargs="+", choices=sorted(known), help="which table")
    parser.add_argument(
        "--work", type=Path, default=Path("runs"), help="folder for the trainings (default: runs)"
    )
    parser.add_argument("--data", type=Path, help="data folder (default: EMBEDKIT_DATA)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="trainings to run at once")
    parser.add_argument("--only", default="", help="run only trainings whose folder name contains this")
    parser.add_argument("--collect", action="store_true", help="run nothing, only write the results so far")
    options = parser.parse_args()
    if options.workers < 1:
        parser.error(f"--workers must be 1 or more, not {options.workers}")
    for name in options.table:
        table, work, path = tables.load_table(known[name]), options.work / name, RESULTS / f"{name}.json"
        held = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"runs": {}}
        earlier = held["runs"]
        if options.collect:
            results = tables.collect(table, work, earlier)
        else:
            results = tables.measure(
                table,
                work,
                earlier,
                data_root=options.data,
                workers=options.workers,
                report=lambda line: print(line, file=sys.stderr, flush=True),
                only=lambda spec: options.only in spec.folder,
            )
        RESULTS.mkdir(parents=True, exist_ok=True)
        if earlier and results["runs"] == earlier:  # nothing new was measured
            results |= {"machine": held["machine"], "versions": held["versions"]}
        else:
            results |= {
                "machine": machine_info(),
                "versions": versions(["torch", "transformers", "scikit-learn"]),
            }
        write_json(path, results)
        tables.plot(results, table.plot, path.with_suffix(".png"))
        print(tables.markdown(results, table.columns), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
