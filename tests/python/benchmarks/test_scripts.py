"""The scripts fit the package: what they import exists, and those that no other test runs do run."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.rglob("*.py"))
OWN = {"embedkit", "peers", *(path.stem for path in SCRIPTS)}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(BENCHMARKS).as_posix())
def test_imports_resolve(path: Path) -> None:
    """Those within functions too, which importing the script does not reach."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in OWN:
            continue
        try:
            module = import_module(node.module or "")
            for name in node.names:
                if not hasattr(module, name.name):
                    import_module(f"{node.module}.{name.name}")
        except ImportError as error:
            missing = error.__cause__ or error
            if not isinstance(missing, ModuleNotFoundError) or (missing.name or "").partition(".")[0] in OWN:
                raise  # not a package that is not installed here


def test_auto_index_runs(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    sizes = {"rows": 2000, "queries": 100, "clusters": 20, "dimension": 16, "lists": 8, "seconds": 1}
    options = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    output = tmp_path / "auto_index.json"
    script = [sys.executable, str(BENCHMARKS / "auto_index.py"), *options, "--json", str(output)]
    subprocess.run(script, stdout=subprocess.DEVNULL, check=True, timeout=300)
    rows = json.loads(output.read_text(encoding="utf-8"))["results"]
    assert [row["name"] for row in rows] == ["auto", "IVF8,Flat"]
    assert all(row["recall_at_10"] > 0.5 and row["ms_per_query"]["median"] > 0 for row in rows)
