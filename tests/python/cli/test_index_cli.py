"""embedkit-index on the command line: build, query and info, terminals, errors and interrupts."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit.cli import build as build_command
from embedkit.cli.common import plural
from embedkit.cli.main import main
from embedkit.cli.terminal import display_width
from embedkit.documents import readers
from embedkit.index import Index

RUN = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import embedkit
from fake_encoder import FakeEncoder
embedkit.Encoder = FakeEncoder
from embedkit.cli.main import main
sys.exit(main())
"""


pytestmark = pytest.mark.usefixtures("fake")


@pytest.fixture
def corpus() -> str:
    lines = [
        {"id": "cat", "text": "a cat sits on the mat", "lang": "en"},
        {"id": "dog", "text": "a dog runs over the road", "lang": "en"},
        {"id": "neko", "text": "猫がマットに座っている", "lang": "ja"},
    ]
    Path("corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return "corpus.jsonl"


@pytest.fixture
def index(corpus: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["build", corpus, "-o", "index"]) == 0
    capsys.readouterr()
    return "index"


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", RUN, *arguments], **options)


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, timeout=60, check=False, **options
    )


def test_build_reports_what_it_did(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", corpus, "-o", "index"]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(
        r"estimate: 3 documents, less than a second, "
        r"[\d.]+ k?B on disk \([\d.]+ k?B while building\), [\d.]+ [MG]B of memory\n"
        r"index: 3 documents in [\d.]+ m?s; Flat, 32 dimensions, [\d.]+ kB\n",
        out,
    )
    assert err == ""


@pytest.mark.parametrize("bound", ["_SAMPLE", "_SAMPLE_CHARACTERS", "_SAMPLE_SECONDS"])
def test_the_estimate_reads_little_of_a_large_corpus(
    bound: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = tmp_path / "many"
    many.mkdir()
    for n in range(30):
        (many / f"{n:02d}.html").write_text(f"<p>text {n} of thirty")
    read = []
    of_file = readers.read_whole
    monkeypatch.setattr(readers, "read_whole", lambda *given: read.append(1) or of_file(*given))
    monkeypatch.setattr(
        build_command, bound, {"_SAMPLE": 10, "_SAMPLE_CHARACTERS": 150, "_SAMPLE_SECONDS": -1}[bound]
    )
    assert main(["build", str(many), "-o", "many_index"]) == 0
    assert re.match(r"estimate: (29|30|31) documents, ", capsys.readouterr().out)
    assert 31 <= len(read) <= 42


def test_query_prints_a_table(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", index, "the cat sits", "-k", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rank", "score", "id", "text"]
    assert re.fullmatch(r"   1  [01]\.\d{4}  cat  a cat sits on the mat", lines[1])
    assert len(lines) == 3


def test_several_queries_are_labelled(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", index, "cat", "dog", "-k", "1"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if not line.startswith(("rank", "   "))] == [
        "1. cat",
        "",
        "2. dog",
    ]


def test_query_prints_json_lines(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", index, "cat sits", "猫", "-k", "2", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["query"], line["rank"]) for line in lines] == [
        ("cat sits", 1),
        ("cat sits", 2),
        ("猫", 1),
        ("猫", 2),
    ]
    assert lines[0]["id"] == "cat"
    assert lines[0]["metadata"] == {"lang": "en"}
    assert isinstance(lines[0]["score"], float)


def test_queries_come_from_a_file_or_stdin(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("queries.txt").write_text("cat\n\ndog\n")
    assert main(["query", index, "--file", "queries.txt", "-k", "1"]) == 0
    expected = capsys.readouterr().out
    assert "1. cat" in expected
    assert "2. dog" in expected
    piped = run("query", index, "--file", "-", "-k", "1", input=b"cat\ndog\n")
    assert (piped.returncode, piped.stdout.decode()) == (0, expected)


def test_build_reads_stdin(capsys: pytest.CaptureFixture[str]) -> None:
    done = run("build", "-", "--format", "jsonl", "-o", "index", input=b'{"text": "one"}\n{"text": "two"}\n')
    assert done.returncode == 0, done.stderr
    with Index.open("index") as index:
        assert index.ids([0, 1]) == ["stdin:1", "stdin:2"]
    assert run("build", "-", "-o", "lines", input=b"a\nb\n").returncode == 0


def test_info(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", index, "--json", "--verify"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["documents"], info["factory"], info["verified"]) == (3, "Flat", True)
    assert main(["info", index]) == 0
    assert re.search(r"^documents +3$", capsys.readouterr().out, re.M)


def test_info_verify_names_the_damaged_file(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = Path(index).glob("segments/*/vectors.faiss")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for options in ([], ["--verify"]):
        assert main(["info", index, *options]) == 1
        assert "vectors.faiss: the content does not match its SHA-256" in capsys.readouterr().err


def test_malformed_lines_stop_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.jsonl").write_text('{"text": "a"}\nbad\n')
    assert main(["build", "x.jsonl", "-o", "index"]) == 2
    err = capsys.readouterr().err
    assert err == (
        "embedkit-index: x.jsonl:2: not valid JSON: Expecting value at column 1 "
        "(--on-error skip leaves it out); nothing was written to index\n"
    )
    assert not Path("index").exists()


def test_skipped_lines_are_reported_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.jsonl").write_text('{"text": "a"}\n\n' + "bad\n" * 30)
    assert main(["build", "x.jsonl", "-o", "index", "--on-error", "skip"]) == 0
    out, err = capsys.readouterr()
    assert ", 1 blank text skipped, 30 unusable documents skipped;" in out
    lines = err.splitlines()
    assert len(lines) == 21
    assert lines[0] == "embedkit-index: skipped: x.jsonl:3: not valid JSON: Expecting value at column 1"
    assert lines[-1] == "embedkit-index: further documents that cannot be used are only counted"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "none.txt", "-o", "new"], "none.txt: cannot be read: No such file or directory"),
        (["build", "empty", "-o", "new"], "empty: the folder holds no files that embedkit reads"),
        (["build", "*.none", "-o", "new"], "no file matches the pattern"),
        (["build", "x.pdf", "-o", "new"], "x.pdf: cannot be read|unknown file type"),
        (["build", "empty.txt", "-o", "new"], "no documents to index: the input is empty"),
        (["build", "a.txt", "-o", "index"], "index: an index exists there; pass --overwrite"),
        (["build", "a.txt", "-o", "."], "the folder holds other things"),
        (["build", "a.txt", "-o", "new", "--factory", "bogus"], "unknown factory 'bogus'"),
        (
            ["build", "a.txt", "-o", "new", "--model", "missing"],
            "the model cannot be loaded: missing: no such",
        ),
        (["build", "a.txt", "-o", "new", "--threads", "0"], "threads must be a positive integer, not 0"),
        (["build", "a.txt", "-o", "new", "--threads", "99999"], "threads must be at most 1024, not 99999"),
        (
            ["query", "index", "x", "--threads", "x"],
            "argument --threads: threads must be a positive integer, not 'x'\n",
        ),
        (["build", "a.txt", "-o", "new", "--metric", "l2"], "invalid choice: 'l2'"),
        (["build", "a.txt"], "required: -o/--output"),
        (["query", "none", "x"], "none: no such index"),
        (["query", "index"], "give queries either as arguments or with"),
        (["query", "index", "x", "--file", "a.txt"], "give queries either as arguments or with"),
        (["query", "index", " "], "query 1: the query is empty"),
        (["query", "index", "", "-k", "1"], "query 1: the query is empty"),
        (["query", "index", "-k", "1", ""], "query 1: the query is empty"),
        (["query", "index", "a\udcff"], "query 1: the query is not valid UTF-8"),
        (["query", "index", "--file", "empty.txt"], "empty.txt: contains no queries"),
        (["query", "index", "x", "-k", "0"], "argument -k: k must be a positive integer, not 0"),
        (["query", "index", "x", "-k", "many"], "argument -k: k must be a positive integer, not 'many'"),
        (["query", "index", "x", "--nprobe", "-1"], "nprobe must be a positive integer, not -1"),
        (["query", "index", "x", "--nprobe", "3"], "nprobe does not apply: the index is Flat"),
        (["info", "none"], "none: no such index"),
        (["info", ""], "argument INDEX: it is empty; give a value\n"),
        (["build", "a.txt", "-o", ""], "argument -o/--output: it is empty"),
        (["build", "", "-o", "new"], "argument INPUT: it is empty"),
        (["build", "a.txt", "-o", "new", ""], "argument inputs: it is empty"),
        (["build", "a.txt", "-o", "new", "--root", ""], "argument --root: it is empty"),
        (["build", "a.txt", "-o", "new", "--root", "none"], "--root none: no such folder"),
        (["build", "a.txt", "-o", "new", "--root", "a.txt"], "--root a.txt: is not a folder"),
        (["add", "index", "a.txt", "--root", "none"], "--root none: no such folder"),
        (["build", "a.txt", "-o", "new", "--id-field", ""], "argument --id-field: it is empty"),
        (["build", "a.txt", "-o", "new", "--vectors", ""], "argument --vectors: it is empty"),
        (["build", "a.txt", "-o", "new", "--vector-field", ""], "argument --vector-field: it is empty"),
        (["build", "empty", "-o", "new", "--include", ""], "argument --include: it is empty"),
        (["build", "empty", "-o", "new", "--exclude", ""], "argument --exclude: it is empty"),
        (["sync", "empty", "index", "--include", ""], "argument --include: it is empty"),
        (["map", "index", "-o", "new", "--color", ""], "argument --color: it is empty"),
        (["build", "a.txt", "-o", "new", "--format", "text", "--txt", "lines"], "--txt is of .txt files"),
        (["add", "index", "a.txt", "--format", "jsonl", "--txt", "whole"], "--txt is of .txt files"),
        (["add", "", "a.txt"], "argument INDEX: it is empty"),
        (["query", "index", "--file", ""], "argument --file: it is empty"),
        (["delete", "index", "--ids-file", ""], "argument --ids-file: it is empty"),
        (["eval", "index", "--pairs", ""], "argument --pairs: it is empty"),
        ([], "required: COMMAND"),
    ],
)
def test_wrong_usage_exits_with_2(
    index: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("a.txt").write_text("text\n")
    Path("empty.txt").write_text("")
    Path("empty").mkdir()
    assert main(arguments) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not Path("new").exists()


def test_another_model_exits_with_1(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", index, "x", "--model", "other"]) == 1
    err = capsys.readouterr().err
    assert FakeEncoder("other").fingerprint in err
    assert FakeEncoder().fingerprint in err


def test_a_model_that_is_gone_names_the_option(
    index: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> NoReturn:
        raise FileNotFoundError("fake: no such model")

    monkeypatch.setattr("embedkit.Encoder", gone)
    assert main(["query", index, "x"]) == 1
    assert "fake: no such model; if it was moved, give its path with --model" in capsys.readouterr().err


def test_a_broken_model_is_not_reported_as_moved(
    index: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> NoReturn:
        raise ValueError("EMBEDKIT_ISA is 'sse9'")

    monkeypatch.setattr("embedkit.Encoder", broken)
    assert main(["query", index, "x"]) == 1
    assert capsys.readouterr().err == (
        "embedkit-index: the index's model cannot be loaded: EMBEDKIT_ISA is 'sse9'\n"
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("the core failed"), "the core failed"),
        (TypeError("texts[0] is odd"), "texts[0] is odd"),
        (MemoryError(), "out of memory"),
        (MemoryError("std::bad_alloc"), "out of memory: std::bad_alloc"),
        (OSError(12, "Cannot allocate memory"), "Cannot allocate memory"),
    ],
)
def test_an_encoder_that_fails_exits_with_1(
    index: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    message: str,
) -> None:
    def fail(self: FakeEncoder, *_: Any, **__: Any) -> NoReturn:
        raise error

    monkeypatch.setattr(FakeEncoder, "encode_query", fail)
    monkeypatch.setattr(FakeEncoder, "encode_document", fail)
    for arguments in (["query", index, "x"], ["build", "corpus.jsonl", "-o", "new"]):
        assert main(arguments) == 1
        assert re.fullmatch(f"embedkit-index: .*{re.escape(message)}\n", capsys.readouterr().err)
    assert not Path("new").exists()


def test_documents_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.jsonl").write_text(
        json.dumps({"id": "\x1b[2J\x9b", "text": "a\x1b]0;title\x07\u202eb\nc\x85d"}) + "\n"
    )
    assert main(["build", "x.jsonl", "-o", "index"]) == 0
    capsys.readouterr()
    for arguments in (["query", "index", "a"], ["query", "index", "a", "--json"]):
        assert main(arguments) == 0
        assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", capsys.readouterr().out) is None
    assert main(["query", "index", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "a\x1b]0;title\x07\u202eb\nc\x85d"


def test_warnings_are_shown_plainly(
    index: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: FakeEncoder, sentences: list[str], **options: Any) -> np.ndarray:
        warnings.warn("1 text was cut", UserWarning, stacklevel=2)
        return FakeEncoder.encode_document(self, sentences, **options)

    monkeypatch.setattr(FakeEncoder, "encode_query", encode)
    assert main(["query", index, "cat"]) == 0
    assert capsys.readouterr().err == "embedkit-index: warning: 1 text was cut\n"


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"embedkit-index {importlib.metadata.version('embedkit')}\n"
    assert main(["--help"]) == 0
    assert "embedkit-index build articles.jsonl" in capsys.readouterr().out
    assert main(["build", "--help"]) == 0
    assert "--on-error {stop,skip}" in capsys.readouterr().out
    assert main(["upsert", "--help"]) == 0
    assert "A document replaces the one with the same id" in " ".join(capsys.readouterr().out.split())


def test_overwrite(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("new.txt").write_text("something new\n")
    assert main(["build", "new.txt", "-o", index, "--overwrite"]) == 0
    assert main(["query", index, "new"]) == 0
    assert "something new" in capsys.readouterr().out


def test_a_broken_pipe_is_quiet(index: str) -> None:
    Path("queries.txt").write_text("cat\n" * 20_000)
    process = start("query", index, "--file", "queries.txt", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 0


def test_a_reader_of_progress_that_ends_does_not_end_a_build(corpus: str) -> None:
    read, write = os.pipe()
    os.close(read)
    process = start(
        "build",
        corpus,
        "-o",
        "index",
        stdout=write,
        stderr=subprocess.PIPE,
        env=dict(os.environ, PYTHONUNBUFFERED="1"),
    )
    os.close(write)
    assert (process.communicate(timeout=60)[1], process.returncode) == (b"", 0)
    with Index.open("index", FakeEncoder()) as opened:
        assert len(opened) == 3


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", [["info", "index"], ["info", "index", "--json"], ["query", "index", "cat"]]
)
def test_stdout_that_cannot_be_written_is_named(index: str, arguments: list[str], unbuffered: str) -> None:
    environment = dict(os.environ, PYTHONUNBUFFERED=unbuffered)
    with open("/dev/full", "wb") as full:
        process = start(*arguments, stdout=full, stderr=subprocess.PIPE, env=environment)
        told = process.communicate(timeout=60)[1]
    assert (process.returncode, told) == (
        1,
        b"embedkit-index: [Errno 28] No space left on device: 'stdout'\n",
    )


def interrupt(
    process: subprocess.Popen[bytes], ready: Callable[[], object], number: int = signal.SIGINT
) -> None:
    deadline = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < deadline, "the build did not start"
        time.sleep(0.01)
    process.send_signal(number)
    begin = time.monotonic()
    assert process.wait(60) == (130 if number == signal.SIGINT else 143)
    assert time.monotonic() - begin < 20


def test_ctrl_c_stops_a_build_that_waits_for_input() -> None:
    process = start("build", "-", "-o", "index", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        process.stdin.write(b"text\n")
        process.stdin.flush()
        interrupt(process, lambda: list(Path(".").glob("index/segments/.building/vectors.f32")))
        assert process.stderr.read() == b"embedkit-index: interrupted: nothing was written to index\n"
        assert not Path("index").exists()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("command", ["build", "add", "upsert"])
def test_sigterm_saves_like_ctrl_c(index: str, command: str) -> None:
    lines = b"".join(b"text number %d\n" % number for number in range(2048 * 3))
    arguments = ["build", "-", "-o", "new"] if command == "build" else [command, index, "-"]
    folder = "new" if command == "build" else index
    process = start(*arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        process.stdin.write(lines)
        process.stdin.flush()
        vectors = Path(folder) / "segments" / ".building" / "vectors.f32"
        interrupt(
            process, lambda: vectors.exists() and vectors.stat().st_size >= 2048 * 32 * 4, signal.SIGTERM
        )
        told = process.stderr.read().decode()
    finally:
        process.kill()
        process.communicate()
    match = re.search(
        r"interrupted: ([\d,]+) documents of .* are encoded; run the same command again to resume", told
    )
    assert match is not None and int(match[1].replace(",", "")) >= 2048, told
    done = run(*arguments, input=lines)
    assert done.returncode == 0, done.stderr
    assert f"resuming: {match[1]} documents already encoded" in done.stdout.decode()
    with Index.open(folder) as opened:
        assert len(opened) == 2048 * 3 + (0 if command == "build" else 3)


def test_ctrl_c_leaves_a_build_that_the_same_command_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = b"".join(b"text number %d\n" % number for number in range(2048 * 3))
    process = start("build", "-", "-o", "index", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        process.stdin.write(lines)
        process.stdin.flush()
        spool = Path("index/segments/.building/vectors.f32")
        interrupt(process, lambda: spool.exists() and spool.stat().st_size >= 2048 * 32 * 4)
        error = process.stderr.read().decode()
        rows = int(
            re.search(r"interrupted: ([\d,]+) documents of index are encoded", error)[1].replace(",", "")
        )
        assert rows >= 2048
        assert "run the same command again to resume, or with --restart to start over" in error
    finally:
        process.kill()
        process.communicate()
    other = run("build", "-", "-o", "index", input=b"something else\n")
    assert (other.returncode, other.stdout) == (
        1,
        f"resuming: {rows:,} documents already encoded\n".encode(),
    )
    assert b"stdin:1: the input is not the one that was encoded before the interruption" in other.stderr
    done = run("build", "-", "-o", "index", input=lines)
    assert done.returncode == 0, done.stderr
    assert f"resuming: {rows:,} documents already encoded" in done.stdout.decode()
    with Index.open("index") as index:
        assert len(index) == 2048 * 3


def on_terminal(*arguments: str, columns: int) -> tuple[int, str]:
    """Run with stdout and stderr on a pseudo-terminal of a given width; what was written there."""
    leader, follower = pty.openpty()
    environment = dict(os.environ, COLUMNS=str(columns))
    process = start(*arguments, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    written = []

    def drain() -> None:
        while True:
            try:
                data = os.read(leader, 4096)
            except OSError:  # the other side is closed
                return
            if not data:
                return
            written.append(data)

    reader = threading.Thread(target=drain)
    reader.start()
    code = process.wait(60)
    reader.join(10)
    os.close(leader)
    return code, b"".join(written).decode("utf-8").replace("\r\n", "\n")


def test_tables_fit_the_terminal(index: str) -> None:
    code, out = on_terminal("query", index, "猫がマットに座っている", columns=34)
    assert code == 0
    lines = out.splitlines()
    assert lines[1] == "   1  1.0000  neko  猫がマットに…"
    assert all(display_width(line) <= 34 for line in lines)


def test_progress_shows_on_a_terminal_only(corpus: str) -> None:
    code, out = on_terminal("build", corpus, "-o", "index", columns=100)
    assert code == 0
    assert "encoding: 100%" in out
    assert re.search(r"3 documents, [\d,]+/s", out)
    assert run("build", corpus, "-o", "index", "--overwrite").stderr == b""


def test_output_in_another_encoding(index: str) -> None:
    environment = dict(os.environ, PYTHONIOENCODING="ascii")
    done = run("query", index, "猫がマットに座っている", "--json", "-k", "1", env=environment)
    assert json.loads(done.stdout)["text"] == "猫がマットに座っている"
    done = run("query", index, "cat", env=environment)
    assert done.returncode == 0, done.stderr


def test_a_damaged_file_is_not_a_skippable_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.txt.gz").write_bytes(b"no gzip data")
    assert main(["build", "x.txt.gz", "-o", "index", "--on-error", "skip"]) == 2
    assert "--on-error" not in capsys.readouterr().err


def test_options_may_stand_between_index_and_texts(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", index, "-k", "1", "apple", "--json", "banana"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["query", index, "apple", "--colour"]) == 2
    assert "unrecognized arguments: --colour" in capsys.readouterr().err


def test_two_dashes_end_the_options(index: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", index, "apple", "-k", "1", "--json", "--", "-5", "--", "banana"]) == 0
    asked = [json.loads(line)["query"] for line in capsys.readouterr().out.splitlines()]
    assert asked == ["apple", "-5", "--", "banana"]
    assert main(["delete", index, "--missing-ok", "--", "-5"]) == 0
    assert "0 documents deleted" in capsys.readouterr().out
    Path("-f.txt").write_text("one\n", encoding="utf-8")
    Path("g.txt").write_text("two\nthree\n", encoding="utf-8")
    assert main(["build", "-o", "x", "g.txt", "--threads", "1", "--", "-f.txt"]) == 0
    assert "3 documents in" in capsys.readouterr().out
    for wrong in (
        ["query", index, "a", "-k", "1", "--colour", "--", "b"],
        ["info", index, "--json", "--", "b"],
    ):
        assert main(wrong) == 2
        assert "unrecognized arguments: " in capsys.readouterr().err


def test_closed_stdout(index: str) -> None:
    code = "import sys; sys.stdout = None; from embedkit.cli.main import main; sys.exit(main(['info', sys.argv[1]]))"
    done = subprocess.run([sys.executable, "-c", code, index], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("dedup", "left"), [("exact", 3), ("near:0.9", 2)])
def test_repeated_texts_are_left_out_by_the_command(
    dedup: str, left: int, capsys: pytest.CaptureFixture[str]
) -> None:
    near = "alpha beta gamma delta epsilon zeta eta theta iota kappa"
    texts = [near, "something else", near, f"{near} lambda"]
    Path("texts.txt").write_text("\n".join(texts) + "\n", "utf-8")
    assert main(["build", "texts.txt", "-o", "index", "--dedup", dedup]) == 0
    told = capsys.readouterr().out
    assert f"{left} documents" in told
    assert f", {plural(4 - left, 'repeated text')} left out" in told
    with Index.open("index", FakeEncoder()) as built:
        assert len(built) == left
    assert main(["build", "texts.txt", "-o", "other", "--dedup", "near:2"]) == 2
