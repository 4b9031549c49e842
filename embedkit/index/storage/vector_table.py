"""Documents with their vectors as an Arrow table: the format of exports and of shards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...documents.document import Document
from ...documents.sources import OWN_TABLE, import_pyarrow
from .document_store import StoredDocument
from .faiss_index import Float32Array

__all__ = ["VectorTable", "write_parquet"]


class VectorTable:
    """Columns ``id``, ``text``, ``metadata`` (a JSON object, or null) and ``vector`` (a list of fixed length).

    Attributes:
        schema: of pyarrow.
    """

    def __init__(self, dimension: int, *, lines: bool = False) -> None:
        """For float32 vectors of ``dimension``; with ``lines`` there is also a column ``line`` of line numbers."""
        pyarrow = import_pyarrow("writing .parquet")
        self._pyarrow = pyarrow
        fields = [
            pyarrow.field("id", pyarrow.string(), nullable=False),
            pyarrow.field("text", pyarrow.string(), nullable=False),
            pyarrow.field("metadata", pyarrow.string()),
            pyarrow.field("vector", pyarrow.list_(pyarrow.float32(), dimension), nullable=False),
        ]
        if lines:
            fields.append(pyarrow.field("line", pyarrow.int64(), nullable=False))
        self.schema = pyarrow.schema(fields, metadata={OWN_TABLE: b"1"})

    def make(
        self,
        documents: Sequence[Document] | Sequence[StoredDocument],
        vectors: Float32Array,
        lines: Sequence[int] | None = None,
    ) -> Any:
        """A table of ``documents`` with ids and their ``vectors`` (n, dimension)."""
        pyarrow = self._pyarrow
        flat = pyarrow.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
        # escaped to ASCII, so that a lone surrogate reaches the check that names its document
        metadata = [json.dumps(dict(one.metadata)) if one.metadata else None for one in documents]
        columns = [
            pyarrow.array([document.id for document in documents], pyarrow.string()),
            pyarrow.array([document.text for document in documents], pyarrow.string()),
            pyarrow.array(metadata, pyarrow.string()),
            pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        ]
        if lines is not None:
            columns.append(pyarrow.array(lines, pyarrow.int64()))
        return pyarrow.table(columns, schema=self.schema)


def write_parquet(file: Path | Any, schema: Any) -> Any:
    """A `pyarrow.parquet.ParquetWriter` for tables with the ``schema`` of a `VectorTable`."""
    from pyarrow.parquet import ParquetWriter

    # vectors do not repeat, so a dictionary would only cost time; texts compress well
    compression = {name: "zstd" for name in ("id", "text", "metadata")}
    if "line" in schema.names:
        compression["line"] = "zstd"
    compression["vector.list.element"] = "none"
    return ParquetWriter(file, schema, use_dictionary=False, compression=compression)
