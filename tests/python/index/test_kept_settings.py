"""What merge, reembed and compact keep of an index and of its settings, and what they drop or refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_encoder import FakeEncoder
from other_encoders import DIFFERENCES, otherwise

from embedkit import Encoder
from embedkit.cli.main import main
from embedkit.index import BuildSettings, Document, Index, InputError, ModelMismatchError


def documents(prefix: str, count: int) -> list[Document]:
    return [Document(f"{prefix} {number} of {number % 7}", f"{prefix}{number}") for number in range(count)]


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_indexes_of_other_vectors_are_not_merged(tmp_path: Path, difference: str) -> None:
    Index.build(tmp_path / "a", documents("a", 1), FakeEncoder()).close()
    Index.build(tmp_path / "b", documents("b", 1), otherwise(difference)).close()
    with pytest.raises(ModelMismatchError, match=difference):
        Index.merge(tmp_path / "all", [tmp_path / "a", tmp_path / "b"])


def test_every_two_of_several_indexes_are_compared(tmp_path: Path) -> None:
    for name, ids in (("a", "1"), ("b", "23"), ("c", "34")):
        Index.build(tmp_path / name, [Document(f"text {one}", one) for one in ids], FakeEncoder()).close()
    with pytest.raises(InputError, match=r"the id '3' is in .*b and in .*c"):
        Index.merge(tmp_path / "all", [tmp_path / name for name in "abc"])


def test_what_was_measured_on_one_index_is_not_of_the_merged_one(tmp_path: Path) -> None:
    for name in "ab":
        with Index.build(tmp_path / name, documents(name, 200), FakeEncoder(), factory="IVF4,Flat") as index:
            index.set_search_defaults(nprobe=1, tuning={"recall": 0.9})
    with Index.merge(tmp_path / "all", [tmp_path / "a", tmp_path / "b"]) as merged:
        assert (merged.generation.manifest.nprobe, merged.info()["tuning"]) == (None, None)


@pytest.mark.parametrize(("second", "kept"), [("one", "one"), ("two", None)])
def test_a_merged_index_follows_a_folder_that_all_of_it_is_of(
    tmp_path: Path, second: str, kept: str | None
) -> None:
    for name, root in (("a", "one"), ("b", second)):
        settings = BuildSettings(root=str(tmp_path / root))
        Index.build_with(tmp_path / name, documents(name, 1), FakeEncoder(), settings).close()
    with Index.merge(tmp_path / "all", [tmp_path / "a", tmp_path / "b"]) as merged:
        assert merged.generation.manifest.root == (None if kept is None else str(tmp_path / kept))


@pytest.mark.parametrize(
    ("options", "refused"),
    [(["--dedup", "exact"], "built with merge, of indexes"), ([], "built with other inputs than one folder")],
)
def test_a_merged_index_that_was_read_otherwise_than_sync_reads_is_not_synced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    refused: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for name in "abc":
        Path("folder", f"{name}.txt").write_text(f"text of {name}\n")
    assert main(["build", "folder/a.txt", "-o", "a", *options]) == 0
    assert main(["build", "folder/b.txt", "-o", "b"]) == 0
    assert main(["merge", "a", "b", "-o", "all"]) == 0
    assert main(["sync", "folder", "all"]) == 2
    assert refused in capsys.readouterr().err
    with Index.open("all") as index:
        assert len(index) == 2


def test_what_was_measured_on_another_kind_of_index_is_dropped(tmp_path: Path) -> None:
    with Index.build(tmp_path / "index", documents("a", 400), FakeEncoder(), factory="IVF8,Flat") as index:
        index.set_search_defaults(nprobe=8, tuning={"recall": 0.9})
        assert index.compact(factory="IVF4,SQ8")
        assert (index.generation.manifest.nprobe, index.info()["tuning"]) == (None, None)


def test_metric_and_language_survive_another_model(tmp_path: Path) -> None:
    texts = ["ein Text", "noch einer"]  # which the language "auto" would not find French
    with Index.build(tmp_path / "index", texts, FakeEncoder(), metric="dot", language="french") as index:
        index.reembed(FakeEncoder("other"))
        assert (index.info()["metric"], index.info()["words"]) == ("dot", "french")
        assert index.generation.manifest.language == "french"


@pytest.mark.parametrize("dimension", [12, 24, 32])
def test_an_index_of_other_dimensions_than_the_folder_keeps(
    make_model: Callable[..., Path], tmp_path: Path, dimension: int
) -> None:
    Encoder(make_model(), truncate_dim=16).save(tmp_path / "model")
    encoder = Encoder(tmp_path / "model", truncate_dim=dimension)
    built = Index.build(tmp_path / "index", ["people", "the weather"], encoder)
    (asked,) = built.search(["lovely weather"], hybrid=False)
    built.close()
    with Index.open(tmp_path / "index") as index:
        (found,) = index.search(["lovely weather"], hybrid=False)
        assert [hit.score for hit in found] == [hit.score for hit in asked]
