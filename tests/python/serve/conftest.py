"""Servers of these tests; skipped where the extra [serve] is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from running_server import RunningServer

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunningServer]:
    """Start a server; the caller leaves its block."""
    from running_server import RunningServer

    def started(*arguments: str, environment: dict[str, str] | None = None) -> RunningServer:
        log = tmp_path_factory.mktemp("serve") / "stderr"
        return RunningServer(*arguments, log=log, environment=environment)

    return started


@pytest.fixture(scope="session")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random cross-encoder of one class."""
    pytest.importorskip("transformers")
    from tiny_cross_encoders import write_cross_encoder

    return write_cross_encoder(tmp_path_factory.mktemp("cross") / "model", "bert", 1)


@pytest.fixture(scope="session")
def index_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the first documents of the sample corpus, by the built-in model."""
    pytest.importorskip("faiss")
    import json

    from embedkit import Encoder, Index
    from embedkit.index import Document

    lines = (ROOT / "examples" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:200]
    documents = []
    for number, line in enumerate(lines):
        entry = json.loads(line)
        metadata = {
            "topic": entry["topic"],
            "lang": entry["lang"],
            "number": number,
            "serial": 2**60 + number,
        }
        documents.append(Document(entry["text"], entry["id"], metadata))
    path = tmp_path_factory.mktemp("index") / "index"
    Index.build(path, documents, Encoder()).close()
    return path


@pytest.fixture(scope="session")
def server(start: Callable[..., RunningServer]) -> Iterator[RunningServer]:
    """The built-in model."""
    with ExitStack() as stack:
        yield stack.enter_context(start())


@pytest.fixture(scope="session")
def searching(
    start: Callable[..., RunningServer], index_folder: Path, reranker: Path
) -> Iterator[RunningServer]:
    """The built-in model, a reranker and an index."""
    with start("--index", str(index_folder), "--rerank", f"tiny={reranker}") as running:
        yield running
