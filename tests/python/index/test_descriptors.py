"""An index that is dropped without being closed gives its file descriptors back."""

from __future__ import annotations

import errno
import gc
import os
import sys
from pathlib import Path

import pytest
from fake_encoder import FakeEncoder

from embedkit.index import Document, Index


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")
def test_unclosed_indexes_leak_no_descriptors(tmp_path: Path, encoder: FakeEncoder) -> None:
    root = tmp_path / "index"
    Index.build(root, ["a cat", "a dog", "a bird"], encoder).close()

    def search_unclosed() -> None:
        index = Index.open(root, encoder)
        assert index.search("cat", 1, where="text like '%cat%'", hybrid=True)[0][0].text == "a cat"

    search_unclosed()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        search_unclosed()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")
def test_too_many_open_files_are_no_damage(tmp_path: Path, encoder: FakeEncoder) -> None:
    import resource

    root = tmp_path / "index"
    with Index.build(root, ["a cat"], encoder) as index:
        for number in range(3):
            index.add([Document("a dog", f"d{number}")])
    Index.open(root, encoder).close()  # imports, and checks the files, once
    gc.collect()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd"))) + 16
    refused = set()
    try:
        for limit in range(4, most):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
            try:
                Index.open(root, encoder).close()
                break
            except OSError as error:
                assert error.errno == errno.EMFILE and "allow this process more (ulimit -n)" in str(error)
                refused.add(Path(error.filename).name)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert {"documents.sqlite", "keys", "vectors.faiss"} <= refused and limit < most - 1
