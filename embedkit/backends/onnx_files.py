"""Finds the ONNX graph of a folder to run, and reads the description that an export of embedkit puts beside it.

Optimum and sentence-transformers keep graphs as ``onnx/model.onnx`` with variants beside it
(``model_O3.onnx``, ``model_qint8_avx512_vnni.onnx``, …), older exports as ``model.onnx``. Beside a graph of its own
embedkit writes ``NAME.embedkit.json``:

* ``format``: 1;
* ``precision``: ``"fp32"``, ``"fp16"`` or ``"int8"``;
* ``inputs``, ``outputs``: name -> shape; texts are padded on the right;
* ``fingerprint``: of the exported model, see `embedkit.model_folder.fingerprint`;
* ``sha256``: path in the folder -> SHA-256, for every other file;
* ``cosine``: the minimum and the mean cosine between the embeddings of the graph and of the core, and the number
  of texts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ..files import file_sha256
from ..model_folder.folder import ModelFolder, read_ranges
from ..model_folder.json_file import present, read_json

__all__ = [
    "DESCRIPTION",
    "FORMAT",
    "PRECISIONS",
    "GraphFile",
    "file_hash",
    "find_graph",
    "graph_files",
    "graph_hash",
]

FORMAT = 1
DESCRIPTION = ".embedkit.json"
PRECISIONS = ("fp32", "fp16", "int8")

_DEFAULT = "model.onnx"
# How Optimum, sentence-transformers and transformers.js name quantized and half-precision graphs.
_NAMED = {
    "int4": re.compile(r"(?<![a-z])u?int4|_(q|bnb|fp|nf)4"),
    "int8": re.compile(r"int8|quantized|_q8"),
    "fp16": re.compile(r"fp16|float16|_O4(_|\.|$)"),
}


@dataclass(frozen=True)
class GraphFile:
    """A graph to run.

    Attributes:
        path: the ``.onnx`` file.
        precision: of the matrix products; guessed from the file name for a graph that embedkit did not write.
        fingerprint: of the exported model; None for a graph that embedkit did not write.
        sha256: path in the folder -> SHA-256; empty for a graph that embedkit did not write.
        ranges: of the embeddings, as in `Stamp`.
    """

    path: Path
    precision: str
    fingerprint: str | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)
    ranges: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def own(self) -> bool:
        """Whether embedkit wrote the graph: then pooling and head are in it."""
        return self.fingerprint is not None

    def verify(self, root: Path) -> None:
        """Compare the files of the model folder ``root`` with their hashes.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file has changed.
        """
        for name, expected in self.sha256.items():
            if file_hash(root / name) != expected:
                raise ValueError(
                    f"{root / name} is not the file that was exported; fetch or export the model again"
                )


def find_graph(folder: ModelFolder, onnx_file: str | None) -> GraphFile:
    """The graph named by ``onnx_file``, or the folder's only one, or its ``model.onnx``.

    Args:
        folder: the model.
        onnx_file: a path in the folder such as ``"onnx/model_O3.onnx"``; ``onnx/`` may be left out.

    Raises:
        FileNotFoundError: the graph does not exist, or the folder has none.
        ValueError: there are several graphs without a default, or the path leads out of the folder.
    """
    places = dict.fromkeys(
        place for base in (folder.transformer, folder.path) for place in (base / "onnx", base)
    )
    found = [path for place in places for path in sorted(place.glob("*.onnx"))]
    known = ", ".join(repr(path.relative_to(folder.path).as_posix()) for path in found)
    if onnx_file is not None:
        relative = PurePosixPath(onnx_file.replace("\\", "/"))
        if not _inside(onnx_file):
            raise ValueError(f"onnx_file={onnx_file!r:.200} leads out of the model folder")
        for base in (folder.path, *places):
            if present(base / relative):
                return _described(base / relative)
        raise FileNotFoundError(
            f"onnx_file={onnx_file!r:.200}: {folder.path} does not have this graph; "
            + (f"it has {known}" if found else "it has no ONNX graph")
        )
    if not found:
        raise FileNotFoundError(
            f"{folder.path} holds no ONNX graph (onnx/model.onnx): export one with "
            "embedkit-model export MODEL OUT --format onnx, with Optimum or with sentence-transformers"
        )
    defaults = [path for path in found if path.name == _DEFAULT] if len(found) > 1 else found
    if len(defaults) != 1:
        raise ValueError(f"{folder.path} holds several ONNX graphs: choose with onnx_file= one of {known}")
    present(defaults[0])  # raises if it is something other than a file
    return _described(defaults[0])


def _described(path: Path) -> GraphFile:
    where = path.with_name(path.stem + DESCRIPTION)
    if not present(where):
        return GraphFile(
            path, next((kind for kind, name in _NAMED.items() if name.search(path.name)), "fp32")
        )
    data = read_json(where)
    if data.get("format") != FORMAT:
        raise ValueError(
            f"{where}: unknown format {data.get('format')!r:.80}; this embedkit reads format {FORMAT}. "
            "Upgrade embedkit."
        )
    precision, fingerprint, hashes = (data.get(key) for key in ("precision", "fingerprint", "sha256"))
    if precision not in PRECISIONS:
        raise ValueError(
            f"{where}: unknown precision {precision!r:.80}; expected one of {', '.join(PRECISIONS)}"
        )
    if not _is_hash(fingerprint):
        raise ValueError(f"{where}: fingerprint must be a SHA-256 in hexadecimal, not {fingerprint!r:.80}")
    if not isinstance(hashes, dict) or not all(
        _is_hash(value) and _inside(name) for name, value in hashes.items()
    ):
        raise ValueError(f"{where}: sha256 must give the SHA-256 of each file, not {hashes!r:.80}")
    return GraphFile(path, precision, fingerprint, hashes, read_ranges(where, data.get("embedding_ranges")))


def _inside(name: str) -> bool:
    """Whether a relative path stays within its folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    return not (path.is_absolute() or ".." in path.parts or ":" in name or "\0" in name)


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    if not present(path):
        raise FileNotFoundError(f"{path} is missing: the model folder is incomplete; fetch it again")
    return file_sha256(path)


def graph_files(path: Path) -> list[Path]:
    """A graph's file and all files beside it whose names begin with its name.

    These hold weights too large for the graph itself (``model.onnx_data``, ``model.onnx.data``).
    """
    return sorted(item for item in path.parent.glob("*") if item.name.startswith(path.name))


def graph_hash(path: Path) -> str:
    """SHA-256 of the `graph_files`."""
    lines = (f"{item.name} {file_hash(item)}\n" for item in graph_files(path))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
