"""Post-processing steps of recipes: they change a trained model without training it; one file per step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..model import ModelOptions

__all__ = ["STEPS", "Result", "Step", "step_class"]

STEPS: dict[str, str] = {
    "linear_map": "linear_map:MapStep",
}
"""Name in a recipe -> module and class."""


class Result(Protocol):
    """A post-processed model."""

    def encode(self, sentences: Sequence[str], *, prompt: str | None = None) -> Any:
        """Vectors (n, dimension) of texts, from which dev scores are computed; ``prompt`` in place of the model's."""

    def encode_query(self, sentences: Sequence[str]) -> Any:
        """The same with the model's prompt for queries."""

    def encode_document(self, sentences: Sequence[str]) -> Any:
        """The same with the model's prompt for documents."""

    def save(self, folder: Path) -> None:
        """Write the model folder; ``folder`` exists."""


class Step(Protocol):
    """A step; its class is a frozen dataclass whose fields are the keys of a recipe's ``postprocess`` section."""

    def apply(self, model: ModelOptions, texts: Sequence[str], prompt: str | None = None) -> Result:
        """Post-process a model.

        Args:
            model: the ``model`` section of the recipe.
            texts: sentences on which the step is fitted.
            prompt: that the model reads before each; None for its default.

        Raises:
            FileNotFoundError, ValueError: the model is missing or does not fit the step, or the texts are too few.
        """


def step_class(name: str) -> type[Any]:
    """The class of a step, imported on demand."""
    from importlib import import_module

    module, _, kind = STEPS[name].partition(":")
    found: type[Any] = getattr(import_module(f"{__name__}.{module}"), kind)
    return found
