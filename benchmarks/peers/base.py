"""The interface of a peer, and the code shared by peers without their own tokenizer or scheduler.

A peer gets the same input as embedkit: the model folder, the number of threads, and texts in any order. Everything
that a user of the package would do for speed is done: tokenization in Rust on all threads, texts sorted by token
count, and the batch size and number of streams that `throughput.py` finds best on this machine.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

__all__ = [
    "BATCHES",
    "CALIBRATION",
    "Batched",
    "Peer",
    "Setting",
    "Tokenizer",
    "max_length",
    "padded",
    "pooling",
]


#: In the cache: texts for quantizers that calibrate, one a line. None of them is measured.
CALIBRATION = "calibration.txt"
#: Batch sizes worth trying: on some processors a package is fastest on a few texts at a time.
BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Setting:
    """Texts per batch, and batches at a time (each on `threads / streams` threads).

    With a batch of None, the package chooses.
    """

    batch: int | None
    streams: int = 1

    def __str__(self) -> str:
        return (
            "own"
            if self.batch is None
            else f"{self.batch}" + (f"x{self.streams}" if self.streams > 1 else "")
        )


class Peer(ABC):
    """One way to turn texts into sentence vectors.

    Attributes:
        name: what tables and `--peers` call it.
        precision: "fp32", "bf16" or "int8".
        packages: distributions it needs (their versions are reported); the first one names the peer.
        isa_environment: instruction set -> environment variables that limit the package to it.
    """

    name: str
    precision: str
    packages: tuple[str, ...]
    isa_environment: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    def __init__(self, model: Path | None, threads: int, cache: Path) -> None:
        """Store what `load` needs; `cache` is a folder for converted models, reused by later runs."""
        self.model = model
        self.threads = threads
        self.cache = cache

    @property
    def folder(self) -> Path:
        """The model folder, for peers without a built-in model."""
        if self.model is None:
            raise ValueError(f"{self.name} has no built-in model: give --model")
        return self.model

    def convert(self) -> None:
        """Convert the model into the cache, unless it is there; not included in any time."""
        return

    @abstractmethod
    def load(self, streams: int = 1) -> None:
        """Load the model, ready to encode `streams` batches at a time."""

    @abstractmethod
    def encode(self, texts: list[str], batch: int | None) -> np.ndarray:
        """The unit vectors of `texts` in their order: (n, dimension) float32."""

    def encode_alone(self, texts: list[str], batch: int | None) -> float:
        """Seconds of encoding without tokenization, for peers that can separate them."""
        raise ValueError(f"{self.name} cannot time encoding without tokenization")

    def settings(self) -> list[Setting]:
        """The settings worth trying."""
        streams = sorted({1, self.threads})
        return [Setting(b, s) for s in streams for b in BATCHES]


class Tokenizer:
    """The folder's tokenizer, run by the `tokenizers` package on all threads."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer as Fast

        self._fast = Fast.from_file(str(folder / "tokenizer.json"))
        self._fast.no_padding()
        self._fast.enable_truncation(max_length(folder))

    def __call__(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, special tokens included."""
        return [e.ids for e in self._fast.encode_batch_fast(texts)]


def max_length(folder: Path) -> int:
    """The folder's maximum number of tokens, special tokens included."""
    own = folder / "sentence_bert_config.json"
    if own.exists() and (length := json.loads(own.read_text()).get("max_seq_length")):
        return int(length)
    return int(json.loads((folder / "config.json").read_text())["max_position_embeddings"])


def pooling(folder: Path, *known: str) -> str:
    """How a folder pools, of what the peer knows: "mean", "cls", "lasttoken".

    Raises:
        ValueError: it does otherwise, so that the peer would return other vectors.
    """
    modules = [m["type"].rsplit(".", 1)[-1] for m in json.loads((folder / "modules.json").read_text())]
    config = json.loads((folder / "1_Pooling" / "config.json").read_text())
    named = config.get("pooling_mode")
    legacy = [k for k, v in config.items() if k.startswith("pooling_mode_") and v is True]
    modes = [named] if isinstance(named, str) else [m.removeprefix("pooling_mode_") for m in legacy]
    mode = {"mean_tokens": "mean", "cls_token": "cls"}.get(modes[0], modes[0]) if len(modes) == 1 else ""
    if mode not in known or modules not in (
        ["Transformer", "Pooling", "Normalize"],
        ["Transformer", "Pooling"],
    ):
        raise ValueError(
            f"{folder}: this peer knows only {' or '.join(known)} pooling, no dense layers, not {modules}, {modes}"
        )
    return mode


def padded(ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and attention mask, (texts, longest) int64, padded with 0 at the end."""
    lengths = np.array([len(row) for row in ids])
    mask = np.arange(lengths.max()) < lengths[:, None]
    out = np.zeros(mask.shape, dtype=np.int64)
    out[mask] = np.concatenate([np.asarray(row) for row in ids])
    return out, mask.astype(np.int64)


class Batched(Peer):
    """A peer that only runs batches: tokenizing, sorting, batching and restoring the order are done here."""

    def load(self, streams: int = 1) -> None:
        """Load the tokenizer and the pool, then the model by `_load`."""
        self._tokenizer = Tokenizer(self.folder)
        self._pool = ThreadPoolExecutor(streams) if streams > 1 else None
        self._load(streams)

    @abstractmethod
    def _load(self, streams: int) -> None:
        """Loads the model."""

    @abstractmethod
    def _run(self, ids: list[list[int]]) -> np.ndarray:
        """The unit vectors of one batch of token ids; called from `streams` threads at a time."""

    def encode(self, texts: list[str], batch: int | None) -> np.ndarray:
        """See `Peer.encode`. The longest texts come first, so that the last batch is a short one."""
        if batch is None:
            batch = 32
        ids = self._tokenizer(texts)
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        groups = [order[i : i + batch] for i in range(0, len(order), batch)]
        run: Callable[[list[int]], np.ndarray] = lambda group: self._run([ids[i] for i in group])  # noqa: E731
        parts = list(self._pool.map(run, groups) if self._pool and len(groups) > 1 else map(run, groups))
        out = np.empty((len(texts), parts[0].shape[1]), dtype=np.float32)
        for group, part in zip(groups, parts, strict=True):
            out[group] = part
        return out
