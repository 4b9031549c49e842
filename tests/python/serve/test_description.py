"""Schemathesis sends what the OpenAPI description allows, and what it does not.

Needs ``pip install schemathesis``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from running_server import RunningServer


@pytest.mark.skipif(
    find_spec("schemathesis") is None, reason="schemathesis is not installed: pip install schemathesis"
)
def test_answers_are_as_described(searching: RunningServer, tmp_path: Path) -> None:
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    options = ["--checks", checks, "--max-examples", "20", "--seed", "1"]
    code = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", f"{searching.url}/openapi.json", *options],
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert searching.errors() == ""
