"""Build, open and search an index of texts: Faiss vectors, keys and documents in one folder."""

from embedkit.index.build import Progress, TextEncoder
from embedkit.index.documents import Document
from embedkit.index.errors import (
    BuildError,
    IndexDamagedError,
    IndexExistsError,
    IndexNotFoundError,
    InputError,
    ModelMismatchError,
)
from embedkit.index.index import Hit, Index

__all__ = [
    "BuildError",
    "Document",
    "Hit",
    "Index",
    "IndexDamagedError",
    "IndexExistsError",
    "IndexNotFoundError",
    "InputError",
    "ModelMismatchError",
    "Progress",
    "TextEncoder",
]
