"""Training objectives: one file per objective, each starting with its equation and source."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Objective

__all__ = ["OBJECTIVES", "objective_class"]

OBJECTIVES: dict[str, str] = {
    "angle": "angle:Angle",
    "cosent": "cosent:CoSent",
    "cross_encoder": "cross_encoder:CrossEncoder",
    "distill_kl": "distill_kl:DistillKl",
    "dvbert": "dvbert:DvBert",
    "gist": "gist:Gist",
    "margin_mse": "margin_mse:MarginMse",
    "minbert": "minbert:MinBert",
    "hpd": "hpd:Hpd",
    "multi": "multi:Multi",
    "roformer_sim": "roformer_sim:RoformerSim",
    "roformer_sim_ft": "roformer_sim_ft:RoformerSimFt",
    "sbert": "sbert:Sbert",
    "simcse": "simcse:SimCse",
    "symmetric": "symmetric:Symmetric",
}
"""Name in a recipe -> module and class."""


def objective_class(name: str) -> type[Objective]:
    """The class of an objective, imported on demand."""
    from importlib import import_module

    module, _, kind = OBJECTIVES[name].partition(":")
    found: type[Objective] = getattr(import_module(f"{__name__}.{module}"), kind)
    return found
