"""Reading ahead on a thread, which must have ended before what it uses is closed."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedkit.documents import Document
from embedkit.index.prefetch import prefetch
from embedkit.index.storage.document_store import DocumentWriter


def test_items_keep_their_order_and_their_error() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise ValueError("five")

    read = []
    with pytest.raises(ValueError, match="five"):
        for item in prefetch(items(), 2):
            read.append(item)
    assert read == list(range(5))


def test_ctrl_c_while_the_thread_starts_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    reads: list[int] = []
    items = (reads.append(number) or number for number in itertools.count())
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(prefetch(items, 1))
    read = len(reads)
    assert "embedkit-prefetch" not in {thread.name for thread in threading.enumerate()}
    time.sleep(0.1)
    assert len(reads) == read


def test_documents_are_closed_while_a_thread_adds_some(tmp_path: Path) -> None:
    for attempt in range(30):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        writer = DocumentWriter(folder)
        ended: list[BaseException] = []

        def add(writer: DocumentWriter = writer, ended: list[BaseException] = ended) -> None:
            try:
                for number in itertools.count():
                    writer.add(Document(f"text {number}", id=str(number)))
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=add)
        thread.start()
        while writer.rows < 10:
            time.sleep(0.0001)
        writer.commit()
        writer.close()
        thread.join(60)
        assert not thread.is_alive()
        assert isinstance(ended[0], sqlite3.ProgrammingError), ended
