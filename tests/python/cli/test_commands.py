"""The commands that change an index, and the options of query, on the command line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import NoReturn

import faiss
import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.cli.common import byte_size
from embedkit.cli.main import main
from embedkit.index import Document, Index, ResumeError
from embedkit.index.storage import writer_lock
from embedkit.index.storage.layout import Writer

pytestmark = pytest.mark.usefixtures("fake")


def write(name: str, begin: int, end: int, word: str = "text") -> str:
    lines = [{"id": f"k{n}", "text": f"{word} number {n}", "n": n} for n in range(begin, end)]
    Path(name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return name


@pytest.fixture
def index(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["build", write("x.jsonl", 0, 20), "-o", "index"]) == 0
    capsys.readouterr()
    return "index"


def done(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert main(list(map(str, arguments))) == code, capsys.readouterr().err
    out, err = capsys.readouterr()
    return err if code else out.splitlines()[-1]


def found(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert main(["query", "index", *map(str, arguments), "--json"]) == 0
    return [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]


def test_model_names_what_it_names_for_an_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    # of a folder of that name in the current directory, or of the built-in model
    assert main(["build", write("x.jsonl", 0, 2), "-o", "index", "--model", "embedkit-256-int8"]) == 0
    with Index.open("index", FakeEncoder("embedkit-256-int8")) as opened:
        assert opened.search("text", 1)


def test_add_upsert_delete_compact_verify(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert done(capsys, "add", index, write("a.jsonl", 20, 25)).startswith("index: 5 documents added in ")
    assert "the id 'k20' is already in the index" in done(capsys, "add", index, "a.jsonl", code=2)
    line = done(capsys, "upsert", index, write("b.jsonl", 24, 26, "new"))
    assert line.startswith("index: 2 documents added, 1 earlier one replaced in ")
    assert line.endswith("; 26 in all")
    assert done(capsys, "delete", index, "k0", "k1") == "index: 2 documents deleted; 24 in all"
    assert "no document with the id 'k0'" in done(capsys, "delete", index, "k0", code=2)
    assert done(capsys, "delete", index, "k0", "k2", "--missing-ok") == "index: 1 document deleted; 23 in all"
    for words in (["", "k2", "--missing-ok"], ["--missing-ok", "k2", ""], ["--missing-ok", "--", "k2", ""]):
        assert done(capsys, "delete", index, *words) == "index: 0 documents deleted; 23 in all"
    assert (
        done(capsys, "delete", index, "--where", "n between 3 and 5")
        == "index: 3 documents deleted; 20 in all"
    )
    Path("ids.txt").write_text("k6\nk7\n")
    assert done(capsys, "delete", index, "--ids-file", "ids.txt") == "index: 2 documents deleted; 18 in all"
    assert found(capsys, "new number 24", "-k", 1) == ["k24"]
    assert sorted(found(capsys, "number", "-k", 99)) == sorted(f"k{n}" for n in range(8, 26))
    assert done(capsys, "compact", index).startswith(
        "index: 3 segments and 9 deleted documents compacted to one segment of 18 documents; Flat, "
    )
    assert done(capsys, "compact", index) == "index: nothing to compact"
    line = done(capsys, "verify", index, "--sample", 5)
    assert line == "index: 3 files and 18 documents verified; 5 encoded again, cosine ≥ 1.0000"
    assert "select documents by" in done(capsys, "delete", index, code=2)
    assert "condition" in done(capsys, "delete", index, "--where", "n =", code=2)
    assert "factory" in done(capsys, "compact", index, "--factory", "bogus", code=2)


def test_query_options(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(found(capsys, "number", "--where", "n < 3")) == ["k0", "k1", "k2"]
    assert found(capsys, "number 7", "--hybrid", "-k", 1) == ["k7"]
    assert main(["query", index, "a", "b", "--stats"]) == 0
    assert "embedkit-index: 2 queries in " in capsys.readouterr().err
    assert "condition" in done(capsys, "query", index, "x", "--where", "n = ", code=2)
    assert "ef does not apply" in done(capsys, "query", index, "x", "--ef", 5, code=2)
    assert "the installed one is for the CPU only" in done(
        capsys, "query", index, "x", "--device", "cuda", code=2
    )
    assert "device must be 'cpu', 'cuda'" in done(capsys, "query", index, "x", "--device", "gpu", code=2)
    assert "--candidates is how many documents --rerank" in done(
        capsys, "query", index, "x", "--candidates", 9, code=2
    )
    assert main(["query", index, "number 3", "--model", "other", "--force"]) == 0
    err = capsys.readouterr().err
    assert "embedkit-index: warning: " in err
    assert FakeEncoder("other").fingerprint in err
    assert "no document found" in done(capsys, "query", index, "x", "--where", "n > 1000")


def test_merge(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", write("y.jsonl", 20, 30), "-o", "other"]) == 0
    line = done(capsys, "merge", index, "other", "-o", "both")
    assert line == "both: 30 documents in 2 segments; 'embedkit-index compact' merges them"
    assert "the id 'k0' is in" in done(capsys, "merge", index, "both", "-o", "x", code=2)
    assert "at least two" in done(capsys, "merge", index, "-o", "x", code=2)


def test_import_and_export(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert done(capsys, "export", index, "out.faiss") == "out.faiss: 20 vectors; ids in out.faiss.ids.jsonl"
    assert faiss.read_index("out.faiss").ntotal == 20
    assert done(capsys, "import", "out.faiss", "x.jsonl", "-o", "back") == "back: 20 documents imported"
    with Index.open("back", FakeEncoder()) as back:
        assert back.search("text number 4", k=1)[0][0].id == "k4"
    ignored = ["import", "out.faiss", "-o", "bare", "--text-field", "nosuch"]
    assert "--text-field and --id-field say how INPUT is read" in done(capsys, *ignored, code=2)
    done(capsys, *ignored[:4])
    assert done(capsys, "verify", "bare").endswith(
        "verified; none encoded again: no text is stored beside its vector"
    )
    vectors = faiss.read_index("out.faiss").reconstruct_n(0, 20)
    numbered = faiss.IndexIDMap2(faiss.IndexFlatIP(vectors.shape[1]))
    numbered.add_with_ids(vectors, np.arange(100, 120))
    faiss.write_index(numbered, "numbered.faiss")
    Path("lines.txt").write_text("".join(f"line {n}\n" for n in range(20)), "utf-8")
    done(capsys, "import", "numbered.faiss", "lines.txt", "-o", "in-order")
    with Index.open("in-order", FakeEncoder()) as back:
        assert back.get(["104"])[0].text == "line 4"
    assert "already exists" in done(capsys, "export", index, "out.faiss", code=2)
    for file, problem in (
        (".", "already exists"),
        ("-", "export does not write to standard output; name a file"),
        ("texts.jsonl", "export writes a Faiss index, or .parquet"),
        (f"{index}/x.faiss", "lies in the folder of the index"),
        (f"{index}/x.parquet", "lies in the folder of the index"),
    ):
        assert problem in done(capsys, "export", index, file, code=2)
    assert "is a folder, not a Faiss file" in done(capsys, "import", index, "x.jsonl", "-o", "z", code=2)
    assert "--max-memory is for a Faiss file" in done(
        capsys, "export", index, "x.parquet", "--max-memory", "1GB", code=2
    )


def test_export_parquet(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: it writes parquet")
    assert done(capsys, "export", index, "out.parquet") == "out.parquet: 20 documents"
    table = parquet.read_table("out.parquet")
    assert table.column_names == ["id", "text", "metadata", "vector"]
    with Index.open(index, FakeEncoder()) as opened:
        documents = opened.get(table["id"].to_pylist())
        vectors = FakeEncoder().encode_document(table["text"].to_pylist(), normalize_embeddings=True)
    assert table["text"].to_pylist() == [document.text for document in documents]
    assert [json.loads(one) for one in table["metadata"].to_pylist()] == [one.metadata for one in documents]
    np.testing.assert_array_equal(np.stack(table["vector"].to_numpy()), vectors)
    assert "already exists" in done(capsys, "export", index, "out.parquet", code=2)
    # its vectors are unchanged: those of length 1 are not scaled again
    assert main(["build", "out.parquet", "-o", "back", "--vector-field", "vector"]) == 0
    with Index.open("back", FakeEncoder()) as back:
        scores, _ = back.search_vectors(vectors, 1)
    np.testing.assert_allclose(scores[:, 0], 1, atol=1e-6)


def test_the_estimate_also_skips_an_unusable_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("x.jsonl").write_text('{"text": "lone \\ud800"}\n{"text": "good"}\n')
    assert "1 unusable document skipped" in done(
        capsys, "build", "x.jsonl", "-o", "new", "--on-error", "skip"
    )


@pytest.mark.parametrize(
    "command",
    [
        ["info", "INDEX"],
        ["delete", "INDEX", "k1"],
        ["compact", "INDEX"],
        ["verify", "INDEX"],
        ["export", "INDEX", "out.faiss"],
        ["map", "INDEX", "-o", "map.html"],
        ["tune", "INDEX"],
        ["query", "INDEX", "x"],
    ],
    ids=lambda command: command[0],
)
def test_a_folder_that_faiss_cannot_open_exits_with_2(
    index: str, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    name = os.fsdecode(b"caf\xe9")
    try:
        os.rename(index, name)
    except OSError:
        pytest.skip("the file system takes no names that are not UTF-8")
    told = done(capsys, *[name if word == "INDEX" else word for word in command], code=2)
    assert "the name is not valid UTF-8" in told and told.count("\n") == 1


def test_a_size_that_is_none_exits_with_2(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = done(capsys, "export", index, "out.faiss", "--max-memory", 0, code=2)
    assert told.startswith("embedkit-index export: argument --max-memory: '0': a size is at least 1 byte\n")


def test_info_of_a_folder_whose_name_is_not_utf8_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    folder = os.fsdecode(b"caf\xe9")
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("the file system takes no names that are not UTF-8")
    Path(folder, "x.txt").write_text("one\n")
    assert main(["build", folder, "-o", "index"]) == 0
    capsys.readouterr()
    assert main(["info", "index", "--json"]) == 0
    out = capsys.readouterr().out
    assert out.isascii() and json.loads(out)["root"] == os.path.realpath(folder)


def test_a_file_whose_name_is_not_utf8_and_the_id_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkdir("notes")
    for name in (b"notes/a.md", b"notes/caf\xe9.md"):
        try:
            Path(os.fsdecode(name)).write_text("# Coffee\nof it\n")
        except OSError:
            pytest.skip("the file system takes no names that are not UTF-8")
    told = done(capsys, "build", "notes", "-o", "index", code=2)
    assert "md:1: the file's name, which the id is made of, is not UTF-8; rename the file (--on-error" in told
    own = os.fsdecode(b"notes/caf\xe9.jsonl")
    Path(own).write_text('{"text": "one", "name": "\\udce9"}\n')
    told = done(capsys, "build", own, "--id-field", "name", "-o", "index", code=2)
    assert "jsonl:1: the id holds a lone surrogate (U+DCE9) at character 0" in told


def interrupt(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("late", "command", "told"),
    [
        ("open", ["build", "y.jsonl", "-o", "new"], "the index new is complete"),
        ("refresh", ["add", "index", "y.jsonl"], "all documents are in index"),
        ("_refresh", ["reembed", "index", "--model", "other"], "index is encoded again, and complete"),
        (
            "delete",
            ["sync", "folder", "followed"],
            "followed is changed; run the same command again for what is missing",
        ),
    ],
)
def test_ctrl_c_after_the_change_says_that_it_is_made(
    *,
    late: str,
    command: list[str],
    told: str,
    index: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write("y.jsonl", 20, 25)
    if command[0] == "sync":
        Path("folder").mkdir()
        write("folder/a.jsonl", 30, 35)
        write("folder/b.jsonl", 40, 45)
        assert main(["build", "folder", "-o", "followed"]) == 0
        assert main(["sync", "folder", "followed"]) == 0
        write("folder/a.jsonl", 30, 35, "other")
        Path("folder/b.jsonl").unlink()
    monkeypatch.setattr(Index, late, interrupt)
    capsys.readouterr()
    assert main(command) == 130
    assert capsys.readouterr().err == f"embedkit-index: interrupted: {told}\n"


def test_ctrl_c_after_segments_were_folded_says_that_nothing_is_written(
    index: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Index.open(index) as opened:
        for n in range(8):  # with as many segments of one document, the next addition folds them
            opened.add([Document(f"more {n}", f"m{n}")])
        generation = opened.generation.manifest.generation
    monkeypatch.setattr("embedkit.index.build.build.encode_chunk", interrupt)
    capsys.readouterr()
    assert main(["add", index, write("y.jsonl", 20, 25)]) == 130
    assert capsys.readouterr().err == f"embedkit-index: interrupted: nothing was written to {index}\n"
    with Index.open(index) as opened:
        assert opened.generation.manifest.generation > generation and len(opened) == 28


def test_the_engine_has_its_own_options(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--shards needs --engine ray" in done(
        capsys, "build", "x.jsonl", "-o", "new", "--shards", "s", code=2
    )
    line = done(capsys, "build", "x.jsonl", "-o", "new", "--engine", "ray", "--vectors", "v.npy", code=2)
    assert "--vectors cannot be combined with --engine ray" in line
    for option, value in (("--include", "*.jsonl"), ("--exclude", "drafts"), ("--on-overflow", "window")):
        line = done(capsys, "build", "x.jsonl", "-o", "new", "--engine", "ray", option, value, code=2)
        assert f"{option} cannot be combined with --engine ray" in line


def test_given_vectors(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("v.npy", np.eye(32, dtype=np.float32)[:20])
    assert main(["build", write("x.jsonl", 0, 20), "-o", "index", "--vectors", "v.npy"]) == 0
    with Index.open("index", FakeEncoder()) as index:
        assert index.ids(index.search_vectors(np.eye(32)[:20], 1)[1][:, 0]) == [f"k{n}" for n in range(20)]
    assert "verify with --sample 0" in done(capsys, "verify", "index", code=1)
    line = done(capsys, "verify", "index", "--sample", 0, "--model", "nowhere")
    assert line == "index: 3 files and 20 documents verified"
    assert "sample must be 0 or a positive integer, not -1" in done(
        capsys, "verify", "index", "--sample", -1, code=2
    )


def test_a_second_writer_exits_with_1(
    index: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Writer(Path(index)):
        assert "this process is writing to this index" in done(capsys, "delete", index, "k1", code=1)
        with monkeypatch.context() as another:  # process
            another.setattr(writer_lock, "_held", set())
            told = done(capsys, "delete", index, "k1", code=1)
        assert f"process {os.getpid()} is writing to this index" in told


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["import", "out.faiss", "x.odd", "-o", "new"], "x.odd: unknown file type; embedkit reads"),
        (["import", "out.faiss", "array.jsonl", "-o", "new"], "array.jsonl:1: not valid JSON"),
        (["import", "out.faiss", "lines.json", "-o", "new"], "lines.json:1: not valid JSON"),
        (
            ["eval", "index", "--queries", "x.odd", "--qrels", "qrels"],
            "x.odd: unknown file type; embedkit reads",
        ),
        (["eval", "index", "--queries", "q.csv", "--qrels", "qrels"], "q.csv:1: no column 'text'"),
        (["eval", "index", "--pairs", "pairs.tsv"], "judgments name documents by their ids"),
        (["build", "twice.jsonl", "-o", "new", "--vectors", "v.npy"], "the id 'a' was used before"),
    ],
)
def test_no_remedy_is_offered_that_the_command_does_not_have(
    index: str, command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done(capsys, "export", index, "out.faiss")
    np.save("v.npy", np.eye(32, dtype=np.float32)[:2])
    for name, content in {
        "x.odd": "one\n",
        "array.jsonl": "[\n",
        "lines.json": "{}\n{}\n",
        "q.csv": "id,body\n1,one\n",
        "qrels": "1 0 k1 1\n",
        "pairs.tsv": "text\tnowhere\n",
        "twice.jsonl": '{"id": "a", "text": "one"}\n{"id": "a", "text": "two"}\n',
    }.items():
        Path(name).write_text(content)
    told = done(capsys, *command, code=2)
    assert message in told and "--" not in told


def test_a_judged_document_that_is_missing_names_the_field_of_the_ids(
    index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("pairs.tsv").write_text("text\tnowhere\n")
    assert "--id-field says which field" in done(capsys, "eval", "x.jsonl", "--pairs", "pairs.tsv", code=2)


def test_the_memory_that_is_said_to_be_enough_is(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = done(capsys, "build", "x.jsonl", "-o", "new", "--max-memory", "1MB", code=1)
    match = re.search(r"at least ([\d,]+) MB", told)
    assert match is not None
    assert main(["build", "x.jsonl", "-o", "new", "--max-memory", f"{match[1].replace(',', '')}MB"]) == 0


def test_too_little_memory_exits_with_1(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "x.jsonl", "-o", "new", "--max-memory", "1MB"]) == 1
    out, err = capsys.readouterr()
    assert "a build within 1 MB is not possible" in err and "estimate" not in out
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2 * 10**9), ("512MiB", 512 << 20), ("1.5 gib", 3 << 29), ("100", 100), ("7k", 7000)],
)
def test_sizes(text: str, size: int) -> None:
    assert byte_size(text) == size


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("many", "'many': invalid size; expected e.g. 2GB"),
        ("9" * 320, "999: a size is less than 2**63 bytes"),
    ],
)
def test_an_invalid_size(index: str, capsys: pytest.CaptureFixture[str], text: str, told: str) -> None:
    assert told in done(capsys, "build", "x.jsonl", "-o", "new", "--max-memory", text, code=2)


def test_an_exported_table_is_read_with_its_fields(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    with Index.open(index, FakeEncoder()) as before:
        expected = {document.id: (document.text, dict(document.metadata)) for document in before}
    assert any(fields for _, fields in expected.values())
    done(capsys, "export", index, "out.parquet")
    for options in ([], ["--vector-field", "vector"]):
        done(capsys, "build", "out.parquet", "-o", "again", "--overwrite", *options)
        with Index.open("again", FakeEncoder()) as again:
            assert {document.id: (document.text, dict(document.metadata)) for document in again} == expected


def interrupted(monkeypatch: pytest.MonkeyPatch, *command: str, step: str = "finish_segment") -> None:
    with monkeypatch.context() as patched:
        patched.setattr(f"embedkit.index.build.build.{step}", interrupt)
        assert main(list(command)) == 130


@pytest.mark.parametrize("command", ["build", "add"])
def test_restart_takes_another_input(
    index: str, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("y.jsonl", 20, 25)
    arguments = ["build", "y.jsonl", "-o", "new"] if command == "build" else ["add", index, "y.jsonl"]
    interrupted(monkeypatch, *arguments)
    write("y.jsonl", 30, 33)
    assert "start over with --restart" in done(capsys, *arguments, code=1)
    assert main([*arguments, "--restart"]) == 0
    assert "resuming" not in capsys.readouterr().out
    with Index.open("new" if command == "build" else index) as opened:
        assert [one.id for one in opened][-4:] == ["k19"] * (command == "add") + ["k30", "k31", "k32"]


@pytest.mark.parametrize("command", ["add", "upsert"])
@pytest.mark.parametrize("dedup", [[], ["--dedup", "exact"]])
def test_additions_to_an_index_without_repeated_texts_say_that_they_leave_out_none(
    command: str, dedup: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", write("x.jsonl", 0, 5), "-o", "index", *dedup]) == 0
    capsys.readouterr()
    assert main([command, "index", write("y.jsonl", 5, 7)]) == 0
    told = f"note: index was built with --dedup; {command} leaves out no repeated texts\n"
    assert (told in capsys.readouterr().err) == bool(dedup)


@pytest.mark.parametrize("options", [[], ["--overwrite"]])
@pytest.mark.parametrize("step", ["finish_segment", "publish"])
def test_a_build_does_not_resume_an_interrupted_add(
    index: str,
    options: list[str],
    step: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupted(monkeypatch, "add", index, write("y.jsonl", 20, 25), step=step)
    capsys.readouterr()
    build = ["build", "x.jsonl", "-o", index, *options]
    line = done(capsys, *build, code=1)
    assert "an interrupted 'add' has encoded 5 documents for the index there" in line
    assert "pass --overwrite and --restart" in line
    with pytest.raises(ResumeError, match="pass --overwrite and --restart"):
        Index.build(index, ["text"], FakeEncoder(), overwrite=bool(options))
    assert main([*build, "--overwrite", "--restart"]) == 0
    with Index.open(index) as opened:
        assert len(opened) == 20


def test_what_another_command_has_encoded_is_not_counted(
    index: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(monkeypatch, "upsert", index, write("y.jsonl", 20, 25))
    capsys.readouterr()
    assert main(["add", index, "y.jsonl"]) == 1
    out, err = capsys.readouterr()
    assert "resuming" not in out
    assert "an interrupted 'upsert' has encoded 5 documents with another command (upsert, now add)" in err
    assert done(capsys, "add", index, "none.jsonl", code=2).endswith("; nothing was written to index\n")
    assert done(capsys, "sync", ".", index, code=2).endswith("; nothing was changed\n")
    assert main(["upsert", index, "y.jsonl"]) == 0
    assert "resuming: 5 documents already encoded" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["sync", "reembed"])
def test_restart_encodes_again(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = []

    class Noting(FakeEncoder):
        def encode_document(self, sentences: list[str], *, normalize_embeddings: bool = False) -> np.ndarray:
            encoded.extend(sentences)
            return super().encode_document(sentences, normalize_embeddings=normalize_embeddings)

    monkeypatch.setattr("embedkit.Encoder", Noting)
    Path("folder").mkdir()
    write("folder/x.jsonl", 0, 5)
    done(capsys, "build", "folder", "-o", "index")
    write("folder/x.jsonl", 10, 15)
    arguments = ["sync", "folder", "index"] if command == "sync" else ["reembed", "index", "--model", "other"]
    interrupted(monkeypatch, *arguments)
    encoded.clear()
    interrupted(monkeypatch, *arguments)
    assert encoded == []
    done(capsys, *arguments, "--restart")
    assert len(encoded) == 5


def test_sync_compares_the_content_if_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder").mkdir()
    file = Path("folder/x.txt")
    file.write_text("one\n")
    os.utime(file, (1e9, 1e9))
    done(capsys, "build", "folder", "-o", "index")
    done(capsys, "sync", "folder", "index")
    file.write_text("two\n")
    os.utime(file, (1e9, 1e9))
    assert "1 file, 0 read; 0 documents written" in done(capsys, "sync", "folder", "index")
    assert "1 file, 1 read; 1 document written" in done(capsys, "sync", "folder", "index", "--checksum")
    with Index.open("index") as opened:
        assert [one.text for one in opened] == ["two"]


def test_sync_of_a_folder_that_was_moved(capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder").mkdir()
    write("folder/x.jsonl", 0, 5)
    done(capsys, "build", "folder", "-o", "index")
    Path("folder").rename("elsewhere")
    assert "pass --moved" in done(capsys, "sync", "elsewhere", "index", code=2)
    assert "0 documents written" in done(capsys, "sync", "elsewhere", "index", "--moved")
    with Index.open("index") as opened:
        assert opened.info()["root"] == os.path.realpath("elsewhere")


def test_a_text_file_is_lines_or_one_text(capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder").mkdir()
    Path("folder/x.txt").write_text("one\ntwo")

    def texts() -> list[str]:
        with Index.open("index") as opened:
            return [one.text for one in opened]

    done(capsys, "build", "folder", "-o", "index", "--txt", "whole")
    assert texts() == ["one\ntwo"]
    done(capsys, "sync", "folder", "index", "--txt", "lines")
    assert texts() == ["one", "two"]
    Path("y.txt").write_text("three\nfour")
    done(capsys, "add", "index", "y.txt", "--txt", "whole")
    assert texts() == ["one", "two", "three\nfour"]
    done(capsys, "build", "folder", "-o", "index", "--overwrite", "--format", "text")
    assert "with --format text" in done(capsys, "sync", "folder", "index", "--txt", "lines", code=2)
    done(capsys, "sync", "folder", "index", "--txt", "whole")
    assert texts() == ["one\ntwo"]
    done(capsys, "add", "index", "y.txt", "--format", "text", "--txt", "whole")
    assert texts() == ["one\ntwo", "three\nfour"]


@pytest.mark.parametrize("kept", ["fp32", "int8", "none"])
def test_the_vectors_are_kept_as_told(kept: str, capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, "build", write("x.jsonl", 0, 20), "-o", "index", "--factory", "SQ8", "--keep", kept)
    with Index.open("index") as opened:
        assert (opened.generation.manifest.kept, opened.generation.segments[0].entry.raw) == (kept, kept)


def scores(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[float]:
    assert main(["query", "index", *map(str, arguments), "--json"]) == 0
    return [json.loads(line)["score"] for line in capsys.readouterr().out.splitlines()]


def test_candidates_are_scored_by_their_vectors_if_told(capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, "build", write("x.jsonl", 0, 20), "-o", "index", "--factory", "SQ4")
    query = ("number 7", "--no-hybrid", "-k", 3)
    done(capsys, "build", "x.jsonl", "-o", "exact", "--factory", "Flat")
    with Index.open("exact", FakeEncoder()) as exact:
        expected = [hit.score for hit in exact.search("number 7", k=3, hybrid=False)[0]]
    assert scores(capsys, *query, "--rescore", 7) == pytest.approx(expected, abs=2e-6)
    plain = scores(capsys, *query)
    assert plain != pytest.approx(expected, abs=1e-4)
    with Index.open("index") as index:
        index.set_search_defaults(rescore=7)
    assert scores(capsys, *query) == pytest.approx(expected, abs=2e-6)
    assert scores(capsys, *query, "--rescore", 0) == plain


def test_dot_products_if_told(capsys: pytest.CaptureFixture[str]) -> None:
    vectors = FakeEncoder().encode_document(["number 1", "number 2"]) * np.float32([[2], [3]])
    np.save("v.npy", vectors)
    done(capsys, "build", write("x.jsonl", 0, 2), "-o", "index", "--vectors", "v.npy", "--metric", "dot")
    expected = sorted(vectors @ FakeEncoder().encode_query(["number 1"])[0], reverse=True)
    assert scores(capsys, "number 1", "--no-hybrid") == pytest.approx(expected, abs=1e-5)


class Reranker:
    """Scores a pair by the number in its text, and notes it."""

    num_labels = 1

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    def predict(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        self.pairs += pairs
        return np.array([int(text.split()[-1]) for _, text in pairs], np.float32)


def test_candidates_are_reranked(
    index: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedkit.cli.query._QUERIES_AT_ONCE", 2)
    reranker = Reranker()
    monkeypatch.setattr("embedkit.cli.query.open_reranker", lambda *_: reranker)
    queries = [f"number {n}" for n in range(5)]
    for options, count in ((["--candidates", 4], 4), (["--candidates", 1], 2), ([], 20)):
        reranker.pairs.clear()
        best = found(capsys, *queries, "--rerank", "model", "-k", 2, "--no-hybrid", *options)
        assert [query for query, _ in reranker.pairs] == [query for query in queries for _ in range(count)]
        for at in range(5):
            read = sorted((int(text.split()[-1]) for _, text in reranker.pairs[count * at :][:count]))
            assert best[2 * at : 2 * at + 2] == [f"k{read[-1]}", f"k{read[-2]}"]
