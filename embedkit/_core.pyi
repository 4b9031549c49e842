"""Types of the compiled core, for checkers and editors; embedkit.Encoder is the public interface."""

from typing import Any, TypedDict

import numpy.typing as npt

def active_isa() -> str:
    """The instruction set that an `Encoder` made now runs on: "reference", "avx2" or "avx512_vnni".

    ``EMBEDKIT_ISA``, which is read by each call, forces one.

    Raises:
        ValueError: EMBEDKIT_ISA names one that is unknown or that this machine lacks.
    """

def available_isas() -> list[str]:
    """The instruction sets that this machine can run, slowest first."""

def default_threads() -> int:
    """How many threads the CPU affinity and the cgroup quota of this process allow."""

def measure_peak(precision: str, seconds: float = 0.2) -> float:
    """GOP/s that one thread reaches on registers alone: the ceiling of the kernels for "fp32" or "int8"."""

class WordPiece:
    """BERT normalisation and WordPiece."""

    vocab_size: int
    def __init__(
        self,
        vocab: list[str],
        added_tokens: list[dict[str, Any]],
        *,
        clean_text: bool,
        handle_chinese_chars: bool,
        strip_accents: bool | None,
        lowercase: bool,
        unknown_token: str,
        continuing_prefix: str,
        max_chars_per_word: int,
    ) -> None: ...
    def encode(self, text: str) -> list[int]:
        """Content ids of one text: no special tokens, no truncation."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """`encode` of every text, with the GIL released."""

class Stats(TypedDict):
    """What a call of `Encoder.encode` counted."""

    tokens: int
    truncated: int

class Encoder:
    """Tokenize, run the transformer, pool, apply the head."""

    dimension: int
    memory_bytes: int
    @property
    def isa(self) -> str:
        """The instruction set that it runs on, chosen when it was made; one of `available_isas`."""

    def __init__(
        self,
        config: dict[str, int | float | str],
        tensors: dict[str, npt.NDArray[Any]],
        pooling: dict[str, Any],
        head: list[dict[str, Any]],
        precision: str,
    ) -> None: ...
    def encode(self, texts: list[str], tokenizer: WordPiece, options: dict[str, Any]) -> tuple[Any, Stats]:
        """Vectors (n, dimension) or, with token_embeddings, a list of (tokens, hidden_size)."""

    def encode_ids(self, ids: list[list[int]], options: dict[str, Any]) -> tuple[Any, Stats]:
        """`encode` for content ids that another tokenizer made."""
