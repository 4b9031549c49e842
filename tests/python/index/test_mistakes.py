"""Mistakes of a user, and errors of a disk, are told in words that name them and say what to do."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faiss_kinds import needs_rabitq
from fake_encoder import FakeEncoder

from embedkit.cli.main import main
from embedkit.cli.terminal import shown_id
from embedkit.documents import InputError
from embedkit.documents.readers import Corpus
from embedkit.index import BuildError, Document, Index, IndexExistsError
from embedkit.index.storage import layout
from embedkit.index.storage.factory import least_rows
from embedkit.index.storage.faiss_index import create_index, faiss_threads

TEXTS = ["a cat", "a dog", "a bird"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("embedkit.Encoder", FakeEncoder, raising=False)
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": str(at), "text": text}) + "\n" for at, text in enumerate(TEXTS)]
    Path("texts.jsonl").write_text("".join(lines), "utf-8")
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == code
    return capsys.readouterr().err


@pytest.mark.parametrize("output", ["texts.jsonl", "texts.jsonl/below"])
def test_an_index_in_place_of_a_file(here: Path, capsys: pytest.CaptureFixture[str], output: str) -> None:
    message = told(capsys, "build", "texts.jsonl", "-o", output)
    assert message.startswith(f"embedkit-index: {output}: ")
    assert "folder" in message and "Errno" not in message and "journal" not in message
    with pytest.raises(IndexExistsError, match="folder"):
        Index.build(output, TEXTS, FakeEncoder(), overwrite=True)
    assert Path("texts.jsonl").read_text("utf-8").count("\n") == 3


def test_an_add_that_fails_is_called_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "texts.jsonl", "-o", "index"]) == 0

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    Path("more.jsonl").write_text('{"id": "x", "text": "a fish"}\n', "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "write_atomically", full)
        message = told(capsys, "add", "index", "more.jsonl", code=1)
    assert message.startswith(f"embedkit-index: {here / 'index'}: adding failed: No space left on device")


FACTORIES = """PQ8x4 IVF10,Flat IVF10,PQ8x4 IVF300,PQ8x4fs OPQ8,PQ8x4 PCA8,Flat PCAR4,IVF2,Flat IVF12_HNSW4,SQ4
PQ8x2 PQ8x4,RFlat""".split()  # noqa: SIM905


@pytest.mark.parametrize("factory", [*FACTORIES, pytest.param("IVF5,RaBitQ", marks=needs_rabitq)])
def test_the_least_number_of_vectors_is_that_of_faiss(factory: str) -> None:
    def trains(rows: int) -> bool:
        index = create_index(factory, 16)
        vectors = np.random.default_rng(0).standard_normal((rows, 16)).astype(np.float32)
        try:
            index.train(vectors)
        except RuntimeError:
            return False
        return True

    with faiss_threads(1):
        assert trains(least_rows(factory))
        assert not trains(least_rows(factory) - 1)


def test_a_factory_of_more_lists_than_documents(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_: object, **__: object) -> None:
        raise AssertionError("nothing needs to be encoded to know")

    monkeypatch.setattr(FakeEncoder, "encode_document", encode)
    message = told(capsys, "build", "texts.jsonl", "-o", "index", "--factory", "IVF1000,Flat")
    assert "needs at least 1,000 vectors, and there are 3" in message
    with pytest.raises(ValueError, match="needs at least 1,000 vectors, and there are 3"):
        Index.build("index", TEXTS, FakeEncoder(), factory="IVF1000,Flat")
    assert not Path("index").exists()


def test_a_factory_that_turns_out_too_large(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The encoded documents are kept, but not by the same command."""
    with pytest.raises(
        BuildError, match=r"3 documents are encoded, and the command goes on .* with such a --factory"
    ):
        Index.build("index", iter(TEXTS), FakeEncoder(), factory="IVF1000,Flat")
    with Index.build("index", iter(TEXTS), FakeEncoder(), factory="IVF2,Flat") as index:
        assert index.info()["factory"] == "IVF2,Flat"


@pytest.mark.parametrize(
    ("error", "of_the_index"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "texts/a.txt"), False),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), False),
        (PermissionError(errno.EACCES, "Permission denied", "index/LOCK"), True),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/other"), True),
    ],
)
def test_an_error_of_the_callers_documents_stays_as_it_is(
    here: Path, encoder: FakeEncoder, error: OSError, of_the_index: bool
) -> None:
    def documents() -> Iterator[str]:
        yield "a cat"
        raise error

    with pytest.raises(BuildError if of_the_index else OSError) as raised:
        Index.build("index", documents(), encoder)
    if of_the_index:
        assert str(raised.value).startswith(f"index: the build failed and was undone: {error.strerror}")
    else:
        assert raised.value is error


@pytest.mark.parametrize("change", ["build", "add", "delete", "compact"])
def test_an_error_after_the_change_is_live(
    here: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A disk that cannot confirm a change that readers see already: a warning, as nothing can be undone."""
    whole = layout.write_atomically

    def unconfirmed(path: Path, content: bytes) -> None:
        whole(path, content)
        if path.name == layout.CURRENT_FILE:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    changes: dict[str, Callable[[Index], object]] = {
        "add": lambda index: index.add([Document("a fish", "x")]),
        "delete": lambda index: index.delete("1"),
        "compact": lambda index: index.compact(factory="HNSW8"),
    }
    message = "readers see it, but the disk did not confirm it .Input/output error"
    if change == "build":
        monkeypatch.setattr(layout, "write_atomically", unconfirmed)
        with pytest.warns(UserWarning, match=message), Index.build("index", TEXTS, encoder) as index:
            assert len(index) == 3
        return
    with Index.build("index", TEXTS, encoder) as index:
        with pytest.MonkeyPatch.context() as patch, pytest.warns(UserWarning, match=message):
            patch.setattr(layout, "write_atomically", unconfirmed)
            changes[change](index)
        assert len(index) == {"add": 4, "delete": 2, "compact": 3}[change]
        index.verify()
        assert not Path("index/build.journal").exists()
        index.add([Document("another", "y")])


BAD_BYTES = {
    "lines.txt": b"a line\n\xff\xfe another\n",
    "table.csv": b"id,text\n1,\xff\xfe\n",
    "lines.jsonl": b'{"text": "x"}\n\xff\xfe\n',
}
UTF16 = {name: "text".encode("utf-16") for name in ("a.txt", "a.csv", "a.jsonl", "a.json", "a.md", "a.html")}


@pytest.mark.parametrize("name", [*BAD_BYTES, *UTF16])
def test_only_a_file_that_begins_as_utf16_looks_like_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes({**BAD_BYTES, **UTF16}[name])
    with pytest.raises(InputError) as error:
        list(Corpus(path))
    assert "byte 0xff" in str(error.value)
    assert ("looks like UTF-16" in str(error.value)) == (name in UTF16)


def write_object_array(path: Path) -> None:
    np.save(path, np.array([{}, 1], dtype=object), allow_pickle=True)


def write_archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, np.zeros((3, 32)))


def write_half_an_archive(path: Path) -> None:
    write_archive(path)
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    "write",
    [
        write_object_array,
        lambda path: path.write_text("{}"),
        Path.touch,
        write_archive,
        write_half_an_archive,
    ],
)
def test_a_file_that_holds_no_vectors(here: Path, write: Callable[[Path], Any]) -> None:
    path = here / "vectors.npy"
    write(path)
    with pytest.raises(InputError, match=r"vectors.npy: is not a \.npy file of numbers") as error:
        Corpus("texts.jsonl", vectors=path)
    assert "pickle" not in str(error.value) and "unsafe" not in str(error.value)


@pytest.mark.parametrize("passages", [None, 20])
def test_blank_texts_are_left_out_as_on_the_command_line(
    here: Path, encoder: FakeEncoder, passages: int | None
) -> None:
    if passages is not None:
        pytest.importorskip("embedkit._core")
        from embedkit.encoder import Encoder

        encoder = Encoder()  # type: ignore[assignment]
    with (
        pytest.warns(UserWarning, match=r"2 blank texts were left out \(first the document '1'\)"),
        Index.build("index", ["a cat", "", " \n\t", "a dog"], encoder, passages=passages) as index,
    ):
        ids = [document.id for document in index]
        assert [name.partition("#")[0] for name in ids] == ["0", "3"]
        with pytest.warns(UserWarning, match=r"1 blank text was left out .*'0'.*earlier documents .* stay"):
            written = index.upsert([Document(" ", "0"), Document("a bird", "3")])
        assert (written.blank, written.documents, len(index)) == (1, 1, 2)
        with pytest.warns(UserWarning, match="blank"):
            assert index.add([Document("", "9")]).documents == 0
    with pytest.raises(InputError, match="no documents to index"):
        Index.build("none", [""], encoder)


def test_a_blank_text_with_its_vector_is_kept(here: Path, encoder: FakeEncoder) -> None:
    vector = np.eye(32, dtype=np.float32)[0]
    with Index.build("index", [Document("", "image.png", vector=vector), "a cat"], encoder) as index:
        assert index.search(vector, k=1)[0][0].id == "image.png"


IDS = [
    "a\nb",
    "a\tb",
    "a b",
    "a  b",
    " a b",
    "a\\nb",
    '"a\\nb"',
    "a\u200bb",
    "ab",
    "a\x1bb",
    "a\u00a0b",
    "a\u202eb",
    "é",
]


def test_ids_that_differ_are_printed_differently() -> None:
    shown = [shown_id(one) for one in IDS]
    assert len(set(shown)) == len(IDS)
    assert all(character.isprintable() for one in shown for character in one)
    assert [shown_id(one) for one in ("folder/a b.txt:3", "dir\\file", "猫")] == [
        "folder/a b.txt:3",
        "dir\\file",
        "猫",
    ]
    assert shown_id("a\nb") == '"a\\nb"'


def test_query_shows_ids_that_can_be_told_apart(
    here: Path, encoder: FakeEncoder, capsys: pytest.CaptureFixture[str]
) -> None:
    Index.build("index", [Document("a cat", "a\nb"), Document("a cat too", "a\tb")], encoder).close()
    assert main(["query", "index", "cat", "--no-hybrid"]) == 0
    out = capsys.readouterr().out
    assert '"a\\nb"' in out and '"a\\tb"' in out


@pytest.mark.parametrize("name", ["texts.jsonl", "table.csv", "table.tsv"])
@pytest.mark.parametrize(
    "options",
    [("--id-field", "text"), ("--text-field", "id", "--id-field", "id"), ("--vector-field", "text")],
    ids=str,
)
def test_one_field_for_two_purposes(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, options: tuple[str, ...]
) -> None:
    Path("table.csv").write_text("id,text\n1,a cat\n", "utf-8")
    Path("table.tsv").write_text("id\ttext\n1\ta cat\n", "utf-8")
    message = told(capsys, "build", name, "-o", "index", *options)
    assert "both name the field" in message
    assert not Path("index").exists()


@pytest.mark.parametrize("name", ["vectors.faiss", "all.parquet"])
def test_an_export_that_fails_leaves_nothing(
    here: Path,
    encoder: FakeEncoder,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    Index.build("index", TEXTS, encoder).close()
    assert "there is no folder" in told(capsys, "export", "index", f"missing/{name}")
    assert "already exists" in told(capsys, "export", "index", "texts.jsonl")
    before = set(os.listdir())

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("embedkit.index.build.transfer.json.dumps", full)
    monkeypatch.setattr("embedkit.index.build.transfer.VectorTable.make", full)
    message = told(capsys, "export", "index", name, code=1)
    assert f"{name}: the export failed and was undone: No space left" in message
    assert set(os.listdir()) == before


def test_a_number_that_python_does_not_print_is_skipped_like_any_mistake(
    tmp_path: Path, encoder: FakeEncoder
) -> None:
    documents = [Document("one", "1", {"n": 10**5000}), Document("two", "2")]
    with pytest.raises(InputError):
        Index.build(tmp_path / "index", documents, encoder)
    with Index.build(tmp_path / "index", documents, encoder, on_error="skip") as index:
        assert len(index) == 1
        index.upsert(documents, on_error="skip")
        assert len(index) == 1
