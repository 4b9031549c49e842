"""What file managers leave in a folder is no reason to refuse an index."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_encoder import FakeEncoder

from embedkit.index import Document, Index, IndexExistsError


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", "desktop.ini", "._CURRENT"])
def test_stray_files_do_not_block_writing(tmp_path: Path, encoder: FakeEncoder, name: str) -> None:
    root = tmp_path / "index"
    root.mkdir()
    (root / name).touch()
    with Index.build(root, ["a cat", "a dog"], encoder) as index:
        for folder in (root / "segments", root / "manifests", root / "tombstones"):
            (folder / name).touch()
        index.add([Document("a bird", "bird")])
        assert index.delete("0") == 1
        assert index.compact()
    with Index.build(root, ["a cow"], encoder, overwrite=True) as index:
        assert len(index) == 1
    assert (root / name).exists()


def test_other_files_in_an_index_are_named_with_advice(tmp_path: Path, encoder: FakeEncoder) -> None:
    root = tmp_path / "index"
    with Index.build(root, ["a cat"], encoder) as index:
        (root / "notes.txt").touch()
        with pytest.raises(IndexExistsError, match=r"notes\.txt.*move them away"):
            index.delete("0")
