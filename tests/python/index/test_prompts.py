"""Indexes of encoders whose prompts are not the model's own."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from embedkit import Encoder
from embedkit.cli.main import main
from embedkit.index import Document, Index, ModelMismatchError
from embedkit.index.storage.layout import current_name

PROMPTS = {"document": "passage: ", "query": "query: "}
TEXT = "many people say that the weather is lovely today"


class Prompted(FakeEncoder):
    def __init__(self, prompts: Mapping[str, str]) -> None:
        super().__init__()
        self.prompts = {**FakeEncoder.prompts, **prompts}  # type: ignore[misc]


def test_the_prompts_of_an_index_are_remembered(make_model: Callable[..., Path], tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    Index.build(path, [Document(TEXT, "a")], Encoder(make_model(), prompts=PROMPTS)).close()
    assert main(["verify", path]) == 0
    (tmp_path / "more.jsonl").write_text(json.dumps({"id": "b", "text": TEXT}))
    assert main(["upsert", path, str(tmp_path / "more.jsonl")]) == 0
    with Index.open(path) as index:
        index.add([Document(TEXT, "c")])
        index.verify(sample=3)
        one, *others = index.generation.vectors(index.generation.living_rows())
        assert [one @ other for other in others] == pytest.approx([1, 1])
        assert {name: index.encoder.prompts[name] for name in PROMPTS} == PROMPTS
        assert index.info()["query_prompt"] == "query: "
        expected = Encoder(make_model(), prompts=PROMPTS).encode_query([TEXT], normalize_embeddings=True)
        ((hit, *_),) = index.search([TEXT], hybrid=False)
        assert hit.score == pytest.approx(float(np.max(expected @ one)), abs=1e-5)


@pytest.mark.parametrize(
    ("prompts", "default"),
    [
        ({"passage": "passage: "}, None),
        ({"first": "first: "}, "first"),
        ({"corpus": "c: ", "first": "f: "}, "first"),
    ],
)
def test_prompts_of_other_names_are_remembered(
    make_model: Callable[..., Path], tmp_path: Path, prompts: dict[str, str], default: str | None
) -> None:
    encoder = Encoder(make_model())
    encoder.prompts, encoder.default_prompt_name = dict(prompts), default
    built = Index.build(tmp_path / "index", [Document(TEXT, "a")], encoder)
    built.verify(sample=1)
    (asked,) = built.search([TEXT], hybrid=False)
    built.close()
    with Index.open(tmp_path / "index") as index:
        assert index.info()["document_prompt"] == next(iter(prompts.values()))
        assert index.search([TEXT], hybrid=False)[0][0].score == pytest.approx(asked[0].score)
        index.add([Document(TEXT, "b")])
        one, other = index.generation.vectors(index.generation.living_rows())
        assert one @ other == pytest.approx(1)
        index.verify(sample=2)
    with (
        Index.open(tmp_path / "index", Encoder(make_model())) as index,
        pytest.raises(ModelMismatchError, match="the document prompt"),
    ):
        index.add([Document(TEXT, "c")])


def test_passages_make_room_for_a_prompt_of_another_name(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    encoder = Encoder(make_model(), max_length=32)
    del encoder.prompts["document"]
    encoder.prompts["passage"] = "the weather is lovely "
    with pytest.raises(ValueError, match="maximum of 32, of which special tokens and the prompt take 6"):
        Index.build(tmp_path / "index", [TEXT], encoder, passages=30)
    with Index.build(tmp_path / "index", [f"{TEXT} " * 9], encoder, passages=26) as index:
        assert index.info()["truncated"] == 0


def test_documents_with_another_prompt_are_refused(tmp_path: Path) -> None:
    Index.build(tmp_path / "index", [Document(TEXT, "a")], Prompted(PROMPTS)).close()
    told = "the document prompt 'passage: ', but the encoder's is ''"
    with Index.open(tmp_path / "index", FakeEncoder()) as index:
        for change in (index.add, index.upsert):
            with pytest.raises(ModelMismatchError, match=told):
                change([Document(TEXT, "b")])
        with pytest.raises(ModelMismatchError, match=told):
            index.verify(sample=1)
        index.verify()
        assert len(index.search(TEXT)) == 1  # queries may have any prompt


def test_an_index_that_recorded_no_prompt_of_queries(tmp_path: Path, make_model: Callable[..., Path]) -> None:
    path = tmp_path / "index"
    Index.build(path, [Document(TEXT, "a")], Encoder(make_model(), prompts=PROMPTS)).close()
    manifest = path / "manifests" / current_name(path)
    content = json.loads(manifest.read_bytes())
    assert content["encoder"].pop("query_prompt") == "query: "
    manifest.write_text(json.dumps(content))
    with Index.open(path) as index:
        assert index.encoder.prompts["query"] == Encoder(make_model()).prompts["query"]
        assert index.encoder.prompts["document"] == "passage: "


def test_prompts_of_queries_that_are_merged(tmp_path: Path) -> None:
    for name, query in (("a", "q: "), ("b", "q: "), ("c", "other: ")):
        Index.build(tmp_path / name, [Document(TEXT, name)], Prompted({"query": query})).close()
    for names, expected in (("ab", "q: "), ("ac", None)):
        with Index.merge(tmp_path / f"to-{names}", [tmp_path / one for one in names]) as index:
            assert index.info()["query_prompt"] == expected


def test_commands_give_a_model_its_prompts(
    make_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A known model whose folder has none is read without them, and the commands say what to give."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(make_model(), "e5-small-v2")
    Path("texts.txt").write_text(TEXT)

    def prompts(warned: str) -> tuple[str, str]:
        told = capsys.readouterr().err
        assert (f"give {warned} ('' for none)" in told) if warned else "meant for" not in told, told
        with Index.open("index") as index:
            info = index.info()
            expected = Encoder("e5-small-v2").encode(
                [TEXT], prompt=info["document_prompt"], normalize_embeddings=True
            )
            (stored,) = index.generation.vectors(index.generation.living_rows())
            assert stored @ expected[0] == pytest.approx(1)
        return info["query_prompt"], info["document_prompt"]

    build, model = ["build", "texts.txt", "-o", "index", "--overwrite"], ["--model", "e5-small-v2"]
    own = ["--query-prompt", "query: ", "--document-prompt", "passage: "]
    both, document = "--query-prompt 'query: ' --document-prompt 'passage: '", "--document-prompt 'passage: '"
    for command, given, warned, expected in (
        (build, [], both, ("", "")),
        (build, ["--query-prompt", ""], document, ("", "")),
        (["reembed", "index"], [], both, ("", "")),
        (["reembed", "index"], own, "", ("query: ", "passage: ")),
        (["reembed", "index"], ["--query-prompt", "q: "], "", ("q: ", "passage: ")),
        (["reembed", "index"], [], "", ("q: ", "passage: ")),
        (build, own, "", ("query: ", "passage: ")),
    ):
        assert main([*command, *model, *given]) == 0
        assert prompts(warned) == expected
    assert main(["export", "index", "vectors.faiss"]) == 0
    assert main(["import", "vectors.faiss", "texts.txt", "-o", "copy", *model, *own]) == 0
    with Index.open("copy") as index:
        assert index.info()["document_prompt"] == "passage: "
        index.verify(sample=1)


def test_another_model_has_its_own_prompts(make_model: Callable[..., Path], tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    Index.build(path, [Document(TEXT, "a")], Encoder(make_model(), prompts=PROMPTS)).close()
    assert main(["reembed", path]) == 0
    with Index.open(path) as index:
        assert (index.info()["query_prompt"], index.info()["document_prompt"]) == ("", "")


def test_the_same_model_keeps_prompts_and_dimensions(make_model: Callable[..., Path], tmp_path: Path) -> None:
    path, folder = str(tmp_path / "index"), str(make_model())

    def read() -> list[Any]:
        info = index.info()
        return [info[name] for name in ("query_prompt", "document_prompt", "dimension")]

    with Index.build(path, [Document(TEXT, "a")], Encoder(folder, prompts=PROMPTS, truncate_dim=8)) as index:
        index.reembed(folder)
        assert read() == ["query: ", "passage: ", 8]
        index.verify(sample=1)
    assert main(["reembed", path, "--model", folder, "--query-prompt", "q: "]) == 0
    with Index.open(path) as index:
        assert read() == ["q: ", "passage: ", 8]
        index.verify(sample=1)
        index.reembed(Encoder(folder))
        assert read() == ["", "", 32]
        index.reembed(make_model(seed=1))
        assert read() == ["", "", 32]


@pytest.mark.parametrize("task", ["query", "document"])
def test_a_prompt_that_is_no_unicode_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    """An index of such a prompt refused every query."""
    (tmp_path / "texts.txt").write_text(TEXT)
    command = ["build", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "index")]
    assert main([*command, f"--{task}-prompt", "\udcff: "]) == 2
    assert f"--{task}-prompt holds a lone surrogate at position 0" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()


def test_a_build_on_a_cluster_tells_of_prompts(
    make_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def build_index(path: str, inputs: list[str], model: str, options: dict[str, Any], **_: Any) -> Any:
        Index.build(path, [TEXT], Encoder(model, prompts=options["prompts"])).close()
        return SimpleNamespace(documents=1, encoded=1, blank=0)

    cluster = SimpleNamespace(SHARD_ROWS=1, Cluster=lambda *_: None, build_index=build_index)
    monkeypatch.setitem(sys.modules, "embedkit.integrations.ray_index", cluster)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(make_model(), "e5-small-v2")
    command = ["build", "x.jsonl", "-o", "index", "--engine", "ray", "--model", "e5-small-v2"]
    assert main([*command, "--query-prompt", "query: "]) == 0
    assert "give --document-prompt 'passage: ' ('' for none)" in capsys.readouterr().err


def evaluation(make_model: Callable[..., Path], *models: str) -> list[str]:
    """The command `eval` of a text and a query, which are written here, beside ``models``."""
    for name in models:
        shutil.copytree(make_model(), name)
    Path("texts.jsonl").write_text(json.dumps({"id": "a", "text": TEXT}))
    Path("pairs.tsv").write_text("weather\ta\n")
    return ["eval", "texts.jsonl", "--pairs", "pairs.tsv"]


def test_eval_gives_each_model_its_prompts(
    make_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    evaluated = evaluation(make_model, "one", "two")
    opened = []
    monkeypatch.setattr(
        "embedkit.Encoder", lambda *given, **options: opened.append(options) or Encoder(*given, **options)
    )
    command = [*evaluated, "--model", "one", "--model", "two"]
    assert (
        main([*command, "--json", "--document-prompt", "d: ", "--query-prompt", "q: ", "--query-prompt", ""])
        == 0
    )
    assert [options["prompts"] for options in opened if "prompts" in options] == [
        {"query": "q: ", "document": "d: "},
        {"query": "", "document": "d: "},
    ]
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["query_prompt"], row["document_prompt"]) for row in rows if row["search"] == "vectors"] == [
        ("q: ", "d: "),
        ("", "d: "),
    ]
    assert main([*command, *["--query-prompt", "q: "] * 3]) == 2
    assert "give --query-prompt once, or once for each --model" in capsys.readouterr().err


def test_rows_of_one_model_with_other_prompts_are_told_apart(
    make_model: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    evaluated = evaluation(make_model, "one")
    plotted = []
    monkeypatch.setattr("embedkit.cli.evaluate.check_plot", lambda path: None)
    monkeypatch.setattr(
        "embedkit.cli.evaluate.plot_quality", lambda path, points, title: plotted.extend(points)
    )
    command = [*evaluated, "--model", "one", "--model", "one", "--plot", "x.png"]
    assert main([*command, "--query-prompt", "q: ", "--query-prompt", ""]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert "query prompt" in header and "document prompt" not in header
    assert ["'q: '" in row for row in rows[:4]] == [True, True, False, False]
    assert {name for name, *_ in plotted} == {"one 'q: '", "one ''"}
