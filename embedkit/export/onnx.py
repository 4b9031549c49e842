"""Exports a model folder that ``Encoder(FOLDER, backend="onnx")`` runs without torch."""

from __future__ import annotations

import os
import shutil
import warnings
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..arguments import check_fp32
from ..backends.onnx_files import DESCRIPTION, FORMAT, PRECISIONS, file_hash
from ..encoder import Encoder
from ..files import expanded
from ..inputs import TextsWarning
from ..model_folder.fingerprint import fingerprint, source_weights_hash
from ..model_folder.json_file import write_json
from ..model_folder.saving import copy_without_weights, new_folder

__all__ = ["Fidelity", "export_onnx"]

GRAPH = "model.onnx"

_PACKAGES = ("torch", "transformers", "onnx", "onnxruntime")
# The lowest acceptable minimum and mean cosine to the embeddings of the core.
_COMPARED_TOKENS = 2048
_BOUNDS = {"fp32": (0.9999, 0.9999), "fp16": (0.99, 0.999), "int8": (0.9, 0.98)}
_TEXTS = (
    "",
    "a",
    "The weather is lovely today.",
    "How do I reset my password when I cannot log in to my account?",
    "Die Lage am Markt hat sich zuletzt deutlich verbessert, sagte der Minister.",
    "Un homme joue de la guitare dans la rue, devant une foule de passants.",
    "今天天气很好，我们去公园散步吧。",
    "Погода сегодня прекрасная, пойдём гулять в парк!",
    "A distillation of several large teachers into one small encoder, at a fraction of the cost (12.5 %).",
    "x = [i ** 2 for i in range(10) if i % 3]  # squares",
)


@dataclass(frozen=True)
class Fidelity:
    """How close the embeddings of the exported graph are to those of the core in fp32.

    Attributes:
        least: the minimum cosine.
        mean: the mean cosine.
        texts: the number of texts compared, from the empty one to the maximum length of the model, or to one of 2,048
            to 4,096 tokens: the graph's attention takes memory that grows with the square of the length.
    """

    least: float
    mean: float
    texts: int


def export_onnx(
    model: str | os.PathLike[str] | Encoder, folder: str | os.PathLike[str], precision: str = "fp32"
) -> Fidelity:
    """Export a model as one ONNX graph, from token ids to the final vector, and check it against the core.

    The result is a folder of sentence-transformers with ``onnx/model.onnx`` instead of the weights, and
    ``onnx/model.embedkit.json``, which describes the graph. It is written atomically. The ONNX backend of
    sentence-transformers can use the graph's token embeddings.

    Args:
        model: a folder with fp32 weights, a name on the Hub, or an `Encoder` of one, whose prompts, maximum length
            and dimensions are kept.
        folder: the folder to write; it must not exist or be empty.
        precision: ``"fp32"``; ``"fp16"``, for GPUs; or ``"int8"``, with which embeddings depend on the batch
            (cosine .97 to 1), since ONNX Runtime quantizes the activations of a batch with one scale.

    Raises:
        FileExistsError: the folder exists and is not empty.
        ImportError: a package of the extra ``onnx``, torch or transformers is not installed.
        ValueError: the model's weights are int8, or the graph's embeddings differ too much from the core's: their
            cosine is below 0.9999 (fp16: 0.99 for a text, 0.999 on average; int8: 0.9 and 0.98).
    """
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision={precision!r}; expected one of {', '.join(PRECISIONS)}")
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ImportError(
            f'exporting to ONNX needs {", ".join(missing)}: pip install "embedkit[onnx]" torch transformers'
        )
    core = model if isinstance(model, Encoder) else Encoder(model)
    if core._options.onnx is not None:
        raise ValueError(
            f"{core!r} runs a graph already; open its folder without backend='onnx' to export another"
        )
    _check_one_transformer(core)
    check_fp32(core._engine.folder, "export")
    if (computed := core.describe()["precision"]) != "fp32":
        raise ValueError(
            f"{core!r} computes in {computed}; open it with precision='fp32', and give export_onnx the precision"
        )
    return _export(core, expanded(folder), precision)


def _check_one_transformer(core: Encoder) -> None:
    folder = core._engine.folder
    if folder.static is not None or folder.routes:
        kind = "a static model" if folder.static is not None else "a model with a Router"
        raise ValueError(f"{folder.path} is {kind}; the ONNX export takes one transformer")


def _export(core: Encoder, target: Path, precision: str) -> Fidelity:
    from .onnx_graph import write_graph

    source = core._engine.folder
    settings = core._settings()
    with new_folder(target) as work:
        copy_without_weights(source, work, settings)
        graph = work / source.transformer.relative_to(source.path) / "onnx" / GRAPH
        graph.parent.mkdir()
        write_graph(source, graph, precision)
        for path in graph.parent.iterdir():
            shutil.copymode(work / "modules.json", path)
        description: dict[str, Any] = {
            "format": FORMAT,
            "precision": precision,
            "fingerprint": fingerprint(source, source_weights_hash(source), settings),
            "sha256": {
                path.relative_to(work).as_posix(): file_hash(path)
                for path in sorted(work.rglob("*"))
                if path.is_file()
            },
        }
        ranges = source.ranges(core.get_embedding_dimension())
        if ranges is not None:
            description["embedding_ranges"] = ranges.tolist()
        where = graph.with_name(graph.stem + DESCRIPTION)
        write_json(where, description)
        fidelity = _check(core, work, precision)
        description["cosine"] = vars(fidelity)
        write_json(where, description)
    return fidelity


def _check(core: Encoder, folder: Path, precision: str) -> Fidelity:
    """Compare the exported folder with the core, on texts of every length up to some thousand tokens."""
    texts, joined = list(_TEXTS), " ".join(_TEXTS)
    most = min(core.max_seq_length, _COMPARED_TOKENS)
    while len(core.tokenize([texts[-1]])["input_ids"][0]) < most:
        texts.append(joined)
        joined += " " + joined
    with Encoder(folder, backend="onnx") as exported, warnings.catch_warnings():
        warnings.simplefilter("ignore", TextsWarning)
        own = deepcopy(core)  # shares the model and has its own counts
        own._on_overflow = exported._on_overflow
        vectors = [np.asarray(encoder.encode(texts, prompt=""), np.float64) for encoder in (own, exported)]
    norms = [np.linalg.norm(v, axis=1) for v in vectors]
    cosines = (vectors[0] * vectors[1]).sum(axis=1) / np.maximum(norms[0] * norms[1], 1e-30)
    cosines[(norms[0] == 0) & (norms[1] == 0)] = 1
    fidelity = Fidelity(float(cosines.min()), float(cosines.mean()), len(texts))
    least, mean = _BOUNDS[precision]
    if not (fidelity.least >= least and fidelity.mean >= mean):  # also if NaN
        raise ValueError(
            f"the embeddings of the {precision} graph differ from those of the core: over {len(texts)} texts the "
            f"minimum cosine is {fidelity.least:.6f} and the mean {fidelity.mean:.6f}; {least} and {mean} are "
            "required. Nothing was written."
        )
    return fidelity
