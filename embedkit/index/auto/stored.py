"""Automatic parameters of a build: chosen from a sample of its spool, and kept in its folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..storage.faiss_index import AUTO
from ..storage.search_parameters import SearchParameters
from .choice import QUERIES, SAMPLE_ROWS, candidates, choose
from .measure import check_recall
from .result import Choice

if TYPE_CHECKING:
    from ..storage.spool import Spool

__all__ = [
    "CHOICE_FILE",
    "check_target",
    "check_tuning",
    "choose_for",
    "read_choice",
    "stored_parameters",
    "write_choice",
]

CHOICE_FILE = "choice.json"
_COPIES = 6  # most copies of the sample at a time: itself, the queries, exact search, and two indexes
_SEED = 20240


def check_target(target_recall: float, factory: str) -> None:
    """Raise ValueError unless parameters can be chosen for ``target_recall``."""
    check_recall(target_recall)
    if factory != AUTO:
        raise ValueError(
            f"target_recall needs the factory 'auto', not {factory!r}; leave out one of them "
            "(embedkit-index tune sets nprobe or ef of an existing index)"
        )


def choose_for(
    spool: Spool,
    target_recall: float,
    *,
    budget: int,
    threads: int | None,
    progress: Callable[[int, int], None],
) -> Choice:
    """`choose` for all vectors of a build.

    Args:
        spool: the vectors.
        target_recall: recall@10 to reach.
        budget: bytes that the index, and choosing it, may take.
        threads: of Faiss.
        progress: called with the number of candidates measured so far and in all.
    """
    most = min(SAMPLE_ROWS + QUERIES, max(1, budget // (_COPIES * 4 * spool.dimension)))
    sample = spool.sample(most, 0, spool.rows, _SEED)
    count = len(candidates(spool.rows, spool.dimension))
    tried = iter(range(count))
    return choose(
        sample,
        rows=spool.rows,
        target_recall=target_recall,
        max_memory=budget,
        threads=threads,
        progress=lambda _: progress(next(tried), count),
    )


def write_choice(path: Path, choice: Choice) -> None:
    """Keep ``choice`` beside the files of a segment that is not published yet."""
    path.write_text(json.dumps(choice.to_dict()), encoding="utf-8")


def read_choice(path: Path) -> dict[str, Any] | None:
    """What `write_choice` kept as `Choice.to_dict` returns it; ``None`` if there is none."""
    try:
        choice: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return choice


def check_tuning(tuning: object) -> None:
    """Raise TypeError or ValueError unless a manifest can store ``tuning``, and what reads it there can."""
    if not isinstance(tuning, dict):
        raise TypeError(f"tuning must be a dict, not {type(tuning).__name__}")
    try:
        json.dumps(tuning, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"tuning must be JSON: {error}") from None
    for name in ("chosen", "tuned"):
        if not isinstance(tuning.get(name, {}), dict):
            raise TypeError(f"tuning[{name!r}] must be a dict, not {tuning[name]!r:.80}")
    chosen = stored_parameters(tuning)
    SearchParameters.given(chosen.nprobe, chosen.ef, chosen.rescore)


def stored_parameters(tuning: Mapping[str, Any] | None) -> SearchParameters:
    """The search parameters that were chosen, from a manifest's ``tuning``; empty ones if there are none."""
    chosen = (tuning or {}).get("chosen")
    given = chosen.get("setting") if isinstance(chosen, dict) else None
    return SearchParameters.from_json(given) if isinstance(given, dict) else SearchParameters()
