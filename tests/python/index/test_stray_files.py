"""What file managers leave in a folder is no reason to refuse an index."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_encoder import FakeEncoder

from embedkit.index import Document, Index, IndexExistsError
from embedkit.index.storage.layout import Writer


@pytest.mark.parametrize("name", [".DS_Store", "Thumbs.db", "desktop.ini", "._CURRENT"])
def test_stray_files_do_not_block_writing(tmp_path: Path, encoder: FakeEncoder, name: str) -> None:
    root = tmp_path / "index"
    root.mkdir()
    (root / name).touch()
    with Index.build(root, ["a cat", "a dog"], encoder) as index:
        for folder in (root / "segments", root / "manifests", root / "tombstones"):
            (folder / name).touch()
            (folder / "a folder of mine").mkdir()
        index.add([Document("a bird", "bird")])
        assert index.delete("0") == 1
        assert index.compact()
    with Index.build(root, ["a cow"], encoder, overwrite=True) as index:
        assert len(index) == 1
    assert (root / name).exists()
    for folder in (root / "segments", root / "manifests", root / "tombstones"):
        assert (folder / name).exists() and (folder / "a folder of mine").exists()


def test_other_files_in_an_index_are_named_with_advice(tmp_path: Path, encoder: FakeEncoder) -> None:
    root = tmp_path / "index"
    with Index.build(root, ["a cat"], encoder) as index:
        (root / "notes.txt").touch()
        with pytest.raises(IndexExistsError, match=r"notes\.txt.*move them away"):
            index.delete("0")


def test_no_index_is_made_in_the_folder_of_another(tmp_path: Path, encoder: FakeEncoder) -> None:
    root, inside = tmp_path / "index", tmp_path / "index" / "new" / "one"
    Index.build(tmp_path / "other", ["a dog"], encoder).close()
    with Index.build(root, [Document("a cat", "cat")], encoder) as index:
        index.export_faiss(tmp_path / "vectors.faiss")
        for make in (
            lambda: Index.build(inside, ["a cow"], encoder),
            lambda: Index.merge(inside, [root, tmp_path / "other"]),
            lambda: Index.import_faiss(inside, tmp_path / "vectors.faiss", encoder),
        ):
            with pytest.raises(IndexExistsError, match=r"one: lies in the folder of the index .*index; name"):
                make()
        assert index.delete("cat") == 1


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize(
    "name",
    [
        "manifests/deploy.yaml",
        "manifests/20240131.json",
        "segments/day1/a.ts",
        "segments/20240131-backup/photo.jpg",
        "segments/20240131-deadbeef/photo.jpg",
        "tombstones/grave.jpg",
        "segments",
        "segments/.git/HEAD",
    ],
)
def test_folders_named_like_those_of_an_index_are_left_alone(
    tmp_path: Path, encoder: FakeEncoder, name: str
) -> None:
    root = tmp_path / "mine"
    (root / name).parent.mkdir(parents=True)
    (root / name).touch()
    before = _files(root)
    sources = [tmp_path / "a", tmp_path / "b"]
    for source in sources:
        Index.build(source, [Document("a cat", source.name)], encoder).close()
    with Index.open(sources[0], encoder) as index:
        index.export_faiss(tmp_path / "vectors.faiss")
    named = "/".join(name.split("/")[:2])
    for write in (
        lambda: Index.build(root, ["a cat"], encoder),
        lambda: Index.build(root, ["a cat"], encoder, overwrite=True, restart=True),
        lambda: Index.build(root, [""], encoder),
        lambda: Index.merge(root, sources),
        lambda: Index.import_faiss(root, tmp_path / "vectors.faiss", encoder),
    ):
        with pytest.raises(
            IndexExistsError, match=rf"holds other things \({named}\); name a new or empty folder"
        ):
            write()
        assert _files(root) == before


@pytest.mark.parametrize("kept", ["build.journal", "LOCK"])
def test_what_a_killed_first_build_left_is_resumed_or_replaced(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    root = tmp_path / "index"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Writer, "publish", killed)
        patch.setattr(Writer, "_discard", lambda _: None)
        Index.build(root, ["a cat", "a dog"], encoder)
    if kept == "LOCK":  # killed before the first line of the journal
        (root / "build.journal").unlink()
    for leftover in ("segments/.writing-000001-0123abcd", "segments/000001-0123abcd"):
        (root / leftover).mkdir()
    for leftover in ("manifests/000001.json", "manifests/000001.json.tmp", "tombstones/000001-0123abcd.bits"):
        (root / leftover).touch()
    with Index.build(root, ["a cat", "a dog"], encoder) as index:
        assert index.written.resumed == (2 if kept == "build.journal" else 0)
    assert [len(list((root / folder).iterdir())) for folder in ("segments", "manifests", "tombstones")] == [
        1,
        1,
        0,
    ]
