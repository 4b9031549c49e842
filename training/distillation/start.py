"""Which of a teacher's layers a student starts from: those whose vectors predict the teacher's best, untrained."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backbone import needs_first
from ..linear_map import fit, regress, sample_distinct
from ..model import ModelOptions, SentenceModel, load_backbone, transformer_folder
from ..teacher import TeacherOptions, encode_prompted, open_encoder
from .options import DistillOptions

__all__ = ["candidates", "choose_layers", "explained"]

_LOG = logging.getLogger("embedkit")
_SAMPLE = 3000  # texts, of which a quarter is held out of the regression


def candidates(total: int, kept: int) -> list[list[int]]:
    """Ways to choose ``kept`` of ``total`` layers: spread evenly over all, from the first in steps, dense at the top.

    Raises:
        ValueError: there are fewer layers.
    """
    if not 1 <= kept <= total:
        raise ValueError(f"layers must be from 1 to {total}, those of the teacher, not {kept}")
    spread = [round(x) for x in np.linspace(0, total - 1, kept)] if kept > 1 else [total - 1]
    steps = [number * total // kept for number in range(kept)]
    top = kept // 2
    below = kept - top
    dense = [number * (total - top) // below for number in range(below)] + list(range(total - top, total))
    return [list(one) for one in dict.fromkeys(map(tuple, (spread, steps, dense)))]


def explained(known: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    """The share of the variance of ``wanted (n, k)`` that a ridge regression on ``known (n, d)`` explains (R^2).

    Fitted on three rows of four, measured on the fourth.
    """
    held = np.arange(len(known)) % 4 == 3
    weight, bias = regress(known[~held], wanted[~held])
    left = np.square(known[held] @ weight + bias - wanted[held]).sum()
    total = np.square(wanted[held] - wanted[held].mean(0)).sum()
    return float(1 - left / total) if total else 0.0


def choose_layers(
    teacher: TeacherOptions, kept: int, options: DistillOptions, texts: Sequence[str]
) -> dict[str, Any]:
    """Score each of `candidates`; returns ``layers``, the best, and ``explained``, the score of each."""
    sample = sample_distinct(texts, _SAMPLE)
    with open_encoder(teacher.path, precision=teacher.precision) as encoder:
        vectors = encode_prompted(encoder, sample, teacher)
    width = min(options.dimension, vectors.shape[1], len(sample) // 2)
    wanted = fit(vectors, width, center=False)(vectors)
    whole = ModelOptions(teacher.path, max_length=options.max_length, dropout=0.0)
    backbone = load_backbone(whole, transformer_folder(teacher.path))
    first, total = needs_first(backbone), int(backbone.config.num_hidden_layers)
    del backbone  # a large teacher need not stay beside its students
    scores: dict[str, float] = {}
    best: tuple[float, list[int]] = (-np.inf, [])
    for layers in candidates(total, kept):
        if first and layers[0]:
            continue
        chosen = ModelOptions(teacher.path, layers=layers, max_length=options.max_length, dropout=0.0)
        score = explained(SentenceModel.load(chosen).bare().encode(sample), wanted)
        _LOG.info("layers %s explain %.1f %% of the teacher's variance", layers, 100 * score)
        scores[" ".join(map(str, layers))] = round(score, 4)
        best = max(best, (score, layers))
    return {"layers": best[1], "explained": scores}
