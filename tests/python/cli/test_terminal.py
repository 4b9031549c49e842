import io
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest

from embedkit.cli.common import duration, in_time, plural, run, told
from embedkit.cli.main import _REMEDIES, main
from embedkit.cli.model import main as model_main
from embedkit.cli.query import _REMEDIES as QUERY_REMEDIES
from embedkit.cli.serve import _REMEDIES as SERVE_REMEDIES
from embedkit.cli.serve import main as serve_main
from embedkit.cli.terminal import ProgressBar, cut, display_width, printable, table
from embedkit.index import Progress
from embedkit.index.search.pipeline import SearchStats
from embedkit.inputs import TextsWarning


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("abc", 3),
        ("日本", 4),
        ("e\u0301", 1),
        ("ｆｕｌｌ", 8),
        ("한국어", 6),
        ("😀", 2),
        ("\u200bа", 1),
        ("नमस्ते", 4),
    ],
)
def test_widths(text: str, width: int) -> None:
    assert display_width(text) == width


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("short", 5, "short"),
        ("longer text", 7, "longer…"),
        ("longer text", 8, "longer…"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("日本語", 1, "…"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301…"),
    ],
)
def test_cutting(text: str, columns: int, expected: str) -> None:
    assert cut(text, columns) == expected


def test_printable_text_is_one_line() -> None:
    assert printable("a\nb\t c\x1b[0m\u202e\ud800\x7fé") == "a b c\ufffd[0m\ufffd\ufffd\ufffdé"


def test_columns_are_aligned_by_display_width() -> None:
    rows = [("1", "0.5", "日本", "text"), ("10", "-0.25", "a", "other " * 20)]
    lines = table(("rank", "score", "id", "text"), rows, 40)
    assert lines == [
        "rank  score  id    text",
        "   1    0.5  日本  text",
        "  10  -0.25  a     other other other ot…",
    ]
    assert table(("rank", "score", "id", "text"), rows, None)[-1].endswith("other")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, total_bytes: int | None, *steps: Progress) -> list[str]:
    """What a bar has drawn, draw by draw."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "90")
    with ProgressBar(total_bytes) as bar:
        for step in steps:
            bar.update(step)
            bar._bar.refresh()
    return [line.strip() for line in terminal.getvalue().replace("\n", "\r").split("\r") if line.strip()]


def test_a_bar_counts_documents_and_not_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(
        monkeypatch, 4000, Progress("encode", 1000, None, 1000), Progress("encode", 4000, None, 4000)
    )
    quarter = r"encoding:  25%\|.*\| 1,000 documents, [\d,]+/s \[\d\d:\d\d<\d\d:\d\d\]"
    assert any(re.fullmatch(quarter, line) for line in lines), lines
    assert lines[-1].startswith("encoding: 100%|") and "4,000 documents" in lines[-1]
    assert not any(re.search(r"\d[kM]?B\b|\d\.\d+ documents/s", line) for line in lines)


def test_a_bar_without_a_total_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, None, Progress("encode", 10, None), Progress("encode", 3000, None))
    assert re.match(r"encoding: 3,000 documents, [\d,]+/s \[", lines[-1])


def test_training_shows_no_bar_that_stays_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(
        monkeypatch, None, Progress("train", 0, 25_600), Progress("add", 50, 100), Progress("add", 100, 100)
    )
    training = [line for line in lines if "training" in line]
    assert training and all(
        re.fullmatch(r"training on 25,600 vectors \[\d\d:\d\d\]", line) for line in training
    )
    assert "100 of 100 vectors" in lines[-1] and "100%" in lines[-1]


def test_nothing_is_drawn_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = io.StringIO()
    monkeypatch.setattr("sys.stderr", plain)
    with ProgressBar(100) as bar:
        bar.update(Progress("encode", 1, None, 50))
        bar.update(Progress("train", 0, 10))
    assert plain.getvalue() == ""


def test_times_and_counts() -> None:
    assert in_time(0.0, 4) == "in 1 ms" or in_time(0.0, 4) == "in 0 ms"
    assert (in_time(0.042, 4), in_time(0.42, 5), in_time(2.0, 4000)) == (
        "in 42 ms",
        "in 0.42 s",
        "in 2.0 s (2,000/s)",
    )
    assert (plural(1, "query"), plural(2, "query"), plural(1000, "text")) == (
        "1 query",
        "2 queries",
        "1,000 texts",
    )
    assert duration(0.2) == "less than a second"
    assert str(SearchStats(queries=1, wall=1.0)).startswith("1 query in ")
    assert str(SearchStats(queries=2, wall=1.0)).startswith("2 queries in ")


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        (main, ["build"], "embedkit-index build: the following arguments are required: INPUT, -o/--output"),
        (main, ["query", "index", "x", "-k", "0"], "embedkit-index query: argument -k: "),
        (main, [], "embedkit-index: the following arguments are required: COMMAND"),
        (
            model_main,
            ["convert", "a", "b", "--precision", "x"],
            "embedkit-model convert: argument --precision: ",
        ),
        (serve_main, ["--port", "x"], "embedkit-serve: argument --port: "),
    ],
)
def test_wrong_arguments_are_told_in_two_lines(
    capsys: pytest.CaptureFixture[str],
    program: Callable[[list[str]], int],
    arguments: list[str],
    message: str,
) -> None:
    assert program(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[0].startswith(message), lines
    assert re.fullmatch(r"try '.* --help'", lines[1])


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("cli.main", ["--help"]),
        ("cli.main", ["query", "--help"]),
        ("cli.model", ["--help"]),
        ("cli.model", ["list"]),
        ("cli.serve", ["--help"]),
        ("training.cli", ["--help"]),
        ("training.cli", ["distill", "--help"]),
        ("training.vocabulary", ["--help"]),
    ],
)
def test_help_on_a_terminal_that_knows_ascii_only(module: str, arguments: list[str]) -> None:
    code = f"import sys; from embedkit.{module} import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("ascii").strip()


def test_ctrl_c_while_the_arguments_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> NoReturn:
        raise KeyboardInterrupt

    assert run("embedkit-index", stopped, usage=()) == 130
    assert capsys.readouterr().err == "embedkit-index: interrupted\n"


def test_the_last_column_keeps_its_room() -> None:
    header = ("rank", "score", "vector", "bm25", "id", "text")
    rows = [("1", "0.812", "0.64", "12.2", "a very long name of a document", "and some text of it")]
    for columns in (60, 55, 50):
        lines = table(header, rows, columns, numbers=4)
        assert max(map(display_width, lines)) <= columns
        assert "and" in lines[1]


@pytest.mark.parametrize("remedies", [_REMEDIES, QUERY_REMEDIES, SERVE_REMEDIES, {}])
def test_warnings_of_texts_are_told_without_python(remedies: dict[tuple[str, str], str]) -> None:
    for what, cause in (("texts", "length"), ("texts", "script"), ("pairs", "length"), ("pairs", "script")):
        warning = TextsWarning("It is so. Encoder('m')", told="It is so", what=what, cause=cause)  # type: ignore[arg-type]
        sent = pickle.loads(pickle.dumps(warning))
        assert (str(sent), vars(sent)) == ("It is so. Encoder('m')", vars(warning))
        shown = told(sent, remedies)
        assert shown.startswith("It is so; " if (what, cause) in remedies else "It is so")
        assert "Encoder" not in shown and "{" not in shown
    assert told(UserWarning("{other}"), remedies) == "{other}"
