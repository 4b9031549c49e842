"""A teacher's vectors of pairs of texts, encoded once and kept in the cache folder.

The teacher runs on torch as a `SentenceModel`, so that a folder that was just trained is a teacher whatever its
architecture. Blocks of texts appear whole or not at all: a process that is killed loses one block.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedkit.inputs import progress

from .model import ModelOptions, SentenceModel, options_of, transformer_folder

__all__ = ["pair_vectors"]

_BLOCK = 8192  # texts


def pair_vectors(
    teacher: str, first: Sequence[str], second: Sequence[str], cache: Path
) -> npt.NDArray[np.float32]:
    """The vectors (n, 2, dimension) of n pairs, mapped read-only.

    Args:
        teacher: folder or Hub name of a model in the sentence-transformers layout.
        first, second: the texts of the pairs.
        cache: the folder; a file in it belongs to one teacher's weights and these texts.
    """
    options = options_of(teacher)
    texts = [*first, *second]
    work = cache / f"teacher-{_key(teacher, options, texts)}"
    whole = work.with_suffix(".npy")
    if not whole.is_file():
        work.mkdir(parents=True, exist_ok=True)
        _encode(teacher, options, texts, work)
        _join(work, whole, len(first))
    mapped: npt.NDArray[np.float32] = np.load(whole, mmap_mode="r")
    return mapped


def _encode(teacher: str, options: ModelOptions, texts: Sequence[str], work: Path) -> None:
    missing = [start for start in range(0, len(texts), _BLOCK) if not (work / f"{start:09d}.npy").is_file()]
    if not missing:
        return
    model = SentenceModel.load(options)
    with progress(len(missing), None) as advance:
        for start in missing:
            _write(work / f"{start:09d}.npy", model.encode(texts[start : start + _BLOCK]))
            if advance is not None:
                advance(1)


def _join(work: Path, whole: Path, pairs: int) -> None:
    """One file from the blocks, which stay: a process beside this one may be reading them."""
    vectors = np.concatenate([np.load(path) for path in sorted(work.glob("[0-9]*.npy"))])
    _write(whole, np.stack([vectors[:pairs], vectors[pairs:]], axis=1))


def _write(path: Path, array: npt.NDArray[np.float32]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("wb") as file:
        np.save(file, array)
    part.replace(path)


def _key(teacher: str, options: ModelOptions, texts: Sequence[str]) -> str:
    """Of all that moves a vector: weights, modules, tokenizer, texts."""
    digest = hashlib.sha256(json.dumps([options.pooling, options.max_length, options.normalize]).encode())
    folder = transformer_folder(teacher)
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".safetensors" or path.name in ("vocab.txt", "tokenizer.json", "config.json"):
            digest.update(path.relative_to(folder).as_posix().encode())
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()[:16]
