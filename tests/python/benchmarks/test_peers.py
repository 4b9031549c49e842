"""The packages beside embedkit get the same texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_fastembed_cuts_texts_where_the_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peers.fe import FastEmbed
    from peers.ort import OnnxRuntime

    model, cache = tmp_path / "model", tmp_path / "cache"
    model.mkdir()
    cache.mkdir()
    files = {
        "config.json": {"max_position_embeddings": 512},
        "tokenizer.json": {},
        "tokenizer_config.json": {"model_max_length": 512, "max_length": 128},
        "sentence_bert_config.json": {"max_seq_length": 256},
    }
    for name, content in files.items():
        (model / name).write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(OnnxRuntime, "convert", lambda self: self.graph.write_bytes(b"graph"))
    peer = FastEmbed(model, 1, cache)
    peer.convert()
    laid_out = json.loads((peer.laid_out / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert laid_out["model_max_length"] == laid_out["max_length"] == 256
    assert (peer.laid_out / "model.onnx").read_bytes() == b"graph"


@pytest.mark.parametrize(
    ("flags", "graph"),
    [
        (["avx2", "avx512f"], "int8-7bit.onnx"),
        (["avx2", "avx_vnni"], "int8.onnx"),
        (["avx2", "avx512f", "avx512_vnni"], "int8.onnx"),
        (["asimd", "asimddp"], "int8.onnx"),
    ],
)
def test_onnxruntime_has_weights_of_7_bits_where_sums_saturate(
    flags: list[str], graph: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import common
    from peers import onnx_export
    from peers.ort import OnnxRuntimeInt8

    made: list[tuple[str, Any]] = []
    monkeypatch.setattr(common, "machine_info", lambda: {"cpu_flags": flags})
    monkeypatch.setattr(
        onnx_export, "quantize", lambda source, target, **options: made.append((target.name, options))
    )
    for name in ("plain", "fused"):
        (tmp_path / f"{name}.onnx").write_bytes(b"graph")
    OnnxRuntimeInt8(tmp_path, 1, tmp_path).convert()
    assert made == [(graph, {"reduce_range": graph != "int8.onnx"})]
