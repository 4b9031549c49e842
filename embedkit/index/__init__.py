"""Build, change, open and search an index of texts: Faiss vectors, keys and documents in one folder."""

from embedkit.index.build import Written
from embedkit.index.documents import Document
from embedkit.index.encoder import TextEncoder
from embedkit.index.errors import (
    BuildError,
    IndexDamagedError,
    IndexExistsError,
    IndexNotFoundError,
    InputError,
    ModelMismatchError,
    ResumeError,
)
from embedkit.index.hits import Hit
from embedkit.index.index import Index
from embedkit.index.ingest import Progress
from embedkit.index.pipeline import SearchStats

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
    "ResumeError",
    "SearchStats",
    "TextEncoder",
    "Written",
]
