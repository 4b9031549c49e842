"""Documents: what is indexed, and the files they are read from."""

from .document import Document
from .errors import InputError, OnError

__all__ = ["Document", "InputError", "OnError"]
