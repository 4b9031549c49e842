"""Documents to index, and the files they are read from (`readers.Corpus`)."""

from .document import Document
from .errors import InputError, OnError

__all__ = ["Document", "InputError", "OnError"]
