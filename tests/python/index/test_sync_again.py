"""A sync after one that was killed, and after reembed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_encoder import FakeEncoder
from test_passages import Tokenizing
from test_resume import killed
from test_sync import WHOLE, built, held, write

from embedkit import Encoder
from embedkit.cli.main import main
from embedkit.documents.passages import Passages, document_of
from embedkit.documents.readers import Corpus, Names
from embedkit.index import BuildSettings, Index
from embedkit.index.sync import sync


def test_a_file_that_goes_after_a_kill_takes_its_documents_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes between the change of the index and the note of it."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "folder"
    write(folder, {"old.txt": "an old file"})
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        write(folder, {"new.txt": "a new file"})
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("embedkit.index.sync_memory.SyncMemory.finish", interrupted)
            sync(index, folder, WHOLE)
        assert "new.txt" in index
        (folder / "new.txt").unlink()
        assert sync(index, folder, WHOLE).deleted == 1
        assert held(index) == {"old.txt": "an old file"}


def test_a_sync_that_was_killed_after_its_last_step_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    write(folder, {"old.txt": "an old file"})
    with built(folder, tmp_path / "index", FakeEncoder()) as index:
        sync(index, folder, WHOLE)
        write(folder, {"new.txt": "a new file"})
        killed(monkeypatch, "after", lambda: sync(index, folder, WHOLE))
        sync(index, folder, WHOLE)
        assert held(index) == {"old.txt": "an old file", "new.txt": "a new file"}


def test_the_id_of_a_document_that_is_gone_may_be_that_of_a_passage(tmp_path: Path) -> None:
    lines = {
        name: json.dumps({"id": name, "text": f"{name} is here. " * 9}) + "\n" for name in ("a", "a#2", "b")
    }
    write(tmp_path / "folder", {"all.jsonl": "".join(lines.values())})
    corpus = Corpus([tmp_path / "folder"], names=Names())
    settings = BuildSettings(root=corpus.files.root, passages=Passages(8))
    with Index.build_with(tmp_path / "index", corpus, Tokenizing(), settings) as index:
        sync(index, tmp_path / "folder")
        index.delete("a#2")
        write(tmp_path / "folder", {"all.jsonl": lines["a"] + lines["b"]})
        assert sync(index, tmp_path / "folder").deleted == 0
        assert {document_of(passage) for passage in held(index)} == {"a", "b"}


def test_an_index_with_another_model_is_read_as_it_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = {"a.jsonl": '{"body": "one", "key": "x"}\n', "drafts/b.jsonl": '{"body": "two", "key": "y"}\n'}
    write(tmp_path / "folder", lines)
    options = ["--exclude", "drafts", "--text-field", "body", "--id-field", "key"]
    assert main(["build", "folder", "-o", "index", *options]) == 0
    assert main(["reembed", "index"]) == 0
    assert main(["sync", "folder", "index"]) == 0
    with Index.open("index") as index:
        assert held(index) == {"x": "one"}


def test_vectors_in_the_files_are_of_the_model_before(
    make_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with Encoder(make_model()) as encoder:
        columns = encoder.get_embedding_dimension()
    record = {"id": "a", "text": "one", "v": [1.0, *[0.0] * (columns - 1)]}
    write(tmp_path / "folder", {"a.jsonl": json.dumps(record) + "\n"})
    first, other = str(make_model()), str(make_model(seed=1))
    assert main(["build", "folder", "-o", "index", "--model", first, "--vector-field", "v"]) == 0
    assert main(["reembed", "index", "--model", first]) == 0
    assert main(["sync", "folder", "index"]) == 0
    assert main(["reembed", "index", "--model", other]) == 0
    assert main(["sync", "folder", "index"]) == 2
    assert (
        "--vector-field, and encoded again with another model, which sync cannot" in capsys.readouterr().err
    )
    assert main(["verify", "index"]) == 0
