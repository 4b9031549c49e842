"""What can go wrong with an index or its input, one class for each thing a caller may want to handle."""

from __future__ import annotations


class IndexNotFoundError(FileNotFoundError):
    """There is no index at the given path."""


class IndexExistsError(FileExistsError):
    """Something exists where an index should be built, and replacing it was not asked for."""


class IndexDamagedError(RuntimeError):
    """A file of an index is missing, truncated, altered or of an unknown format version."""


class ModelMismatchError(ValueError):
    """The encoder is not the one that the index was built with."""


class BuildError(RuntimeError):
    """A build could not finish: the disk is full, Faiss failed, or the encoder returned unusable vectors."""


class ResumeError(BuildError):
    """An interrupted build is there, and what was asked for now is something else."""
