"""An index that is dropped without being closed gives its file descriptors back."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest
from fake_encoder import FakeEncoder

from embedkit.index import Index


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
