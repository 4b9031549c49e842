"""Python that runs in a checkout imports its folder, which lacks the compiled core: the message says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import embedkit

CODE = """
import importlib.machinery, sys
# an editable installation finds the core by a hook of its own: as if there were none
sys.meta_path = [one for one in sys.meta_path if one is importlib.machinery.PathFinder or isinstance(one, type)]
{}
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkout")
    source = Path(embedkit.__file__).parent
    shutil.copytree(
        source,
        root / "embedkit",
        ignore=shutil.ignore_patterns("*.so", "*.pyd", "models", "training", "kernels", "__pycache__"),
    )
    (root / "csrc").mkdir()
    return root


@pytest.mark.parametrize(
    "statement",
    [
        "import embedkit",
        "from embedkit import Encoder",
        "from embedkit import training",
        "from runpy import run_module; run_module('embedkit.training.generate')",  # python -m
    ],
)
def test_the_message_says_why_and_what_to_do(checkout: Path, statement: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(statement)],
        cwd=checkout,
        env={name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert told.startswith("ImportError: ") and "is a checkout without the compiled parts" in told, (
        done.stderr
    )
    assert str(checkout / "embedkit") in told and "python -P" in told and "pip install -e ." in told


def test_other_names_are_missing_as_ever() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        embedkit.nonsense  # noqa: B018
