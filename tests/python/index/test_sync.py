"""An index that follows its folder, also when the command is killed."""

from __future__ import annotations

import errno
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_encoder import Counting, FakeEncoder

from embedkit.cli.main import main
from embedkit.documents import InputError
from embedkit.documents.readers import Corpus, Names
from embedkit.index import BuildError, BuildSettings, Document, Index, ResumeError
from embedkit.index import sync as sync_module
from embedkit.index.build.settings import Progress
from embedkit.index.storage import layout
from embedkit.index.sync import FolderSettings, sync

TESTS = Path(__file__).parents[1]
WHOLE = FolderSettings(whole_text=True)


def write(folder: Path, contents: dict[str, str]) -> None:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def built(folder: Path, path: Path, encoder: FakeEncoder) -> Index:
    corpus = Corpus([folder], names=Names(whole_text=True))
    return Index.build_with(path, corpus, encoder, BuildSettings(root=corpus.files.root))


def held(index: Index) -> dict[str, str]:
    generation = index.generation
    return {found.id: found.text for found in generation.fetch(generation.living_rows()).values()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "col", {f"d{n % 3}/f{n}.txt": f"text of file {n}" for n in range(30)})
    return tmp_path / "col"


def test_sync_follows_the_folder(folder: Path, tmp_path: Path) -> None:
    encoder = Counting()
    age(folder, 100)
    with built(folder, tmp_path / "index", encoder) as index:
        first = sync(index, folder, WHOLE)
        assert (first.files, first.written, first.deleted, encoder.texts) == (30, 0, 0, 30)
        again = sync(index, folder, WHOLE)
        assert (again.read, again.written) == (0, 0)
        write(
            folder,
            {"new.md": "a new note", "d0/f0.txt": "changed", "table.jsonl": '{"text": "x"}\n{"text": "y"}\n'},
        )
        (folder / "d1" / "f1.txt").unlink()
        os.utime(folder / "d2" / "f2.txt", (1, 1))  # touched, not changed
        index.upsert([Document("from elsewhere", "mine")])
        third = sync(index, folder, WHOLE)
        assert (third.written, third.replaced, third.deleted) == (4, 1, 1)
        assert encoder.texts == 35
        assert index.get("mine")
        write(folder, {"table.jsonl": '{"text": "x"}\n'})
        last = sync(index, folder, WHOLE)
        # read: also the two others that were written just now, and may have changed within a tick of the clock
        assert (last.read, last.written, last.deleted) == (3, 0, 1)
        expected = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.txt")}
        assert held(index) == {
            **expected,
            "new.md": "a new note",
            "table.jsonl:1": "x",
            "mine": "from elsewhere",
        }
        index.verify(sample=20)


def test_another_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    with (
        built(folder, tmp_path / "index", FakeEncoder()) as index,
        pytest.raises(InputError, match="was not built of"),
    ):
        sync(index, folder / "d0")


def test_a_folder_that_was_moved(folder: Path, tmp_path: Path) -> None:
    encoder = FakeEncoder()
    age(folder, 100)
    with built(folder, tmp_path / "index", encoder) as index:
        before = held(index)
        moved = folder.rename(tmp_path / "moved")
        with pytest.raises(InputError, match="if that was moved here, pass --moved"):
            sync(index, moved, WHOLE)
        assert sync(index, moved, WHOLE, moved=True).written == 0
        assert held(index) == before
        assert index.info()["root"] == os.path.realpath(moved)
        assert sync(index, moved, WHOLE).read == 0


def test_a_folder_that_is_gone_deletes_nothing(folder: Path, tmp_path: Path) -> None:
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        before = held(index)
        moved = folder.rename(tmp_path / "moved")
        for missing in (folder, moved / "nowhere"):
            with pytest.raises(InputError, match="no such folder"):
                sync(index, missing, WHOLE)
        assert held(index) == before


def test_a_folder_without_files_deletes_nothing(folder: Path, tmp_path: Path) -> None:
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        for _ in range(2):  # before the first sync and after it
            before = held(index)
            moved = folder.rename(tmp_path / "moved")
            folder.mkdir()
            with pytest.raises(InputError, match="is its disk mounted"):
                sync(index, folder, WHOLE)
            assert held(index) == before
            folder.rmdir()
            moved.rename(folder)
            sync(index, folder, WHOLE)
        folder.rename(tmp_path / "moved")
        folder.mkdir()
        index.delete(where="true")
        assert (sync(index, folder, WHOLE).deleted, len(index)) == (0, 0)


CHILD = f"""
import os, signal, sys
sys.path.insert(0, {str(TESTS)!r})
from fake_encoder import FakeEncoder
from embedkit.index import Index
from embedkit.index.sync import FolderSettings, sync
kind, path, folder, last = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
import faiss
index = Index.open(path, FakeEncoder("old"), force=True) if kind == "sync" else Index.open(path)
seen = 0
def hook(event, arguments):
    global seen
    seen += 1
    if seen == last:
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
if kind == "sync":
    sync(index, folder, FolderSettings(whole_text=True))
else:
    index.reembed(FakeEncoder("new", truncate_dim=24))
print(seen)
"""


@pytest.mark.parametrize("kind", ["sync", "reembed"])
def test_a_kill_at_any_point_loses_nothing(folder: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "index"
    built(folder, path, FakeEncoder("old")).close()
    choose = random.Random(kind)

    def child(last: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", CHILD, kind, str(path), str(folder), str(last)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    for round_ in range(3):
        write(folder, {"d0/f0.txt": f"changed {round_}", f"new{round_}.txt": f"new {round_}"})
        (folder / "d1" / f"f{1 + 3 * round_}.txt").unlink()
        killed = child(choose.randrange(1, 400))
        assert killed.returncode in (0, -signal.SIGKILL), killed.stderr
        with (
            Index.open(path, FakeEncoder("new", truncate_dim=24), force=True)
            if _dimension(path) == 24
            else (Index.open(path, FakeEncoder("old"))) as whole
        ):
            whole.verify(sample=10)  # the generation that answers is whole
    done = child(0)
    assert done.returncode == 0, done.stderr
    if kind == "sync":
        with Index.open(path, FakeEncoder("old")) as index:
            assert held(index) == {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.txt")}
            index.verify(sample=30)
    else:
        with Index.open(path, FakeEncoder("new", truncate_dim=24)) as index:
            assert (len(index), index.dimension) == (30, 24)
            index.verify(sample=30)


def _dimension(path: Path) -> int:
    with Index.open(path) as index:
        return index.dimension


def age(folder: Path, seconds: int) -> None:
    """Make all files so much older than they are."""
    for path in folder.rglob("*.*"):
        before = path.stat().st_mtime_ns
        os.utime(path, ns=(before, before - seconds * 10**9))


def rewrite(path: Path, content: str) -> None:
    """Change a file, but neither its size nor its time."""
    status = path.stat()
    assert len(content) == status.st_size
    path.write_text(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_files_whose_size_and_time_are_the_same_are_not_read(folder: Path, tmp_path: Path) -> None:
    age(folder, 100)
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        rewrite(folder / "d0" / "f0.txt", "test of file 0")
        assert sync(index, folder, WHOLE).read == 0
        done = sync(index, folder, WHOLE, checksum=True)
        assert (done.read, done.written, done.replaced) == (30, 1, 1)
        assert index["d0/f0.txt"].text == "test of file 0"
        again = sync(index, folder, WHOLE, checksum=True)
        assert (again.read, again.written) == (30, 0)


def test_what_another_process_deleted_comes_back(folder: Path, tmp_path: Path) -> None:
    age(folder, 100)
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        with Index.open(tmp_path / "index", FakeEncoder()) as other:
            other.delete("d0/f0.txt")
        write(folder, {"new.txt": "a new file"})
        assert sync(index, folder, WHOLE).written == 2
        assert {"new.txt", "d0/f0.txt"} <= held(index).keys()


@pytest.mark.parametrize("when", ["hashing", "deleting"])
def test_what_another_process_deletes_during_a_sync_comes_back(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    age(folder, 100)
    path = tmp_path / "index"
    deleted = []

    def delete_first(step: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*arguments: Any, **options: Any) -> Any:
            if not deleted:
                deleted.append("d0/f0.txt")
                with Index.open(path, FakeEncoder()) as other:
                    assert other.delete(deleted) == 1
            return step(*arguments, **options)

        return stepping

    with built(folder, path, FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        write(folder, {"new.txt": "a new file"})
        (folder / "d1" / "f1.txt").unlink()
        with monkeypatch.context() as patch:
            if when == "hashing":
                patch.setattr(sync_module, "_hash", delete_first(sync_module._hash))
            else:  # between its upsert and its delete
                patch.setattr(Index, "delete", delete_first(Index.delete))
            assert sync(index, folder, WHOLE).written == 1
        assert "d0/f0.txt" not in index
        again = sync(index, folder, WHOLE)
        assert (again.read, again.written) == (30, 1)
        assert held(index).keys() == {str(p.relative_to(folder)) for p in folder.rglob("*.txt")}
        assert sync(index, folder, WHOLE).written == 0


def test_what_a_sync_itself_folds_writes_and_deletes_is_remembered(folder: Path, tmp_path: Path) -> None:
    age(folder, 100)
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        for n in range(8):
            index.add([Document(f"from elsewhere {n}", f"mine{n}")])
        write(folder, {"new.txt": "a new file"})
        age(folder, 100)
        (folder / "d1" / "f1.txt").unlink()
        before = index.generation.manifest.generation
        done = sync(index, folder, WHOLE)
        assert (done.read, done.written, done.deleted) == (30, 1, 1)
        assert index.generation.manifest.generation == before + 3
        assert sync(index, folder, WHOLE).read == 0


def test_a_file_that_changes_twice_within_a_tick_of_the_clock(folder: Path, tmp_path: Path) -> None:
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)  # of files that were written just now
        rewrite(folder / "d0" / "f0.txt", "test of file 0")
        assert sync(index, folder, WHOLE).written == 1
        assert index["d0/f0.txt"].text == "test of file 0"


def test_a_text_that_moves_to_another_file_stays(folder: Path, tmp_path: Path) -> None:
    write(folder, {"a.jsonl": '{"id": "x", "text": "moves"}\n{"id": "y", "text": "stays"}\n', "b.jsonl": ""})
    age(folder, 100)
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        write(folder, {"b.jsonl": '{"id": "x", "text": "moves"}\n'})
        sync(index, folder, WHOLE)  # held by both for once
        write(folder, {"a.jsonl": '{"id": "y", "text": "stays"}\n'})
        assert sync(index, folder, WHOLE).deleted == 0
        assert {"x", "y"} <= held(index).keys()


def test_the_command_reads_as_build_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        {"f/a.jsonl": '{"body": "one", "key": "x"}\n', "f/drafts/b.jsonl": '{"body": "two", "key": "y"}\n'},
    )
    age(tmp_path / "f", 100)
    options = ["--exclude", "drafts", "--text-field", "body", "--id-field", "key"]
    assert main(["build", "f", "-o", "index", *options]) == 0
    assert main(["sync", "f", "index"]) == 0
    with Index.open("index") as index:
        assert held(index) == {"x": "one"}
        index.compact()
    assert main(["sync", "f", "index", "--exclude", ""]) == 0
    with Index.open("index") as index:
        assert held(index) == {"x": "one", "y": "two"}
    capsys.readouterr()
    assert main(["sync", "f", "index"]) == 0  # as it was built: the draft goes
    assert "1 file, 0 read; 0 documents written, 0 replaced, 1 deleted" in capsys.readouterr().out
    with Index.open("index") as index:
        assert held(index) == {"x": "one"}


def test_an_index_below_its_own_folder_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"a.md": "a note"})
    assert main(["build", ".", "-o", "index"]) == 0
    assert main(["sync", ".", "index"]) == 0
    assert main(["build", ".", "-o", "index", "--overwrite"]) == 0
    assert "1 file left out (index/)" in capsys.readouterr().out
    with Index.open("index") as index:
        assert held(index) == {"a.md": "a note"}


@pytest.mark.parametrize("other_changes", [False, True])
def test_what_was_remembered_of_an_index_that_is_replaced_is_forgotten(
    folder: Path, tmp_path: Path, other_changes: bool
) -> None:
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
    write(folder, {"new.txt": "a new file"})
    corpus = Corpus([folder], names=Names(whole_text=True))
    settings = BuildSettings(root=corpus.files.root, overwrite=True)
    with Index.build_with(tmp_path / "index", corpus, FakeEncoder(), settings) as index:
        if other_changes:
            index.delete("d0/f0.txt")
            index.reembed(FakeEncoder("new"))
        (folder / "new.txt").unlink()
        assert sync(index, folder, WHOLE).deleted == 1
        assert len(index) == 30


def test_a_failed_overwrite_keeps_what_was_remembered(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        index.add([Document("from elsewhere", "mine")])
        corpus = Corpus([folder], names=Names(whole_text=True))
        settings = BuildSettings(root=corpus.files.root, overwrite=True)
        with monkeypatch.context() as patch:
            patch.setattr(layout, "write_atomically", full)
            with pytest.raises(BuildError, match="no space"):
                Index.build_with(index.path, corpus, FakeEncoder(), settings)
        assert sync(index, folder, WHOLE, restart=True).deleted == 0
        assert "mine" in index


def test_of_two_files_with_one_id_the_one_that_stays_counts(folder: Path, tmp_path: Path) -> None:
    write(folder, {"a.jsonl": '{"id": "x", "text": "of a"}\n'})
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        write(folder, {"b.jsonl": '{"id": "x", "text": "of b"}\n'})
        sync(index, folder, WHOLE)
        assert held(index)["x"] == "of b"
        (folder / "b.jsonl").unlink()
        assert sync(index, folder, WHOLE).deleted == 0
        assert held(index)["x"] == "of a"


def records(texts: dict[str, str]) -> str:
    return "".join(f'{{"id": "{name}", "text": "{text}"}}\n' for name, text in texts.items())


def test_of_two_files_with_one_id_the_later_one_counts_whatever_came_first(
    folder: Path, tmp_path: Path
) -> None:
    contents = {
        "a.jsonl": records({"x": "x of a", "own": "of a alone"}),
        "b.jsonl": records({"x": "x of b", "y": "y of b"}),
        "c.jsonl": records({"y": "y of c"}),
        "d.jsonl": records({"z": "z of d"}),
    }
    expected = {"x": "x of b", "own": "of a alone", "y": "y of c", "z": "z of d"}
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        write(folder, {name: contents[name] for name in ("b.jsonl", "c.jsonl", "d.jsonl")})
        sync(index, folder, WHOLE)
        write(folder, {"a.jsonl": contents["a.jsonl"]})
        assert sync(index, folder, WHOLE).deleted == 0
        assert expected.items() <= held(index).items()
        (folder / "c.jsonl").unlink()
        sync(index, folder, WHOLE)
        assert held(index)["y"] == "y of b"
        write(
            folder,
            {"c.jsonl": contents["c.jsonl"], "a.jsonl": contents["a.jsonl"] + records({"z": "z of a"})},
        )
        sync(index, folder, WHOLE)
        assert expected.items() <= held(index).items()
        sync(index, folder, WHOLE, checksum=True)
        assert expected.items() <= held(index).items()
        index.verify()


def test_a_document_that_cannot_be_stored_is_deleted_as_a_malformed_line_is(
    folder: Path, tmp_path: Path
) -> None:
    told: list[InputError] = []
    skipping = FolderSettings(whole_text=True, on_error=told.append)
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        write(folder, {"a.jsonl": records({"x": "x one", "y": "y one", "z": "z one"})})
        sync(index, folder, skipping)
        write(folder, {"a.jsonl": records({"x": r"x \ud800", "z": "z two"}) + "malformed\n"})
        done = sync(index, folder, skipping)
        assert (done.written, done.deleted) == (1, 2)
        assert "x" not in index and "y" not in index and index["z"].text == "z two"
        assert [error.document_id for error in told if error.document_id] == ["x"] and len(told) == 2
        write(folder, {"a.jsonl": records({"x": "x three", "z": "z two"})})
        assert sync(index, folder, skipping).written == 1
        with pytest.raises(InputError, match="lone surrogate"):
            write(folder, {"a.jsonl": records({"x": r"x \ud800"})})
            sync(index, folder, WHOLE)
        assert index["x"].text == "x three"


def test_names_that_are_not_utf8(folder: Path, tmp_path: Path) -> None:
    path = os.fsencode(folder) + b"/caf\xe9.jsonl"
    with open(path, "w") as file:
        file.write('{"id": "x", "text": "of coffee"}\n')
    age(folder, 100)
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        assert sync(index, folder, WHOLE).read == 0
        os.unlink(path)
        assert sync(index, folder, WHOLE).deleted == 1


def test_a_damaged_memory_is_named(folder: Path, tmp_path: Path) -> None:
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        (index.path / "sync.sqlite").write_bytes(b"nothing of SQLite" * 100)
        with pytest.raises(InputError, match=r"sync\.sqlite: is damaged .*; remove it"):
            sync(index, folder, WHOLE)
        (index.path / "sync.sqlite").unlink()
        assert sync(index, folder, WHOLE).written == 0


def test_a_memory_that_cannot_be_written_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        write(folder, {"new.md": "a new note"})
        with closing(connect(index.path / "sync.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            monkeypatch.setattr(sqlite3, "connect", partial(connect, timeout=0))
            with pytest.raises(
                BuildError, match=r"sync\.sqlite: .*database is locked; .* same command goes on"
            ):
                sync(index, folder, WHOLE)

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr("embedkit.index.sync_memory.SyncMemory.finish", full)
            with pytest.raises(BuildError, match=r"sync\.sqlite: .*database or disk is full"):
                sync(index, folder, WHOLE)
        assert "new.md" in index
        assert sync(index, folder, WHOLE).written == 0


def test_a_file_that_changes_after_an_interruption(folder: Path, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.done >= 2048:
            raise Stopped

    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        lines = [f'{{"id": "{n}", "text": "line {n}"}}\n' for n in range(2100)]
        write(folder, {"many.jsonl": "".join(lines)})
        with pytest.raises(Stopped):
            sync(index, folder, WHOLE, progress=stop)
        write(folder, {"many.jsonl": "".join(lines[1:])})
        assert sync(index, folder, WHOLE).written == 2099


def test_an_interrupted_upsert_of_other_documents_stays(folder: Path, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.done >= 2048:
            raise Stopped

    mine = [Document(f"mine {n}", f"m{n}") for n in range(2100)]
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        write(folder, {"malformed.jsonl": "{"})
        with pytest.raises(InputError, match="not valid JSON"):
            sync(index, folder, WHOLE)
        (folder / "malformed.jsonl").unlink()
        with pytest.raises(Stopped):
            index.upsert(mine, progress=stop)
        write(folder, {"new.txt": "a new file"})
        with pytest.raises(
            ResumeError, match=r"another command \(upsert, now sync\); run that command again"
        ):
            sync(index, folder, WHOLE)
        assert index.upsert(mine).resumed == 2048
        assert sync(index, folder, WHOLE).written == 1


def test_formats_and_vectors_are_as_build_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    vector = [1.0] + [0.0] * 255
    write(tmp_path, {"f/a.json": f'{{"text": "one", "vec": {vector}}}\n{{"text": "two", "vec": {vector}}}\n'})
    assert main(["build", "f", "-o", "index", "--format", "jsonl", "--vector-field", "vec"]) == 0
    capsys.readouterr()
    assert main(["sync", "f", "index"]) == 0
    assert "0 deleted" in capsys.readouterr().out
    with Index.open("index") as index:
        assert index.search_vectors([vector], 2)[0].tolist() == [pytest.approx([1.0, 1.0], abs=1e-2)]
        assert not any(found.metadata for found in index.get(["a.json:1", "a.json:2"]))
    assert main(["build", "f", "-o", "once", "--format", "jsonl", "--dedup", "exact"]) == 0
    assert main(["sync", "f", "once"]) == 2
    assert "was built with --dedup, which sync cannot follow" in capsys.readouterr().err


def test_files_of_any_name_that_build_was_told_to_read_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"f/a.log": "one\ntwo\n", "f/b.bin": "not read\n"})
    assert main(["build", "f", "-o", "index", "--format", "txt", "--include", "*.log"]) == 0
    write(tmp_path, {"f/a.log": "one\ntwo\nthree\n", "f/c.log": "four\n"})
    capsys.readouterr()
    assert main(["sync", "f", "index"]) == 0
    with Index.open("index") as index:
        assert sorted(held(index)) == ["a.log:1", "a.log:2", "a.log:3", "c.log:1"]


def test_an_index_of_other_inputs_than_one_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of the common folder that were not given would come in, and others be deleted."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"f/a/x.txt": "x", "f/b/y.txt": "y", "f/z.txt": "z"})
    for number, inputs in enumerate((["f/a", "f/b"], ["f/z.txt"], ["f/*.txt"], ["f/a", "--root", "f"])):
        index = f"index{number}"
        assert main(["build", *inputs, "-o", index]) == 0
        capsys.readouterr()
        assert main(["sync", "f", index]) == 2
        assert (
            "other inputs than one folder, the root of its file names, which sync cannot"
            in capsys.readouterr().err
        )
    assert main(["build", "f", "-o", "index", "--root", "f"]) == 0
    assert main(["sync", "f", "index"]) == 0
