"""`list_models` against the available folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedkit import Encoder, list_models
from embedkit.model_folder.folder import BUILTIN
from embedkit.model_folder.hub import _REPOSITORY

ROOT = Path(__file__).resolve().parents[3]


def test_every_figure_has_a_source() -> None:
    models = list_models()
    assert len({model.name for model in models}) == len(models) > 20
    for model in models:
        assert model.scores.keys() == model.sources.keys()
        assert all(0 < score < 100 for score in model.scores.values())
        assert model.checked in ("weights", "architecture")
        assert set(model.prompts) <= {"query", "document"}
        # fp32 or fp16 weights of this number of parameters, or our int8
        assert model.megabytes * 1e6 / model.parameters == pytest.approx(
            1 if model.name == BUILTIN.name else 2 if model.megabytes * 1e6 < 3 * model.parameters else 4,
            rel=0.02,
        )
        assert model.name == BUILTIN.name or _REPOSITORY.fullmatch(model.name)


def test_the_built_in_model_is_first_and_as_listed() -> None:
    listed, encoder = list_models()[0], Encoder()
    assert encoder.describe()["model"] == listed.name
    assert encoder.get_embedding_dimension() == listed.dimension
    assert encoder.max_seq_length == listed.max_length


def test_our_own_figures_are_those_that_were_measured() -> None:
    results = ROOT / "benchmarks" / "results"
    found = json.loads((results / "sts.json").read_text(encoding="utf-8"))
    measured = {row["model"]: row["sts"]["average"] for row in found["rows"]}
    card = json.loads((results / "card.json").read_text(encoding="utf-8"))
    measured[BUILTIN.name] = card["rows"]["built-in"]["sts"]["average"]
    listed = {model.name.rpartition("/")[2]: model.scores for model in list_models()}
    for name, average in measured.items():
        if name not in listed:
            continue  # another model with 128 dimensions, not the built-in one
        assert listed[name]["STS12-16, STS-B, SICK-R"] == pytest.approx(average, abs=0.01)


@pytest.mark.model
def test_a_real_model_is_as_listed(real_model: Path) -> None:
    encoder = Encoder(real_model)
    listed = next(m for m in list_models() if m.name == "sentence-transformers/all-MiniLM-L6-v2")
    assert encoder.get_embedding_dimension() == listed.dimension
    assert encoder.max_seq_length == listed.max_length
