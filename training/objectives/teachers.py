"""Outputs of frozen cross-encoders for a run's training pairs, computed once and cached."""

from __future__ import annotations

import hashlib
import logging
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ... import CrossEncoder
from ...model_folder.cross_encoder_folder import open_cross_encoder
from ...model_folder.tokenizer_files import TOKENIZER_FILES
from ..data.readers import Table
from ..model import ModelOptions, own_length, transformer_folder
from ..processes import own_gpu
from ..whole_file import write_array
from .cross_encoder import PairClassifier

__all__ = ["teacher_outputs"]

_LOG = logging.getLogger("embedkit")
# What a cross-encoder's folder may have besides, relative to it.
_PAIR_FILES = (
    "chat_template.jinja",
    "sentence_bert_config.json",
    "modules.json",
    "1_LogitScore/config.json",
    "config_sentence_transformers.json",
)
_CHUNK = 4096  # pairs per file: the most that a stopped run loses


def teacher_outputs(path: str, table: Table, max_length: int | None, cache: Path) -> npt.NDArray[np.float32]:
    """`PairClassifier.logits` of a teacher for ``text1`` and ``text2`` of a table: (n, classes).

    The compiled core runs the teacher if it can, otherwise torch.

    Args:
        path: folder of the teacher.
        table: the pairs.
        max_length: maximum tokens of a pair; None for the teacher's own.
        cache: where the outputs are kept.

    The outputs are in a folder of ``cache`` whose name hashes the teacher's files, ``max_length``, the texts and the
    classes, with one file per 4,096 pairs, so that a stopped run can be resumed and other runs find them. Each process
    starts at a random file and skips existing ones, so that the processes of a distributed run or of a table share the
    work.

    Raises:
        FileNotFoundError: the teacher does not exist.
        ValueError: it is not a cross-encoder, or was trained on other classes than the table's.
    """
    first, second = table.texts("text1"), table.texts("text2")
    folder = cache / f"logits-{_key(transformer_folder(path), table, max_length)}"
    folder.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(first), _CHUNK)
    files = [folder / f"{start:09d}.npy" for start in starts]
    if not all(file.is_file() for file in files):
        with _named(path):
            teacher = _load(path, table, max_length)
        ahead = random.SystemRandom().randrange(len(files))  # seeds are the same in all processes
        for number in [*range(ahead, len(files)), *range(ahead)]:
            if not files[number].is_file():
                part = slice(starts[number], starts[number] + _CHUNK)
                write_array(files[number], teacher.logits(first[part], second[part]))
                _LOG.info("%s: %s of %s pairs", path, f"{min(part.stop, len(first)):,}", f"{len(first):,}")
    return np.concatenate([np.load(file) for file in files])


class _Teacher(Protocol):
    @property
    def labels(self) -> Sequence[str]: ...

    def logits(self, texts1: Sequence[str], texts2: Sequence[str], /) -> npt.NDArray[np.float32]: ...


class _CoreTeacher:
    """A teacher on embedkit's compiled core, which is faster than torch on a CPU."""

    def __init__(self, folder: Path, max_length: int | None) -> None:
        self._model = CrossEncoder(
            folder,
            precision="fp32",
            max_length=max_length,
            activation_fn="identity",
            threads=torch.get_num_threads(),
        )
        self.labels = self._model.labels

    def logits(self, texts1: Sequence[str], texts2: Sequence[str], /) -> npt.NDArray[np.float32]:
        found = self._model.predict(list(zip(texts1, texts2, strict=True)))
        return found.reshape(len(texts1), len(self.labels))


def _load(path: str, table: Table, max_length: int | None) -> _Teacher:
    folder = transformer_folder(path)
    teacher: _Teacher
    device = own_gpu()
    if _runs_in_core(folder, anywhere=device is not None):
        teacher = _CoreTeacher(folder, max_length)
    else:
        length = own_length(folder, "sequence-classification") if max_length is None else max_length
        teacher = PairClassifier.load(ModelOptions(path, max_length=length)).to(device or "cpu").eval()
    expected, found = list(table.labels) or ["score"], list(teacher.labels)
    if found != expected and (table.labels or len(found) > 1):
        raise ValueError(
            f"the teacher {path} was trained on the classes {', '.join(found)}, but the data have "
            f"{', '.join(expected)}; use a teacher with the same classes in the same order"
        )
    return teacher


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Name the teacher and its option where its length is refused as if it were the trained model's."""
    try:
        yield
    except ValueError as error:
        message = re.sub(r"\b(model\.)?max_length\b", "objective.teacher_max_length", str(error))
        if message == str(error):
            raise
        raise ValueError(f"the teacher {path}: {message}") from None


def _runs_in_core(folder: Path, *, anywhere: bool) -> bool:
    """Whether the core runs this teacher; otherwise torch runs it, or raises the error.

    Args:
        folder: of the teacher.
        anywhere: there is a GPU, so that the core runs only what `PairClassifier` does not know: language models and
            chat templates.
    """
    try:
        opened = open_cross_encoder(folder)
    except ValueError as error:
        _LOG.info("torch runs the teacher %s: %s", folder, error)
        return False
    if opened.template is not None or opened.score is not None:
        return True
    # PairClassifier always passes the template's token types to a model that has them.
    typed = opened.token_types or int(opened.model.config.get("type_vocab_size", 0)) <= 1
    return typed and not anywhere


def _key(folder: Path, table: Table, max_length: int | None) -> str:
    digest = hashlib.sha256(f"{max_length}\n".encode())
    if table.labels:  # `_load` checks them
        digest.update(f"{list(table.labels)}\n".encode())
    weights = sorted(
        path.name for kind in ("*.safetensors", "pytorch_model*.bin") for path in folder.glob(kind)
    )
    for name in ("config.json", *weights, *TOKENIZER_FILES, *_PAIR_FILES):
        if (folder / name).is_file():
            content = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            digest.update(f"{name} {content}\n".encode())
    for field in ("text1", "text2"):
        for text in table.texts(field):
            encoded = text.encode()
            digest.update(f"{len(encoded)} ".encode() + encoded)
    return digest.hexdigest()[:24]
