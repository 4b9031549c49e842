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


def test_a_package_without_a_row_is_named_with_the_reason() -> None:
    import readme

    text = readme.throughput(result_of("cpu-zen4-avx2"))
    assert "its best batch size (from 8 up)" in text
    assert "\nCannot be limited to avx2: embedkit onnx; fastembed fp32;" in text
    assert "\nNot measured: embedkit onnx;" in readme.processor(result_of("cpu-zen2"))
    assert "ot measured" not in readme.processor(result_of("cpu-zen5"))


def test_a_package_that_failed_on_some_models_is_named_with_them() -> None:
    import readme

    result = result_of("cpu-zen5")
    for case in result["cases"][2:4]:
        case["rows"] = [row for row in case["rows"] if row["peer"] != "llama.cpp-int8"]
        case["left_out"] = {"llama.cpp-int8": "ValueError: only mean pooling"}
    for case in result["cases"]:
        case["rows"] = [row for row in case["rows"] if row["peer"] != "openvino-bf16"]
    text = readme.processor(result)
    assert "\nNot measured: openvino bf16.\n" in text
    where = "bge-small-en-v1.5, 16 tokens, and bge-small-en-v1.5, 256 tokens"
    assert f"\nValueError: only mean pooling: llama.cpp int8 ({where}).\n" in text


def test_speeds_are_labeled_with_their_own_machine_and_stand_beside_no_other() -> None:
    import readme

    result = result_of("card")
    result["rows"]["minilm"]["speed"]["machine"]["cpu_family_model"] = "25/17"
    (line,) = (line for line in readme.whole_card(result).splitlines() if "texts a second" in line)
    assert "(Zen 5, avx512_vnni), 2026-11-24" in line
    assert "3,644" in line and "3,701" not in line


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


def test_a_table_names_the_days_of_its_cases() -> None:
    import readme_cells

    result = result_of("cpu-zen5")
    for case in result["cases"]:
        case["date"] = "2026-11-28T05:00:00Z"
    assert readme_cells.machine(result).endswith(", 2026-11-28")
    result["cases"][0]["date"] = "2026-11-30T03:00:00Z"
    assert readme_cells.machine(result).endswith(", 2026-11-28 to 2026-11-30")


def test_a_result_without_a_table_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import common
    import readme

    monkeypatch.delitem(readme.RENDER, "serve")
    with pytest.raises(SystemExit, match="a result of serve has none"):
        readme._update(common.ROOT / "docs" / "serve.md", write=False)


def test_searches_of_the_catalog_are_the_means_of_the_card_without_its_development_collections() -> None:
    import common

    rows = result_of("card")["rows"]
    tests = [name for name in rows["BM25"]["search"] if name not in common.DEVELOPMENT]
    assert "npl" not in tests
    catalog = json.loads(
        (common.ROOT / "embedkit" / "model_folder" / "catalog.json").read_text(encoding="utf-8")
    )
    said = {need["model"]: need["figures"] for need in catalog["needs"] if "search" in need["figures"]}
    of_card = {
        "embedkit-256-int8": "built-in",
        "BAAI/bge-small-en-v1.5": "bge-small-prompted",
        "sentence-transformers/all-mpnet-base-v2": "mpnet",
    }
    assert said.keys() == of_card.keys()
    for model, row in of_card.items():
        mean = sum(rows[row]["search"][name]["vectors"] for name in tests) / len(tests)
        assert f"search {mean:.3f}".replace("0.", ".") in said[model]
