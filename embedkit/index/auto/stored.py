"""What a build does with automatic parameters: the sample from its spool, and the choice in its folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..storage.faiss_index import AUTO
from .choice import QUERIES, SAMPLE_ROWS, Choice, candidates, choose
from .measure import Setting

if TYPE_CHECKING:
    from ..storage.spool import Spool

CHOICE_FILE = "choice.json"
_COPIES = 6  # of the sample, at most at one time: itself, the queries, exact search, and two indexes of it
_SEED = 20240


def check_target(target_recall: float, factory: str) -> None:
    """Raise ValueError unless parameters can be chosen for ``target_recall``."""
    if not 0 < target_recall <= 1:
        raise ValueError(f"target_recall must be above 0 and at most 1, not {target_recall}")
    if factory != AUTO:
        raise ValueError(
            f"target_recall is for the factory 'auto', and {factory!r} was asked for; leave one of them out "
            "(embedkit-index tune sets nprobe or ef of any index)"
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
        budget: bytes that the index may take, and choosing it.
        threads: of Faiss.
        progress: told how many candidates of how many have been measured.
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
    """What `write_choice` kept, ``None`` if nothing."""
    try:
        choice: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return choice


def setting_of(tuning: dict[str, Any] | None) -> Setting:
    """The setting that a manifest's ``tuning`` tells of; one without numbers if there is none."""
    chosen = (tuning or {}).get("chosen")
    given = chosen.get("setting") if isinstance(chosen, dict) else None
    if not isinstance(given, dict):
        return Setting()
    values = {name: given.get(name) for name in ("nprobe", "ef", "k_factor")}
    return Setting(**{name: value if isinstance(value, int) else None for name, value in values.items()})
