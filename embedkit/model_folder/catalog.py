"""Models that are known to work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KnownModel", "Need", "list_models", "list_needs", "multilingual"]

_MANY = "Many languages"


@dataclass(frozen=True)
class KnownModel:
    """A model that `Encoder` opens by name.

    Attributes:
        name: the argument of `Encoder`; `Encoder()` opens the built-in model.
        dimension: of its vectors.
        parameters: number of weights.
        megabytes: size of the published weights (10⁶ bytes); int8 takes a quarter of fp32.
        max_length: maximum number of tokens in a text.
        language: of its training data.
        license: of the weights, as an SPDX identifier in lower case.
        checked: ``"weights"`` if our tests compare the published weights with sentence-transformers,
            ``"architecture"`` if they compare this architecture with other weights.
        prompts: prefixes that the authors recommend for queries and documents; pass them as
            ``Encoder(name, prompts=...)`` if the model folder does not contain them.
        scores: benchmark -> score, from 0 to 100; only figures with a source.
        sources: benchmark -> source of the figure.
    """

    name: str
    dimension: int
    parameters: int
    megabytes: int
    max_length: int
    language: str
    license: str
    checked: str
    prompts: Mapping[str, str]
    scores: Mapping[str, float]
    sources: Mapping[str, str]


@dataclass(frozen=True)
class Need:
    """What a model is needed for, and which to take.

    Attributes:
        need: such as "English search".
        model: the argument of `Encoder`.
        figures: what was measured, in words; empty if the weights could not be had and only the layout was tried.
        note: what to know beside that.
    """

    need: str
    model: str
    figures: str
    note: str


def list_needs() -> list[Need]:
    """Which model to take for which need, as in the documentation."""
    table = json.loads((Path(__file__).parent / "catalog.json").read_text(encoding="utf-8"))
    return [Need(**entry) for entry in table["needs"]]


def multilingual() -> str:
    """The name of the model for texts in many languages."""
    return next(need.model for need in list_needs() if need.need == _MANY)


def list_models() -> list[KnownModel]:
    """Models known to work, the built-in one first. Others of the same architectures work as well."""
    table = json.loads((Path(__file__).parent / "catalog.json").read_text(encoding="utf-8"))
    return [
        KnownModel(**entry, sources={name: table["sources"][name] for name in entry["scores"]})
        for entry in table["models"]
    ]
