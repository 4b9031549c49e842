"""The errors of an index, one class for each that a caller may want to handle."""

from __future__ import annotations

__all__ = [
    "BuildError",
    "IndexDamagedError",
    "IndexExistsError",
    "IndexNotFoundError",
    "ModelMismatchError",
    "ResumeError",
    "TooFewVectorsError",
]


class IndexNotFoundError(FileNotFoundError):
    """There is no index at the given path."""


class IndexExistsError(FileExistsError):
    """Something exists where an index is to be built, and ``overwrite`` was not given."""


class IndexDamagedError(RuntimeError):
    """A file of an index is missing, truncated, altered or of an unknown format version."""


class ModelMismatchError(ValueError):
    """The encoder is not the one that the index was built with."""


class BuildError(RuntimeError):
    """A build failed: the disk is full, Faiss failed, or the encoder returned unusable vectors."""


class TooFewVectorsError(BuildError):
    """There are too few vectors to train the Faiss index that was asked for."""


class ResumeError(BuildError):
    """An interrupted build exists whose input or settings differ from those given now."""
