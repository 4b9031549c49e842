"""Build, change, open and search an index of texts: Faiss vectors, ids and documents in one folder."""

from ..documents import Document, InputError
from ..documents.passages import Passages
from .auto.tune import Tuned
from .build.settings import BuildSettings, Progress, Written
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
from .search.hits import Hit, Passage
from .search.pipeline import SearchStats
from .search.rerank import rerank
from .storage.document_store import StoredDocument
from .storage.generation import Generation

__all__ = [
    "BuildError",
    "BuildSettings",
    "Document",
    "Generation",
    "Hit",
    "Index",
    "IndexDamagedError",
    "IndexExistsError",
    "IndexNotFoundError",
    "InputError",
    "ModelMismatchError",
    "Passage",
    "Passages",
    "Progress",
    "ResumeError",
    "SearchStats",
    "StoredDocument",
    "TextEncoder",
    "Tuned",
    "Written",
    "rerank",
]
