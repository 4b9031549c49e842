"""Shards of ``build --engine ray`` on a file system without folders, as object stores are; test_ray.py has the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("fsspec")
pytest.importorskip("pyarrow")

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from embedkit.index import Document
from embedkit.integrations.ray_shards import JobHeader, ShardStore

HEADER = JobHeader("input", "fingerprint", "fp32", "", 4, "cosine", ["text", None])


class Bucket(MemoryFileSystem):
    """Keys alone: a folder is there while a file is in it, and the first part of a path is a bucket."""

    protocol = "bucket"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("bucket://")))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing."""

    def rmdir(self, path: str) -> None:
        """Delete a bucket; others are no folders."""
        if path.strip("/").count("/"):
            raise FileNotFoundError(path)
        raise AssertionError(f"the bucket {path} was deleted")


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    yield Bucket()
    Bucket.store.clear()


@pytest.mark.parametrize("place", ["bucket://mine", "bucket://mine/shards of this"])
def test_a_job_on_an_object_store(bucket: Bucket, place: str) -> None:
    store = ShardStore(place, HEADER.digest())
    store.begin(HEADER, restart=False)
    assert store.finished(1) == {}
    store.sweep()
    with store.writer(0, 4) as writer:
        writer.add([Document("a text", "id")], [1], np.ones((1, 4), np.float32))
    assert list(store.finished(1)) == [0]
    store.begin(HEADER, restart=True)
    assert store.finished(1) == {}
    store.remove()
    assert not Bucket.store


def test_a_place_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    store = ShardStore("~/shards", HEADER.digest())
    assert store.url == str(tmp_path / "shards")  # which the actors are told
    store.begin(HEADER, restart=False)
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]
    store.remove()
    assert not list(tmp_path.iterdir())
