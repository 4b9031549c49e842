"""Indexes of encoders that cut long texts at another length, or read them in windows."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_encoder import FakeEncoder

from embedkit import Encoder
from embedkit.cli.main import main
from embedkit.documents.passages import Passages
from embedkit.index import BuildSettings, Document, Index, InputError, ModelMismatchError, ResumeError
from embedkit.index.build.check import length_check
from embedkit.index.build.estimate import estimate
from embedkit.index.build.settings import Progress

LONG = "many people say that the weather is lovely today " * 4


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of commands run in a folder of their own."""
    monkeypatch.chdir(tmp_path)


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
    with pytest.raises(ResumeError, match=r"with another --max-length \(8, now the model's own\)"):
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


@pytest.mark.usefixtures("here")
def test_windows_are_remembered(make_model: Callable[..., Path]) -> None:
    Path("texts.txt").write_text("".join(f"{n} {LONG * 3}\n" for n in range(20)))
    build = ["build", "texts.txt", "-o", "index", "--model", str(make_model())]
    assert main([*build, "--on-overflow", "window", "--max-length", "16"]) == 0
    assert main(["verify", "index"]) == 0
    with Index.open("index") as index:
        assert index.encoder.describe()["on_overflow"] == "window"
        index.add([Document(LONG * 3, "same way")])
        index.verify(sample=21)


@pytest.mark.filterwarnings("ignore:.*longer than max_length")
def test_the_count_of_cut_texts_is_unknown_where_their_vectors_are_kept(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    for text, known, after in ((LONG * 3, 1, None), ("today", 0, 0)):
        with Index.build(tmp_path / text[:5], [Document(text, "a")], Encoder(make_model())) as index:
            assert index.info()["truncated"] == known
            index.upsert([Document(text, "a", {"changed": True})])
            assert index.info()["truncated"] == after


@pytest.mark.filterwarnings("ignore:.*longer than max_length")
def test_the_count_of_cut_texts_is_unknown_where_deleted_ones_may_be_among_them(
    make_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [Document(LONG * 3, "long"), Document(LONG * 4, "longer"), Document("today", "short")]
    with Index.build(tmp_path / "index", documents, Encoder(make_model())) as index:
        index.add([Document(LONG * 5, "more")])
        assert index.compact() and index.info()["truncated"] == 3
        index.delete(["long", "longer"])
        assert index.info()["truncated"] == 3  # deleted ones included
        assert index.compact() and index.info()["truncated"] is None
    with Index.build(
        tmp_path / "short", [Document("today", "a"), Document("lovely", "b")], Encoder(make_model())
    ) as index:
        index.delete(["a"])
        assert index.compact() and index.info()["truncated"] == 0
    with Index.build(tmp_path / "again", documents[::2], Encoder(make_model())) as index:
        for number in range(12):  # folds what it adds
            index.upsert(
                [Document(f"{LONG * 3} {number}", "long"), Document(f"today {number}", f"short{number}")]
            )
        assert index.compact() and index.info()["truncated"] is None
    assert main(["info", str(tmp_path / "again")]) == 0
    assert re.search("^truncated +unknown$", capsys.readouterr().out, re.MULTILINE)


def test_the_estimate_counts_what_dedup_remembers() -> None:
    sample = [Document("a text", "a")]
    plain, distinct = (
        estimate(sample, 10**8, FakeEncoder(), BuildSettings("Flat", dedup=dedup, max_memory=2 << 30))
        for dedup in (None, "exact")
    )
    assert plain.memory == 2 << 30
    assert distinct.memory - plain.memory == 80 * 10**8


def test_the_estimate_neither_refuses_nor_counts_nor_warns(make_model: Callable[..., Path]) -> None:
    encoder = Encoder(make_model(), on_overflow="error")
    sample = [Document("today", "short"), Document(LONG * 9, "long"), Document("x", "given", vector=[1.0])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = estimate(sample, 30, encoder, BuildSettings())
        cut = estimate(sample, 30, encoder, BuildSettings(passages=Passages(20)))
    assert (whole.documents, whole.passages, cut.documents) == (30, None, 30)
    assert cut.passages is not None and cut.passages % 10 == 0  # as many for a document as in the sample
    assert cut.passages > 100
    assert encoder.describe()["texts"] == 0
    assert encoder.describe()["on_overflow"] == "error"


@pytest.mark.usefixtures("here")
def test_passages_that_fit_are_no_overflow(
    make_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("texts").mkdir()
    Path("texts/long.txt").write_text(LONG * 9)
    Path("texts/short.txt").write_text("today")
    build = ["build", "texts", "-o", "index", "--model", str(make_model()), "--passages", "20"]
    assert main([*build, "--on-overflow", "error"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    expected = re.search(r"estimate: (\d+ passages of 2 documents), ", out)
    assert expected is not None and f"index: {expected[1]} in " in out
    assert main(["upsert", "index", "texts/long.txt"]) == 0
    assert re.match(r"estimate: \d+ passages of 1 document, ", capsys.readouterr().out)


@pytest.mark.usefixtures("here")
def test_a_text_that_is_refused_is_named(
    make_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("texts.txt").write_text(f"today\n\nlovely\n{LONG * 9}\n")
    build = ["build", "texts.txt", "-o", "index", "--model", str(make_model()), "--on-overflow", "error"]
    assert main(build) == 2
    assert re.fullmatch(
        r"embedkit-index: texts\.txt:4: the text has [\d,]+ tokens, more than the 64 that the model reads; .*"
        r"--on-overflow truncate or window .*--passages .*; nothing was written to index\n",
        capsys.readouterr().err,
    )
    encoder = Encoder(make_model(), on_overflow="error")
    with pytest.raises(InputError, match=r"^document 1 \('long'\): the text has"):
        Index.build("index", [Document("today", "short"), Document(LONG * 9, "long")], encoder)
    assert main([*build, "--on-error", "skip"]) == 0
    assert re.search(r"skipped: texts\.txt:4: the text has [\d,]+ tokens", capsys.readouterr().err)
    with Index.open("index") as index:
        assert len(index) == 2
    assert main([*build[:-2], "--overwrite"]) == 0
    capsys.readouterr()
    assert main(["reembed", "index", "--model", str(make_model()), "--on-overflow", "error"]) == 2
    told = capsys.readouterr().err
    assert "the text has" in told and "--on-error" not in told  # which reembed lacks
    assert re.search(
        r"give --on-overflow truncate or window .*, or build the index again with --passages", told
    )
    with Index.open("index", encoder) as index, pytest.raises(InputError, match="reembed --on-overflow"):
        index.add([Document(LONG * 9, "more")])
    # one that comes with its vector is not read by the model
    given = Document(LONG * 9, "given", vector=[1.0] * encoder.get_embedding_dimension())
    with Index.build("given", [Document("today", "short"), given], encoder) as index:
        assert len(index) == 2


@pytest.mark.filterwarnings("ignore:.*longer than max_length")
@pytest.mark.usefixtures("here")
def test_an_index_that_took_no_long_text_takes_none_later(
    make_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("texts").mkdir()
    Path("texts/a.txt").write_text("today\nthe weather is lovely today\n")
    Path("long.txt").write_text(f"{LONG * 9}\n")
    model = ["--model", str(make_model())]
    assert main(["build", "texts", "-o", "index", *model, "--on-overflow", "error"]) == 0
    for command in ("add", "upsert"):
        assert main([command, "index", "long.txt"]) == 2
        assert "the text has" in capsys.readouterr().err
    assert main(["reembed", "index", *model, "--max-length", "4"]) == 2
    assert "the text has" in capsys.readouterr().err
    with Index.open("index") as index:
        assert len(index) == 2 and index.info()["on_overflow"] == "error"
        assert len(index.search(LONG * 9, 1)[0]) == 1  # queries are cut
        index.reembed(make_model(seed=1))
        assert index.info()["on_overflow"] == "error"
    Path("long.txt").rename("texts/b.txt")
    assert main(["sync", "texts", "index"]) == 2
    assert "the text has" in capsys.readouterr().err
    assert main(["reembed", "index", *model, "--on-overflow", "truncate"]) == 0
    assert main(["sync", "texts", "index"]) == 0


def test_a_length_counts_as_the_encoder_counts(make_model: Callable[..., Path]) -> None:
    for limit in (9, 10, 64):
        encoder = Encoder(make_model(), on_overflow="error", max_length=limit)
        encoder.prompts["document"] = "passage: "
        for words in range(1, 80):
            document, refused = Document("today " * words, "id", origin="it"), False
            try:
                encoder.encode_document([document.text])
            except ValueError as error:
                refused = True
                tokens = re.search(r"has (\d+) tokens", str(error))
                with pytest.raises(
                    InputError, match=f"^it: the text has {tokens and tokens[1]} tokens, more"
                ):
                    length_check(encoder, "build")(document)
            if not refused:
                length_check(encoder, "build")(document)


@pytest.mark.usefixtures("here")
def test_warnings_name_the_options_of_the_command(
    make_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("texts.txt").write_text(f"{LONG * 9}\ntoday\n苹果\n", "utf-8")
    assert main(["build", "texts.txt", "-o", "index", "--model", str(make_model())]) == 0
    cut, strange = capsys.readouterr().err.splitlines()
    assert cut.startswith(
        "embedkit-index: warning: 1 of the first 3 texts is longer than max_length=64 tokens"
    )
    assert "--on-overflow window" in cut
    assert strange.startswith("embedkit-index: warning: 1 of the first 3 texts is in a script that the model")
    assert "--model intfloat/multilingual-e5-small" in strange
    assert not any(word in cut + strange for word in ("describe", "on_overflow", "Encoder("))
