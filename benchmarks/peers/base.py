"""What a peer is, and the parts that peers without a tokenizer or a scheduler of their own share.

A peer is given the same things as embedkit: the model folder, the number of threads, and texts in any order.
What a user of that package would do for speed is done here: tokenization in Rust on all threads, texts sorted
by token count, and the batch size and number of streams that `throughput.py` finds best on this machine.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Setting:
    """How a peer is run: texts in a batch, and batches at a time (each on `threads / streams` threads).

    A batch of None is the package's own choice.
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
        precision: "fp32" or "int8".
        packages: distributions it needs (their versions are reported); the first one names the peer.
        held: environment variables that hold it to an instruction set that is not the machine's best, for each such set
            that it knows.
    """

    name: str
    precision: str
    packages: tuple[str, ...]
    held: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    def __init__(self, model: Path | None, threads: int, cache: Path) -> None:
        """Keeps what `load` needs. `cache` is a folder for converted models, reused by later runs."""
        self.model = model
        self.threads = threads
        self.cache = cache

    @property
    def folder(self) -> Path:
        """The model folder, for peers that have no model of their own."""
        if self.model is None:
            raise ValueError(f"{self.name} has no built-in model: give --model")
        return self.model

    def convert(self) -> None:
        """Converts the model into the cache if this has not been done; not counted in any time."""
        return

    @abstractmethod
    def load(self, streams: int = 1) -> None:
        """Loads the model, ready to encode `streams` batches at a time."""

    @abstractmethod
    def encode(self, texts: list[str], batch: int | None) -> np.ndarray:
        """The unit vectors of `texts` in their order: (n, dimension) float32."""

    def encode_alone(self, texts: list[str], batch: int | None) -> float:
        """Seconds of encoding alone, for peers that can tell it from tokenization."""
        raise ValueError(f"{self.name} does not tell encoding from tokenization")

    def settings(self) -> list[Setting]:
        """The settings worth trying."""
        batches = (8, 16, 32, 64)
        streams = sorted({1, self.threads})
        return [Setting(b, s) for s in streams for b in batches]


class Tokenizer:
    """The folder's tokenizer through the `tokenizers` package, as fast as it goes: all threads,."""

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


def pooling(folder: Path) -> str:
    """ "mean" or "cls"; other folders are refused, because the peers here would not give the same vectors."""
    modules = [m["type"].rsplit(".", 1)[-1] for m in json.loads((folder / "modules.json").read_text())]
    config = json.loads((folder / "1_Pooling" / "config.json").read_text())
    named = config.get("pooling_mode")
    legacy = [k for k, v in config.items() if k.startswith("pooling_mode_") and v is True]
    modes = [named] if isinstance(named, str) else [m.removeprefix("pooling_mode_") for m in legacy]
    mode = {"mean_tokens": "mean", "cls_token": "cls"}.get(modes[0], modes[0]) if len(modes) == 1 else ""
    if mode not in ("mean", "cls") or modules not in (
        ["Transformer", "Pooling", "Normalize"],
        ["Transformer", "Pooling"],
    ):
        raise ValueError(
            f"{folder}: the peers only know mean or cls pooling without dense layers, not {modules}, {modes}"
        )
    return mode


def padded(ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and attention mask as (texts, longest) int64, padded with 0 behind."""
    lengths = np.array([len(row) for row in ids])
    mask = np.arange(lengths.max()) < lengths[:, None]
    out = np.zeros(mask.shape, dtype=np.int64)
    out[mask] = np.concatenate([np.asarray(row) for row in ids])
    return out, mask.astype(np.int64)


class Batched(Peer):
    """A peer that only runs a batch: tokenization, sorting, batches and their order are done here."""

    def load(self, streams: int = 1) -> None:
        """Loads the tokenizer and the pool, then the model by `_load`."""
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
        """See `Peer.encode`. Longest texts first, so that the last batch to finish is a short one."""
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
