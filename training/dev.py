"""Dev scores that do not depend on the objective: scored pairs, retrieval, and evaluators given from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .data.readers import read
from .evaluate import Pair, PairSet, TextEncoder, score_pairs, sts_dev_sets
from .evaluate.collection import collection_quality, read_collection
from .recipe import EvaluationOptions

__all__ = ["DevSets", "Evaluator", "add_scores"]

Evaluator = Callable[[Any], float | Mapping[str, float]]
"""Called with the encoder in training (`embedkit.training.model.SentenceModel`); higher scores are better."""


def add_scores(scores: dict[str, float], more: Mapping[str, float]) -> None:
    """Add ``more`` dev scores to ``scores``.

    Raises:
        ValueError: one of them is there already.
    """
    if both := sorted(scores.keys() & more.keys()):
        raise ValueError(f"two dev scores are named {both[0]!r}; rename a set of evaluation, or an evaluator")
    scores.update(more)


class DevSets:
    """The dev sets of a recipe that any sentence encoder can be scored on."""

    def __init__(
        self, options: EvaluationOptions, root: Path, evaluators: Mapping[str, Evaluator] | None = None
    ) -> None:
        """Read the sets.

        Args:
            options: of the recipe.
            root: folder to which paths are relative.
            evaluators: name -> function; see `Evaluator`.

        Raises:
            FileNotFoundError, ValueError: a set is missing or wrong; names its key.
        """
        self._evaluators = dict(evaluators or {})
        self.sts_pairs: int | None = None
        self._sts: dict[str, PairSet] = {}
        if options.sts_dev:
            self._sts = sts_dev_sets(root)
            self.sts_pairs = sum(len(one.pairs) for one in self._sts.values())
        self._pairs: dict[str, PairSet] = {}
        self._bare: dict[str, list[tuple[str, str]]] = {}
        for name, source in options.pairs.items():
            self._pairs[name], self._bare[name] = _pairs(name, source, root)
        self._prompted = {name for name, source in options.pairs.items() if source.get("prompts") is not None}
        self._collections = {}
        for name, spec in options.retrieval.items():
            try:
                self._collections[name] = read_collection(spec, root)
            except ValueError as error:
                raise ValueError(f"evaluation.retrieval.{name}: {error}") from None

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._sts or self._pairs or self._collections or self._evaluators)

    def texts(self) -> dict[str, list[tuple[str, str]]]:
        """Pairs that training data should not hold, by set; a query is paired with itself."""
        found = {name: list(pairs) for name, pairs in self._bare.items()}
        for name, one in self._collections.items():
            found.setdefault(name, []).extend((text, text) for text in one.queries.values())
        return found

    def scores(self, encoder: TextEncoder) -> dict[str, float]:
        """All scores, x 100 but for evaluators' own: ``stsb_dev``, ``NAME_spearman``, ``NAME_ndcg``, ``NAME_mrr``.

        Raises:
            ValueError: two have one name.
        """
        scores: dict[str, float] = {}
        for name, one in self._pairs.items():
            # texts that have their prompts already are read without the model's own
            encode: Any = encoder.encode
            bare = partial(encode, prompt="") if name in self._prompted else None
            scores[f"{name}_spearman"] = score_pairs(encoder, {name: one}, bare).average
        for name, collection in self._collections.items():
            quality = collection_quality(encoder, collection)
            add_scores(scores, {f"{name}_ndcg": 100 * quality.ndcg_at_10})
            add_scores(scores, {f"{name}_mrr": 100 * quality.mrr_at_10})
        for name, evaluator in self._evaluators.items():
            value = evaluator(encoder)
            if isinstance(value, Mapping):
                add_scores(scores, {f"{name}_{key}": float(one) for key, one in value.items()})
            else:
                add_scores(scores, {name: float(value)})
        if self._sts:
            add_scores(scores, {"stsb_dev": score_pairs(encoder, self._sts).average})
        return scores


_TEXTS = ("text1", "text2")  # of scored pairs


def _pairs(name: str, source: Mapping[str, Any], root: Path) -> tuple[PairSet, list[tuple[str, str]]]:
    """Read scored pairs: the fields ``text1``, ``text2`` and ``label``; their prompts precede the texts.

    Returns:
        The pairs, and their texts without prompts, as the training data have theirs.
    """
    try:
        table = read(source, root=root)
        labels = [float(value) for value in table["label"]]
        prompts = source.get("prompts") or {}
        other = sorted(set(prompts) - set(_TEXTS))
        if other:
            raise ValueError(
                f"prompts: {other[0]!r} is no field of scored pairs, whose texts are text1 and text2"
            )
        bare = list(zip(*(table.texts(field) for field in _TEXTS), strict=True))
        first, second = (prompts.get(field, "") for field in _TEXTS)
        if len(set(labels)) < 2:
            raise ValueError("all labels are equal, so there is no order to compare")
    except ValueError as error:
        raise ValueError(f"evaluation.pairs.{name}: {error}") from None
    pairs = [
        Pair(first + left, second + right, label) for (left, right), label in zip(bare, labels, strict=True)
    ]
    return PairSet(pairs, str(source.get("path", source.get("dataset")))), bare
