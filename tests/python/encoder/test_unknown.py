"""Texts in a script that the model does not know are warned of once, and counted."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from embedkit import Encoder
from embedkit.model_folder.tokenizer import load_tokenizer

STRANGE = ["苹果", "แอปเปิ้ล", "𐌰𐌱𐌲 𐌳𐌴"]
KNOWN = ["an apple", "", "?", "ein Apfel", "an apple 苹"]


def unknown_share(encoder: Encoder, text: str) -> float:
    """The share of [UNK] among the content tokens, counted here."""
    engine = encoder._engine
    (ids,) = engine.tokenizer.encode_batch([text])
    return sum(id == engine.tokenizer.unknown_id for id in ids) / max(1, len(ids))


def test_texts_in_an_unknown_script_are_warned_of_once_and_counted() -> None:
    encoder = Encoder()
    strange = [text for text in STRANGE if unknown_share(encoder, text) > 1 / 3]
    assert "苹果" in strange
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.encode([text for text in KNOWN if unknown_share(encoder, text) <= 1 / 3])
    assert encoder.describe()["unknown"] == 0
    with pytest.warns(
        UserWarning, match=r"texts are in a script that the model does not know.*describe\(\)\['unknown'\]"
    ):
        encoder.encode([*KNOWN, *strange])
    count = sum(unknown_share(encoder, text) > 1 / 3 for text in [*KNOWN, *strange])
    assert encoder.describe()["unknown"] == count
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.encode(strange)
    assert encoder.describe()["unknown"] == count + len(strange)


def test_the_unknown_token_is_that_of_the_folder() -> None:
    encoder = Encoder()
    tokenizer = load_tokenizer(Path(encoder.describe()["path"]))
    assert tokenizer.unknown_id is not None
    assert tokenizer.encode_batch(["\U00010330"]) == [[tokenizer.unknown_id]]


def test_a_build_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("faiss")
    from embedkit.cli.main import main

    (tmp_path / "x.txt").write_text("an apple\n苹果\nแอปเปิ้ล\n", encoding="utf-8")
    assert main(["build", str(tmp_path / "x.txt"), "-o", str(tmp_path / "index")]) == 0
    out, err = capsys.readouterr()
    assert ", 2 texts in a script that the model does not know; SQ8" in out
    assert err.count("warning:") == 1
