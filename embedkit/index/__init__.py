"""Build, change, open and search an index of texts: Faiss vectors, ids and documents in one folder."""

from ..documents.document import Document
from ..documents.errors import InputError
from .build.build import Written
from .build.ingest import Progress
from .encoder import TextEncoder
from .errors import (
    BuildError,
    IndexDamagedError,
    IndexExistsError,
    IndexNotFoundError,
    ModelMismatchError,
    ResumeError,
)
from .index import Index
from .search.hits import Hit
from .search.pipeline import SearchStats

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
