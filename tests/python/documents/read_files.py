"""Writes files and reads their documents, for tests."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from embedkit.documents.readers import Corpus


def read(path: Path, **options: Any) -> list[tuple[Any, ...]]:
    return [(document.id, document.text, document.metadata) for document in Corpus([path], **options)]


def write(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    if isinstance(content, str):
        content = content.encode("utf-8")
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path
