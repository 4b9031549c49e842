"""Distill any sentence encoder, or several, into a small student from texts without labels."""

from .run import DistillOptions, distill

__all__ = ["DistillOptions", "distill"]
