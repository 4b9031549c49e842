"""Automatic parameters: which kind of index to build, and which nprobe or ef reaches a recall."""

from .choice import choose
from .measure import Point, Truth, apply, fastest_parameters, smallest
from .result import Choice, Measured

__all__ = ["Choice", "Measured", "Point", "Truth", "apply", "choose", "fastest_parameters", "smallest"]
