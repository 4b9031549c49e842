"""Encoders whose vectors are not those of `FakeEncoder`, though its model is the same."""

from __future__ import annotations

from typing import Any

from fake_encoder import FakeEncoder

__all__ = ["DIFFERENCES", "otherwise"]

DIFFERENCES = ["precision", "document prompt", "--on-overflow"]


def otherwise(difference: str) -> FakeEncoder:
    """An encoder with one of `DIFFERENCES`."""
    if difference == "precision":
        return FakeEncoder(precision="int8")
    encoder: Any = FakeEncoder()
    if difference == "document prompt":
        encoder.prompts = {"query": "", "document": "passage: "}
    else:
        about = {**encoder.describe(), "on_overflow": "window"}
        encoder.describe = lambda: about
    return encoder
