"""ONNX folders in the form of other tools, made with torch.onnx alone, and changes that break a graph."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

NAMES = ("input_ids", "attention_mask", "token_type_ids")


def trace(
    source: Path, path: Path, *, inputs: Sequence[str] = NAMES, output: str = "last_hidden_state"
) -> Path:
    """Write transformers' model of ``source`` as Optimum does: token embeddings, dynamic axes; returns ``path``."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("onnx")
    model = transformers.AutoModel.from_pretrained(source, attn_implementation="eager").eval()

    class Hidden(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *arrays: Any) -> Any:
            return self.model(**dict(zip(inputs, arrays, strict=True)))[0]

    path.parent.mkdir(parents=True, exist_ok=True)
    free = {0: "batch_size", 1: "sequence_length"}
    example = torch.ones(2, 5, dtype=torch.long)
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                Hidden(), (example,) * len(inputs), str(path), dynamo=False, opset_version=17,
                input_names=list(inputs), output_names=[output],
                dynamic_axes={**dict.fromkeys(inputs, free), output: free},
            )  # fmt: skip
    finally:
        logging.disable(level)
    return path


def optimum_folder(source: Path, graph: Path, target: Path, name: str = "onnx/model.onnx") -> Path:
    """``source`` with ``graph`` instead of the transformer's weights; returns ``target``."""
    shutil.copytree(source, target)
    (target / "model.safetensors").unlink()
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(graph, target / name)
    return target


def edit_graph(path: Path, change: Callable[[Any], None]) -> None:
    """Change the ONNX model in ``path`` in place."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(str(path))
    change(model)
    onnx.save(model, str(path))
