"""The settings of a build, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ...arguments import check_positive, check_threads
from ...documents.errors import OnError
from ...documents.passages import Passages
from ..auto.stored import check_target
from ..storage.faiss_index import AUTO, READ_BACK, can_read_back
from ..storage.manifest import METRICS, RAW_KINDS, Metric, Raw, ReadingEntry
from ..words.languages import AUTO as AUTO_LANGUAGE
from ..words.languages import check_language
from .memory import DEFAULT_MAX_MEMORY

__all__ = ["BuildSettings", "Mode", "Progress", "Report", "Written", "near_similarity"]

Mode = Literal["build", "add", "upsert", "sync", "reembed"]
"""The commands; "sync" is an upsert of what `embedkit.index.sync` has read."""


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """How an index is built or changed; see `embedkit.index.Index.build` for each.

    ``factory``, ``metric``, ``kept``, ``target_recall``, ``overwrite``, ``language``, ``passages``, ``dedup`` and
    ``root`` (the folder that ids of files are relative to) and ``reading`` (how files were read) concern a new index
    only: a command that changes one takes them from its manifest.

    Raises:
        ValueError: a setting is out of range.
    """

    factory: str = AUTO
    metric: Metric = "cosine"
    kept: Raw | None = None
    target_recall: float | None = None
    overwrite: bool = False
    restart: bool = False
    max_memory: int = DEFAULT_MAX_MEMORY
    threads: int | None = None
    on_error: OnError = "stop"
    language: str = AUTO_LANGUAGE
    root: str | None = None
    reading: ReadingEntry | None = None
    passages: Passages | None = None
    dedup: str | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without vectors."""
        object.__setattr__(self, "language", check_language(self.language))
        if self.metric not in METRICS:
            raise ValueError(f"metric must be 'cosine' or 'dot', not {self.metric!r}")
        if self.kept is not None and self.kept not in RAW_KINDS:
            raise ValueError(f"kept must be 'fp32', 'int8' or 'none', not {self.kept!r}")
        flat = self.factory == AUTO and self.target_recall is None
        if self.kept == "none" and not (flat or can_read_back(self.factory)):
            raise ValueError(
                f"kept 'none' needs codes that vectors can be read back from, of a factory that ends with "
                f"{', '.join(READ_BACK)} and has no PCA, RR, or OPQ to fewer columns, not {self.factory!r}; use "
                "kept 'int8'"
            )
        if isinstance(self.on_error, str) and self.on_error not in ("stop", "skip"):
            raise ValueError(f"on_error must be 'stop', 'skip' or a callable, not {self.on_error!r}")
        object.__setattr__(self, "max_memory", _bytes(self.max_memory))
        if self.threads is not None:
            check_threads(self.threads)
        if near_similarity(self.dedup) is not None and self.metric == "dot":
            raise ValueError(
                f"dedup={self.dedup!r} compares cosines, and the metric dot ranks by length as well; use the metric "
                "cosine, or dedup 'exact'"
            )
        if self.target_recall is not None:
            check_target(self.target_recall, self.factory)


def _bytes(memory: Any) -> int:
    """``max_memory`` as an integer; 4e9 is one."""
    if isinstance(memory, float) and memory.is_integer():
        memory = int(memory)
    return check_positive("max_memory", memory, 2**63 - 1)


def near_similarity(dedup: str | None) -> float | None:
    """The similarity of "near:SIM"; ``None`` for "exact" and no deduplication.

    Raises:
        ValueError: it is neither, or the similarity is not between 0 and 1.
    """
    if dedup in (None, "exact"):
        return None
    kind, _, value = str(dedup).partition(":")
    try:
        similarity = float(value) if kind == "near" else 0.0
    except ValueError:
        similarity = 0.0
    if not 0 < similarity <= 1:
        raise ValueError(
            f"dedup must be 'exact' or 'near:SIM' with 0 < SIM <= 1, e.g. near:0.95, not {dedup!r}"
        )
    return similarity


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a build.

    Attributes:
        stage: "encode", "copy", "choose", "train" or "add".
        done: documents encoded (including those before an interruption) or copied, candidates measured, or
            vectors trained on or added.
        total: out of how many; ``None`` while encoding, when the number of documents is unknown.
        position: bytes of input consumed by the encoded documents, if they were read from files.
    """

    stage: str
    done: int
    total: int | None
    position: int = 0


Report = Callable[[Progress], None]
"""Called after each step, on the thread of the build's caller."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a build, add or upsert wrote.

    Attributes:
        documents: new documents.
        replaced: earlier documents replaced by new ones with the same id.
        resumed: new documents that were encoded before an interruption.
        unchanged: documents of an upsert that the index held already, with the same text and fields.
        repeated: documents left out because an earlier one has the same text (``dedup``).
        blank: documents left out because their text is empty or white space.
        generations: how many generations of the index it has made: one with the documents, and before that maybe one
            with folded segments.
    """

    documents: int
    replaced: int
    resumed: int
    unchanged: int = 0
    repeated: int = 0
    blank: int = 0
    generations: int = 0
