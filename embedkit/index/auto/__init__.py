"""Automatic parameters: kinds of index measured on a sample, and nprobe or ef of one that exists."""

from .choice import Choice, Measured, choose
from .measure import Point, Setting, apply, search_settings, smallest

__all__ = ["Choice", "Measured", "Point", "Setting", "apply", "choose", "search_settings", "smallest"]
