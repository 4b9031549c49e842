"""Damaged Faiss files are named before Faiss reads them; and conditions that nothing can match."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.cli.main import main
from embedkit.index import Document, Index, IndexDamagedError, InputError

FACTORIES = [
    "Flat",
    "IVF16,Flat",
    "IVF16,PQ16x4fs",
    "HNSW8",
    "IVF16,SQ8",
    "PQ16x4fs",
    "RR16,IVF16,PQ8x4fsr,RFlat",
]


@pytest.mark.parametrize("factory", FACTORIES)
def test_any_flipped_byte_of_a_faiss_file_is_named(tmp_path: Path, factory: str) -> None:
    """In another process: what Faiss makes of some of them ends it."""
    path = tmp_path / "index"
    Index.build(path, [f"text {n} of {n % 13}" for n in range(700)], FakeEncoder(), factory=factory).close()
    (file,) = path.glob("segments/*/vectors.faiss")
    content = file.read_bytes()
    random = np.random.default_rng(0)
    places = [*range(64), *random.integers(0, len(content), 60).tolist()]
    code = (
        "import sys\nfrom pathlib import Path\nfrom fake_encoder import FakeEncoder\n"
        "from embedkit.index import Index, IndexDamagedError\n"
        "file, content = Path(sys.argv[2]), Path(sys.argv[2]).read_bytes()\n"
        "for place in map(int, sys.argv[3:]):\n"
        "    flipped = bytearray(content)\n"
        "    flipped[place] ^= 0xff\n"
        "    file.write_bytes(flipped)\n"
        "    try:\n"
        "        with Index.open(sys.argv[1], FakeEncoder()) as index: index.search('text 3 of 3')\n"
        "    except IndexDamagedError as error:\n"
        "        assert str(file) in str(error), error\n"
        "    else: raise SystemExit(f'byte {place} was not noticed')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(file), *map(str, places)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def invoices(path: Path) -> None:
    """Eight segments of a document each, and a deleted document."""
    with Index.build(path, [Document("text x", "x"), Document("text y", "y")], FakeEncoder()) as index:
        for number in range(6):
            index.add([Document(f"the customer owes 100{number} euros", f"d{number}")])
        index.delete(["y"])


def altered(path: Path) -> None:
    """Change a digit of a text."""
    for file in path.glob("segments/*/documents.sqlite"):
        content = file.read_bytes()
        file.write_bytes(content.replace(b"owes 1003 euros", b"owes 9003 euros"))


@pytest.mark.parametrize(
    "copy",
    [
        lambda index: index.compact(),
        lambda index: index.reembed(FakeEncoder("other")),
        lambda index: index.export_parquet(index.path.parent / "out.parquet"),
        lambda index: index.export_faiss(index.path.parent / "out.faiss"),
    ],
    ids=["compact", "reembed", "parquet", "faiss"],
)
def test_damage_is_not_copied(tmp_path: Path, copy: Callable[[Index], object]) -> None:
    """The copy would have hashes of its own, so that nothing would find the damage any more."""
    path = tmp_path / "index"
    invoices(path)
    altered(path)
    with (
        Index.open(path, FakeEncoder()) as index,
        pytest.raises(IndexDamagedError, match=r"documents\.sqlite"),
    ):
        copy(index)
    with (
        Index.open(path, FakeEncoder()) as index,
        pytest.raises(IndexDamagedError, match=r"documents\.sqlite"),
    ):
        index.verify()


def test_additions_go_on_beside_damage_and_do_not_copy_it(tmp_path: Path) -> None:
    path = tmp_path / "index"
    invoices(path)
    altered(path)
    with Index.open(path, FakeEncoder()) as index:
        for number in range(8):  # some of these would fold
            index.add([Document("more", f"m{number}")])
        assert len(index) == 15
        with pytest.raises(IndexDamagedError, match=r"documents\.sqlite"):
            index.verify()


def test_fields_that_are_not_json_are_not_a_mistake_of_the_condition(tmp_path: Path) -> None:
    path = tmp_path / "index"
    Index.build(path, [Document("text", "a", {"year": 3})], FakeEncoder()).close()
    (file,) = path.glob("segments/*/documents.sqlite")
    file.write_bytes(file.read_bytes().replace(b'{"year":3}', b'("year":3}'))
    with (
        Index.open(path, FakeEncoder()) as index,
        pytest.raises(IndexDamagedError, match=r"documents\.sqlite: the fields of a document are not JSON"),
    ):
        index.search("text", where="year > 1")


def test_other_rows_marked_as_deleted_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "index"
    invoices(path)
    (file,) = path.glob("tombstones/*.bits")
    (bits,) = file.read_bytes()
    file.write_bytes(bytes([bits ^ 3]))
    with pytest.raises(IndexDamagedError, match=r"\.bits: the content does not match"):
        Index.open(path, FakeEncoder())


def test_an_addition_that_fails_leaves_an_open_index_in_order(tmp_path: Path) -> None:
    """It may have folded segments before, whose files are gone then."""
    with Index.build(tmp_path / "index", [Document("text x", "x")], FakeEncoder()) as index:
        for number in range(7):
            index.add([Document("text", f"d{number}")])
        with pytest.raises(InputError, match="already in the index"):
            index.add([Document("again", "d1")])
        assert index.info()["segments"] == 1
        assert index.verify()["documents"] == 8


def test_an_unchanged_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index"
    Index.build(path, ["a", "b"], FakeEncoder()).close()
    hashed: list[Path] = []
    from embedkit.index.storage import faiss_part

    whole = faiss_part.hash_file
    monkeypatch.setattr(faiss_part, "hash_file", lambda file: hashed.append(file) or whole(file))
    Index.open(path, FakeEncoder()).close()
    assert hashed == []  # the build has opened it
    (file,) = path.glob("segments/*/vectors.faiss")
    os.utime(file, ns=(1, 1))
    Index.open(path, FakeEncoder()).close()
    Index.open(path, FakeEncoder()).close()
    assert hashed == [file]


def test_adding_does_not_read_faiss_files(tmp_path: Path) -> None:
    path = tmp_path / "index"
    Index.build(path, ["a", "b"], FakeEncoder()).close()
    index = Index.open(path, FakeEncoder())
    (file,) = path.glob("segments/*/vectors.faiss")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"\x01")
    with pytest.raises(IndexDamagedError, match=r"vectors\.faiss"):  # the new generation cannot be searched
        index.add([Document("c", "c")])
    file.write_bytes(content)
    assert index.refresh() and len(index) == 3


@pytest.fixture
def fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("embedkit.Encoder", FakeEncoder, raising=False)
    documents = [
        Document(f"text {n}", str(n), {"lang": "en", "year": n, "author": {"name": "Ann"}, "tags": ["a"]})
        for n in range(5)
    ]
    Index.build(tmp_path / "index", documents, FakeEncoder()).close()
    return str(tmp_path / "index")


@pytest.mark.parametrize(
    ("where", "note"),
    [
        ("langg = 'en'", "no document has the field 'langg'"),
        ('lang = "en"', "no document has the field 'en'; a text is written in single quotes: 'en'"),
        ("author.nam = 'Ann'", "no document has the field 'author.nam'"),
        ("lang = 'xx'", ""),
        ("year > 100", ""),
    ],
)
@pytest.mark.parametrize("command", ["query", "delete"])
def test_why_nothing_matches(
    fields: str, capsys: pytest.CaptureFixture[str], command: str, where: str, note: str
) -> None:
    arguments = ["query", fields, "text"] if command == "query" else ["delete", fields]
    assert main([*arguments, "--where", where]) == 0
    err = capsys.readouterr().err
    assert err == (f"embedkit-index: note: {note}\n" if note else "")


def test_a_list_after_in_is_explained(fields: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", fields, "text", "--where", "lang in tags"]) == 2
    err = capsys.readouterr().err
    assert "after in comes a list, such as lang in ('en', 'de')" in err and "json_extract" not in err


def test_a_condition_does_not_run_for_long(fields: str) -> None:
    nested = "text"
    for _ in range(12):
        nested = f"replace({nested}, 't', '{'t' * 200}')"
    with Index.open(fields, FakeEncoder()) as index:
        begin = time.monotonic()
        with pytest.raises(ValueError, match="user-defined function raised exception"):
            index.search("text", where=f"{nested} = 'x'")
        assert time.monotonic() - begin < 5
        found = index.search(
            "text", k=9, where="replace(lang, 'e', 'E') = 'En' and replace(lang, 'n', null) is null"
        )
        assert len(found[0]) == 5
        assert len(index.search("text", k=9, where="replace(year, '3', '4') = '4'")[0]) == 2
