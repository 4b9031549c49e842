"""The plan of the trainings: tokens of every text of a row and not of its labels, and the hours that follow."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("yaml")

import yaml
from papers import table as tables


def test_tokens_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(
        "a\tb\tscore\none two\tthree\t1.5\nfour\tfive six\t2\n", encoding="utf-8"
    )
    columns = {"text1": "a", "text2": "b", "label": "score"}
    source = yaml.safe_dump({"path": "pairs.tsv", "columns": columns})
    rows, tokens = import_module("training_plan")._size(source, tmp_path)
    assert (rows, tokens) == (2, 3 + 2 * 2)  # three words, and [CLS] and [SEP] of two texts


def test_the_hours_of_what_is_missing(tmp_path: Path) -> None:
    """6 x parameters x tokens, 8 x with GradCache; narrow layers at half the speed; what is done costs nothing."""
    plan: Any = import_module("training_plan")
    rows = "".join("the people see water\tand find many long days\tentailment\n" for _ in range(64))
    (tmp_path / "pairs.tsv").write_text(f"premise\thypothesis\tlabel\n{rows}")
    data = (
        "data.nli={path: pairs.tsv, columns: {text1: premise, text2: hypothesis, label: label}, "
        "labels: [entailment, neutral]}"
    )
    bert = "model.path=google-bert/bert-base-uncased"
    content = {
        "title": "a table",
        "set": [data, "training.batch_size=16", "training.epochs=2"],
        "columns": {"dev": "dev.nli_accuracy"},
        "plot": "dev",
        "runs": {
            "narrow": {"recipe": "sbert", "set": ["model.layers=3"]},
            "wide": {"recipe": "sbert", "set": [bert]},
            "cached": {"recipe": "sbert", "set": [bert, "training.mini_batch_size=4"]},
            "half": {"recipe": "sbert", "set": ["model.path={wide}", "model.layers=[0, 1, 2, 3, 4, 5]"]},
            "done": {"recipe": "sbert"},
        },
    }
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(content))
    table = tables.load_table(tmp_path / "table.yaml")
    done = next(spec for spec in tables.specs(table, tmp_path) if spec.key == "done")
    found = plan.costs(table, tmp_path, 1e9, {"done-1": {"set": done.told}})
    assert [one.folder for one in found] == ["cached-1", "wide-1", "half-1", "narrow-1"]
    by_name = {one.folder: one for one in found}
    wide = by_name["wide-1"]
    assert wide.steps == 8
    assert wide.parameters == 12 * 12 * 768**2
    assert wide.hours == pytest.approx(6 * wide.parameters * wide.tokens / 1e9 / 3600)
    assert by_name["cached-1"].hours == pytest.approx(wide.hours * 8 / 6)
    assert by_name["half-1"].hours == pytest.approx(wide.hours / 2)
    narrow = by_name["narrow-1"]
    assert narrow.hours == pytest.approx(6 * 3 * 12 * 384**2 * narrow.tokens / 0.5e9 / 3600)
