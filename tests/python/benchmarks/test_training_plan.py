"""The plan of the trainings counts the tokens of every text of a row, and not its labels."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("yaml")

import yaml


def test_tokens_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(
        "a\tb\tscore\none two\tthree\t1.5\nfour\tfive six\t2\n", encoding="utf-8"
    )
    columns = {"text1": "a", "text2": "b", "label": "score"}
    source = yaml.safe_dump({"path": "pairs.tsv", "columns": columns})
    rows, tokens = import_module("training_plan")._size(source, tmp_path)
    assert (rows, tokens) == (2, 3 + 2 * 2)  # three words, and [CLS] and [SEP] of two texts
