"""The packages beside embedkit get the same texts."""

from __future__ import annotations

import json
from pathlib import Path

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
