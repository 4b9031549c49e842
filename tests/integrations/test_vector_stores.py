"""The export of an index in LanceDB and Qdrant's local mode: the blocks of docs/scale.md, verbatim."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from embedkit import Encoder
from embedkit.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
QUERY = "a soup with lentils"
DOCUMENTS = 120


def block(title: str) -> str:
    """The Python block of a section."""
    section = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8").split(f"\n### {title}\n")[1]
    marker = f"<!-- run by tests/integrations/{Path(__file__).name}: "
    found = re.match(rf"\n{re.escape(marker)}.*? -->\n```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    lines = (ROOT / "examples" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:DOCUMENTS]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main(["build", str(folder / "corpus.jsonl"), "-o", str(folder / "my-index")]) == 0
    assert main(["export", str(folder / "my-index"), str(folder / "vectors.parquet")]) == 0
    return folder


@pytest.mark.parametrize("title", ["LanceDB", "Qdrant"])
def test_the_nearest_there_are_the_nearest(folder: Path, title: str) -> None:
    code = block(title)
    assert QUERY in code
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    table = pyarrow.parquet.read_table(folder / "vectors.parquet")
    assert table.num_rows == DOCUMENTS
    scores = np.stack(table["vector"].to_numpy()) @ Encoder().encode_query(QUERY, normalize_embeddings=True)
    best = [table["id"][int(row)].as_py() for row in np.argsort(-scores)[:3]]
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == best


@pytest.mark.parametrize("title", ["Milvus", "pgvector"])
def test_what_is_not_run_is_python(title: str) -> None:
    section = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8").split(f"\n### {title}\n")[1]
    found = re.match(r"\n<!-- not run: needs a .*? server.* -->\n```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    ast.parse(found[1])
