"""Mined negatives against a brute-force search, and the command line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from embedkit.training import cli
from embedkit.training.hard_negatives import MineOptions, mine_negatives

RANDOM = np.random.default_rng(0)
POSITIVES = [f"p{i}" for i in range(40)]
EXTRA = [f"e{i}" for i in range(25)]
PAIRS = [(f"a{i}", f"p{i}") for i in range(40)] + [(f"a{i}", f"p{i + 20}") for i in range(10)]
PAIRS.append(("p7", "p3"))  # an anchor that is a text of the corpus
VECTORS = {text: RANDOM.normal(size=6) for text in [*POSITIVES, *EXTRA, *(anchor for anchor, _ in PAIRS)]}
for _i in range(40):  # positives near their anchors
    VECTORS[f"a{_i}"] = VECTORS[f"p{_i}"] + 0.7 * RANDOM.normal(size=6)


class Known:
    """An encoder of known vectors."""

    def encode(self, sentences: list[str]) -> np.ndarray:
        return np.array([VECTORS[text] for text in sentences])


class Judge:
    """A cross-encoder whose score is no function of the cosine."""

    def predict(self, sentences: list[tuple[str, str]]) -> np.ndarray:
        return np.array([np.sin(7 * VECTORS[a][0] + 3 * VECTORS[b][1]) for a, b in sentences])


def cosine(a: str, b: str) -> float:
    u, v = VECTORS[a], VECTORS[b]
    return float(u @ v / np.linalg.norm(u) / np.linalg.norm(v))


def brute_force(options: MineOptions, judged: bool) -> list[tuple[str, ...]]:
    """The definition, anchor by anchor, in plain Python."""
    rows = []
    corpus = dict.fromkeys([*EXTRA, *(positive for _, positive in PAIRS)])
    for anchor, positive in PAIRS:
        own = [text for a, text in PAIRS if a == anchor]
        others = sorted((t for t in corpus if t not in own and t != anchor), key=lambda t: -cosine(anchor, t))
        near = others[: options.candidates]

        def score(text: str, anchor: str = anchor) -> float:
            return float(Judge().predict([(anchor, text)])[0]) if judged else cosine(anchor, text)

        least = min(map(score, own))
        kept = []
        for text in sorted(near, key=lambda t: -score(t)):
            s = score(text)
            if options.margin is not None and s > least - options.margin:
                continue
            if options.relative_margin is not None and s > least - options.relative_margin * abs(least):
                continue
            if options.min_score is not None and s < options.min_score:
                continue
            if options.max_score is not None and s > options.max_score:
                continue
            kept.append(text)
        kept = kept[options.range_min :][: options.negatives]
        if len(kept) == options.negatives:
            rows.append((anchor, positive, *kept))
    return rows


@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"negatives": 3},
        {"negatives": 2, "range_min": 4, "range_max": 12},
        {"negatives": 2, "margin": 0.2},
        {"relative_margin": 0.1},
        {"min_score": 0.1, "max_score": 0.6, "negatives": 2},
        {"negatives": 2, "margin": 0.05, "range_min": 1, "range_max": 30},
    ],
    ids=lambda options: " ".join(options) or "nearest",
)
def test_against_brute_force(options: dict[str, Any], judged: bool) -> None:
    chosen = MineOptions(**options)
    found = mine_negatives(PAIRS, Known(), chosen, corpus=EXTRA, cross_encoder=Judge() if judged else None)
    expected = brute_force(chosen, judged)
    assert found.rows == expected
    assert found.left_out == len(PAIRS) - len(expected)
    assert expected
    for row, scores in zip(found.rows, found.scores, strict=True):
        for text, score in zip(row[1:], scores, strict=True):
            known = float(Judge().predict([(row[0], text)])[0]) if judged else cosine(row[0], text)
            assert score == pytest.approx(known, abs=1e-6)


def test_as_sentence_transformers() -> None:
    """The same triplets as its mine_hard_negatives, where an anchor has one positive."""
    datasets = pytest.importorskip("datasets")
    torch = pytest.importorskip("torch")
    util = pytest.importorskip("sentence_transformers.util")

    class Model:
        device = "cpu"

        def encode_query(self, texts: list[str], **_: Any) -> np.ndarray:
            x = Known().encode(texts).astype(np.float32)
            return x / np.linalg.norm(x, axis=1, keepdims=True)

        encode_document = encode_query

        def similarity(self, a: Any, b: Any) -> Any:
            return torch.as_tensor(a) @ torch.as_tensor(b).T

        def similarity_pairwise(self, a: Any, b: Any) -> Any:
            return (torch.as_tensor(a) * torch.as_tensor(b)).sum(-1)

    pairs = PAIRS[:40]
    data = datasets.Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [p for _, p in pairs]})
    theirs = util.mine_hard_negatives(
        data,
        Model(),
        corpus=EXTRA,
        num_negatives=2,
        range_max=20,
        absolute_margin=0.1,
        output_format="n-tuple",
    )
    ours = mine_negatives(
        pairs, Known(), MineOptions(negatives=2, range_max=20, margin=0.1), corpus=EXTRA
    ).columns()
    assert {tuple(row.values()) for row in theirs} == set(zip(*ours.values(), strict=True))


def test_random_negatives_are_drawn_from_the_range() -> None:
    options = MineOptions(negatives=2, random=True, range_min=2, range_max=10)
    found = mine_negatives(PAIRS, Known(), options, corpus=EXTRA)
    allowed = brute_force(MineOptions(negatives=8, range_min=2, range_max=10), False)
    for row, all_of in zip(found.rows, allowed, strict=True):
        assert row[:2] == all_of[:2]
        assert set(row[2:]) < set(all_of[2:])
    assert found.rows == mine_negatives(PAIRS, Known(), options, corpus=EXTRA).rows
    other = MineOptions(negatives=2, random=True, range_min=2, range_max=10, seed=1)
    assert found.rows != mine_negatives(PAIRS, Known(), other, corpus=EXTRA).rows


def test_another_spelling_of_a_positive_is_no_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["Soup.", " soup.", "SOUP.", "soup?", "What  eat", "rain"]
    monkeypatch.setattr(
        sys.modules[__name__], "VECTORS", {text: np.array([1, n / 9]) for n, text in enumerate(texts)}
    )
    VECTORS["what eat"] = VECTORS["who"] = np.array([1, 0])
    pairs = [("what eat", "Soup."), ("What  eat", "rain"), ("who", " soup.")]
    found = mine_negatives(pairs, Known(), MineOptions(), corpus=["SOUP.", "soup?", "What  eat"])
    assert found.rows == [
        ("what eat", "Soup.", "soup?"),
        ("What  eat", "rain", "soup?"),
        ("who", " soup.", "soup?"),
    ]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="seed=-1: give 0 or more"):
        MineOptions(seed=-1)
    with pytest.raises(ValueError, match="negatives=0"):
        MineOptions(negatives=0)
    with pytest.raises(ValueError, match=r"range_max=5 leaves 2 candidates after range_min=3"):
        MineOptions(negatives=3, range_min=3, range_max=5)
    with pytest.raises(ValueError, match="margin is nan"):
        MineOptions(margin=math.nan)
    with pytest.raises(ValueError, match="there are no pairs"):
        mine_negatives([], Known(), MineOptions())

    class TwoScores:
        def predict(self, sentences: list[tuple[str, str]]) -> np.ndarray:
            return np.zeros((len(sentences), 2))

    with pytest.raises(ValueError, match="use one with a single score"):
        mine_negatives(PAIRS, Known(), MineOptions(), cross_encoder=TwoScores())


def test_the_command(
    make_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "question\tanswer",
        "the people use\tpeople find",
        "many days\tthe day",
        "not water\twater night",
    ]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "more.txt").write_text("time\nworld weather\n", encoding="utf-8")
    command = ["mine", str(tmp_path / "pairs.tsv"), str(tmp_path / "out.tsv"), "--model", str(make_model())]
    command += ["--anchor", "question", "--positive", "answer", "--corpus", str(tmp_path / "more.txt")]
    assert cli.main([*command, "--negatives", "2"]) == 0
    rows = [line.split("\t") for line in (tmp_path / "out.tsv").read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["anchor", "positive", "negative_1", "negative_2"]
    texts = {"people find", "the day", "water night", "time", "world weather"}
    for row, line in zip(rows[1:], lines[1:], strict=True):
        assert row[:2] == line.split("\t")
        assert set(row[2:]) <= texts - {row[1]} and len(set(row[2:])) == 2
    assert "3 rows of 3 pairs; 0 pairs have fewer than 2 negatives" in capsys.readouterr().err
    command[2] = str(tmp_path / "out.jsonl")
    assert cli.main([*command, "--negatives", "2", "--triplets"]) == 0
    triplets = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [list(row) for row in triplets] == [["anchor", "positive", "negative"]] * 6
    (tmp_path / "pairs.tsv").write_text("\n".join([*lines, "time\t "]) + "\n", encoding="utf-8")
    (tmp_path / "more.txt").rename(tmp_path / "more.tsv")
    (tmp_path / "more.tsv").write_text("text\tnote\n \tx\nworld weather\t\n", encoding="utf-8")
    command[-1] = str(tmp_path / "more.tsv")
    command[2] = str(tmp_path / "new.jsonl")
    assert cli.main(command) == 2
    assert "leave such rows out: `skip_blank: true` of a recipe's source, --skip-blank of mine" in (
        capsys.readouterr().err
    )
    assert cli.main([*command, "--skip-blank"]) == 0
    assert "3 rows of 3 pairs" in capsys.readouterr().err
    command[2] = str(tmp_path / "newer.jsonl")
    assert cli.main([*command[:-1], "nothing.txt"]) == 2
    assert "nothing.txt: no such file\n" in capsys.readouterr().err
    for name, problem in (
        ("pairs.tsv", "pairs.tsv: already exists; name another file"),
        ("out.csv", "mine writes .tsv and .jsonl"),
        ("no/out.tsv", "create it first"),
    ):
        command[2] = str(tmp_path / name)
        assert cli.main(command) == 2
        assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--anchor", ""], "argument --anchor: it is empty"),
        (["--positive", ""], "argument --positive: it is empty"),
        (["--corpus", "pairs.tsv", "--corpus-column", ""], "argument --corpus-column: it is empty"),
        (["--corpus-column", "body"], "--corpus-column is of the file that --corpus names"),
        (["--seed", "0"], "--seed is of the draw of --random"),
        (["--positive", "anchor"], "--anchor and --positive both name the column 'anchor'"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\na\tb\n", encoding="utf-8")
    assert cli.main(["mine", str(tmp_path / "pairs.tsv"), str(tmp_path / "out.tsv"), *options]) == 2
    assert message in capsys.readouterr().err


def test_what_cannot_be_written_is_said_before_mining(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"anchor": "a", "positive": "two\\nlines"}\n', encoding="utf-8")
    monkeypatch.setattr("embedkit.Encoder", None)  # no model is opened
    assert cli.main(["mine", str(tmp_path / "pairs.jsonl"), str(tmp_path / "out.tsv")]) == 2
    assert "a tab or line break in 'two\\nlines'" in capsys.readouterr().err


def test_anchors_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.training.hard_negatives._BLOCK", 7)
    chosen = MineOptions(negatives=2)
    assert mine_negatives(PAIRS, Known(), chosen, corpus=EXTRA).rows == brute_force(chosen, judged=False)
