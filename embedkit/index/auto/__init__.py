"""Automatic parameters: kinds of index measured on a sample, and nprobe or ef of one that exists."""

from embedkit.index.auto.choice import Choice, Measured, choose
from embedkit.index.auto.measure import Point, Setting, apply, search_settings, smallest

__all__ = ["Choice", "Measured", "Point", "Setting", "apply", "choose", "search_settings", "smallest"]
