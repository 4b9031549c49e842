"""Training of small encoders from large ones, installed as ``embedkit.training``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .distillation.options import DistillOptions
    from .distillation.run import distill
    from .distillation.static import StaticOptions, distill_static
    from .hard_negatives import MineOptions, mine_negatives
    from .hub import push_to_hub
    from .recipe import Recipe, load_recipe, recipe_of
    from .trainer import train

__all__ = [
    "DistillOptions",
    "MineOptions",
    "Recipe",
    "StaticOptions",
    "distill",
    "distill_static",
    "load_recipe",
    "mine_negatives",
    "push_to_hub",
    "recipe_of",
    "train",
]

_MODULES = {
    "DistillOptions": "distillation.options",
    "MineOptions": "hard_negatives",
    "Recipe": "recipe",
    "StaticOptions": "distillation.static",
    "distill": "distillation.run",
    "distill_static": "distillation.static",
    "load_recipe": "recipe",
    "mine_negatives": "hard_negatives",
    "push_to_hub": "hub",
    "recipe_of": "recipe",
    "train": "trainer",
}


def __getattr__(name: str) -> Any:
    """The public names, imported on demand: `embedkit.training.evaluate` needs no torch.

    Raises:
        ImportError: a package that training needs is not installed.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "embedkit":
            raise
        raise ImportError(
            f"embedkit.training.{name} needs {error.name}, which is not installed: pip install 'embedkit[train]'",
            name=error.name,
        ) from error
    return getattr(module, name)
