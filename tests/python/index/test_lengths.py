"""Indexes of encoders that cut long texts at another length, or read them in windows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embedkit import Encoder
from embedkit.cli.main import main
from embedkit.index import Document, Index, ModelMismatchError, ResumeError
from embedkit.index.build.settings import Progress

LONG = "many people say that the weather is lovely today " * 4


class Stopped(Exception):
    pass


def stop(progress: Progress) -> None:
    if progress.done >= 2048:
        raise Stopped


@pytest.mark.filterwarnings("ignore:.*longer than max_length")
def test_a_build_is_not_resumed_with_another_length(make_model: Callable[..., Path], tmp_path: Path) -> None:
    folder, texts = make_model(), [f"{n} {LONG}" for n in range(2060)]
    with pytest.raises(Stopped):
        Index.build(tmp_path / "index", texts, Encoder(folder, max_length=8), progress=stop)
    with pytest.raises(ResumeError, match=r"with another max_length \(8, now None\)"):
        Index.build(tmp_path / "index", texts, Encoder(folder))


@pytest.mark.filterwarnings("ignore:.*longer than max_length")
def test_documents_are_added_with_the_same_length(make_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_model()
    Index.build(tmp_path / "own", [LONG], Encoder(folder)).close()
    Index.build(tmp_path / "short", [LONG], Encoder(folder, max_length=8)).close()
    for name, encoder, message in (
        ("own", Encoder(folder, max_length=8), "built with max_length=64, but the encoder's is 8"),
        ("short", Encoder(folder), "built with max_length=8, but the encoder's is 64"),
        (
            "own",
            Encoder(folder, on_overflow="window"),
            "on_overflow='truncate', but the encoder's is 'window'",
        ),
    ):
        with Index.open(tmp_path / name, encoder) as index, pytest.raises(ModelMismatchError, match=message):
            index.add([Document(LONG, "more")])


def test_windows_are_remembered(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("".join(f"{n} {LONG * 3}\n" for n in range(20)))
    build = ["build", "texts.txt", "-o", "index", "--model", str(make_model())]
    assert main([*build, "--on-overflow", "window", "--max-length", "16"]) == 0
    assert main(["verify", "index"]) == 0
    with Index.open("index") as index:
        assert index.encoder.describe()["on_overflow"] == "window"
        index.add([Document(LONG * 3, "same way")])
        index.verify(sample=21)
