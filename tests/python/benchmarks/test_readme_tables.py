"""Tables of results that lack a part, or that are not of what ships today."""

from __future__ import annotations

import json
from typing import Any

import pytest


def result_of(name: str) -> dict[str, Any]:
    import common

    found: dict[str, Any] = json.loads((common.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def test_a_gpu_row_without_further_measurements_has_empty_cells() -> None:
    import readme

    result = result_of("gpu-h100")
    for part in ("alone", "one_query", "sts"):
        del result["rows"][0][part]
    assert result["rows"][0]["name"] in readme.throughput_on_a_gpu(result)


def test_another_built_in_model_is_called_former() -> None:
    import readme

    from embedkit import Encoder

    result = result_of("retrieval")
    assert "| former built-in, 128" in readme.retrieval(result)
    assert "| built-in, 128" in readme.retrieval(result | {"built_in": Encoder(device="cpu").fingerprint})


def test_settings_of_another_model_are_confessed() -> None:
    import readme

    result = result_of("cpu-zen4")
    for case in result["cases"]:
        for row in case["rows"]:
            row["tried"] = {}
    first, second = result["cases"][0], result["cases"][2]
    assert first["case"] == second["case"] == "short"
    for row in (*first["rows"], *second["rows"]):
        row["tried"] = {"8": 1.0}
    result["cases"] = [first, second]
    assert "at its best batch size" in readme.processor(result)
    row = second["rows"][1]
    row["tried"], row["batch"] = {}, "64x2"
    text = readme.processor(result)
    assert "at its best batch size" not in text
    assert f"{row['name']} (64x2)" in text


def test_a_result_without_a_table_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import common
    import readme

    monkeypatch.delitem(readme.RENDER, "serve")
    with pytest.raises(SystemExit, match="a result of serve has none"):
        readme._update(common.ROOT / "docs" / "serve.md", write=False)
