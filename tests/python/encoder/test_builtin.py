"""The built-in model: no network, no argument, correct vectors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embedkit import Encoder, list_models
from embedkit.model_folder.folder import BUILTIN


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder()


def test_the_folder_is_complete(encoder: Encoder) -> None:
    report = encoder.describe()
    assert report["model"] == BUILTIN.name and report["precision"] == "int8" and report["dimension"] == 256
    assert encoder.verify() == report["fingerprint"]
    assert {"LICENSE", "NOTICE", "README.md"} <= {path.name for path in BUILTIN.iterdir()}
    assert sum(path.stat().st_size for path in BUILTIN.rglob("*") if path.is_file()) <= 24_000_000


def test_saving_it_changes_no_byte(encoder: Encoder, tmp_path: Path) -> None:
    """A writer that changes a file's form or the fingerprint makes every index of the model unusable."""
    assert encoder.fingerprint == "db9951709b63c88ca25e505668df75f6d157dc28accffdaaffd80ee1918743f7"
    encoder.save(tmp_path / "saved")
    names = {path.relative_to(BUILTIN) for path in BUILTIN.rglob("*") if path.is_file()}
    assert names == {p.relative_to(tmp_path / "saved") for p in tmp_path.rglob("*") if p.is_file()}
    for name in names:
        assert (tmp_path / "saved" / name).read_bytes() == (BUILTIN / name).read_bytes(), name


def test_int8_embeddings_need_no_given_ranges(encoder: Encoder) -> None:
    texts = [
        "How can I cook rice?",
        "Is it going to rain?",
        "my computer does not start",
        "a violinist plays",
    ]
    exact, coded = encoder.encode(texts), encoder.encode(texts, output_dtype="int8")
    assert coded.dtype == np.int8 and coded.shape == (4, 256)
    np.testing.assert_array_equal(encoder.encode(texts[1], output_dtype="int8"), coded[1])
    minima, maxima = np.asarray(encoder._engine.folder.stamp.ranges)
    decoded = minima + (coded + 128.5) * (maxima - minima) / 255
    cosines = (decoded * exact).sum(axis=1) / np.linalg.norm(decoded, axis=1)
    assert cosines.min() >= 0.999


def test_it_needs_no_network() -> None:
    script = """
import socket
def refuse(*arguments, **options):
    raise AssertionError("a socket was opened")
socket.socket = socket.create_connection = socket.getaddrinfo = refuse
from embedkit import Encoder, list_models
assert Encoder().encode("a text").shape == (256,)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_similar_texts_are_close(encoder: Encoder) -> None:
    queries = ["How can I cook rice?", "Is it going to rain?", "my computer does not start"]
    answers = [
        "Boil it in water for fifteen minutes.",
        "The forecast says showers.",
        "Check the power supply.",
    ]
    vectors = encoder.encode_query(queries)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    scores = encoder.similarity(vectors, encoder.encode_document(answers))
    assert scores.argmax(axis=1).tolist() == [0, 1, 2]


def test_it_is_opened_by_the_name_that_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = Encoder().describe()["model"]
    assert name == list_models()[0].name
    assert Encoder(name).fingerprint == Encoder().fingerprint
