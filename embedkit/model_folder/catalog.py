"""The models that are known to work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KnownModel", "list_models"]


@dataclass(frozen=True)
class KnownModel:
    """A model that `Encoder` opens by its name.

    Attributes:
        name: what to give to `Encoder`; the built-in model is the one that `Encoder()` opens.
        dimension: of its vectors.
        parameters: how many weights.
        megabytes: of the weights as published (10⁶ bytes); int8 takes a quarter of fp32.
        max_length: tokens a text may have.
        language: what it was trained for.
        license: of the weights, as an SPDX identifier in lower case.
        checked: ``"weights"`` if our tests compare the published weights with sentence-transformers,
            ``"architecture"`` if they do so for this architecture with other weights.
        prompts: what the authors say to put before queries and documents; pass it as
            ``Encoder(name, prompts=...)`` where the model folder does not say so itself.
        scores: benchmark -> score, from 0 to 100; only figures that have a source.
        sources: benchmark -> where the figure is from.
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


def list_models() -> list[KnownModel]:
    """The models known to work, the built-in one first. Others of the same architectures work as well."""
    table = json.loads((Path(__file__).parent / "catalog.json").read_text(encoding="utf-8"))
    return [
        KnownModel(**entry, sources={name: table["sources"][name] for name in entry["scores"]})
        for entry in table["models"]
    ]
