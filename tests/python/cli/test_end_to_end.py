"""The commands as a user runs them: with the built-in model, on the beginning of the sample corpus."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit import Encoder, Index
from embedkit.index import ModelMismatchError

CORPUS = Path(__file__).parents[3] / "examples" / "corpus.jsonl"
COMMAND = (sys.executable, "-c", "import sys; from embedkit.cli.main import main; sys.exit(main())")


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False, **options
    )


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("end-to-end")
    path = folder / "index"
    (folder / "head.jsonl").write_text("".join(CORPUS.read_text("utf-8").splitlines(True)[:600]), "utf-8")
    done = run("build", folder / "head.jsonl", "-o", path)
    assert done.returncode == 0, done.stderr
    assert "600 documents in" in done.stdout
    assert "SQ8, 256 dimensions" in done.stdout
    return path


def test_the_demo_queries_find_what_they_mean(index: Path) -> None:
    done = run(
        "query",
        index,
        "How do I get my money back?",
        "Why is the sky blue?",
        "I forgot my password",
        "--no-hybrid",  # their answers share no word with them
        "--json",
    )
    assert done.returncode == 0, done.stderr
    best = [json.loads(line)["id"] for line in done.stdout.splitlines() if json.loads(line)["rank"] == 1]
    assert best == ["en-support-001", "en-science-001", "en-support-002"]


def test_a_long_query_is_to_be_shortened(index: Path) -> None:
    done = run("query", index, "refund " * 700, "-k", "1")
    assert done.returncode == 0 and "; shorten the query" in done.stderr, done.stderr
    assert "--passages" not in done.stderr


def test_the_table(index: Path) -> None:
    done = run("query", index, "Warum ist der Himmel blau?", "-k", "3")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4


def test_the_info_names_the_model(index: Path) -> None:
    info = json.loads(run("info", index, "--json", "--verify").stdout)
    encoder = Encoder()
    assert info["fingerprint"] == encoder.fingerprint
    assert info["model"] == encoder.describe()["model"]
    assert (info["precision"], info["dimension"], info["metric"]) == ("int8", 256, "cosine")


def test_python_gives_the_same_as_exact_search(index: Path) -> None:
    texts = [json.loads(line)["text"] for line in CORPUS.read_text("utf-8").splitlines()[:600]]
    queries = ["who invented printing", "how long should I sleep", "best soup in winter", "goalkeeper"]
    encoder = Encoder()
    documents = encoder.encode_document(texts, normalize_embeddings=True)
    scores = encoder.encode_query(queries, normalize_embeddings=True) @ documents.T
    rounding = 2e-3  # the index holds the vectors in bytes
    with Index.open(index, encoder) as opened:
        for hits, row in zip(opened.search(queries, k=5, hybrid=False), scores, strict=True):
            np.testing.assert_allclose([hit.score for hit in hits], np.sort(row)[::-1][:5], atol=rounding)
            assert [row[texts.index(hit.text)] for hit in hits] == pytest.approx(
                [hit.score for hit in hits], abs=rounding
            )


def test_a_truncated_encoder_is_found_again(tmp_path: Path) -> None:
    Index.build(tmp_path / "index", ["a cat", "a dog", "the sea"], Encoder(truncate_dim=64)).close()
    with Index.open(tmp_path / "index") as index:
        assert index.dimension == 64
        assert index.search("kitten", k=1)[0][0].text == "a cat"


def test_another_model_is_refused(index: Path, make_model: Callable[..., Path], tmp_path: Path) -> None:
    other = make_model()
    with pytest.raises(ModelMismatchError, match="fingerprint"):
        Index.open(index, Encoder(other))
    done = run("query", index, "x", "--model", other)
    assert done.returncode == 1
    assert Encoder().fingerprint in done.stderr
    assert Encoder(other).fingerprint in done.stderr


def test_a_moved_model_folder(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(make_model(), tmp_path / "model")
    (tmp_path / "x.txt").write_text("the weather is lovely today\nthe stadium\n")
    monkeypatch.chdir(folder.parent)
    done = run(
        "build", tmp_path / "x.txt", "-o", tmp_path / "index", "--model", folder.name, "--precision", "int8"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(run("info", tmp_path / "index", "--json").stdout)["precision"] == "int8"
    assert run("query", tmp_path / "index", "weather", cwd=tmp_path).returncode == 0
    moved = folder.rename(tmp_path / "moved")
    gone = run("query", tmp_path / "index", "weather")
    assert gone.returncode == 1
    assert "if it was moved, give its path with --model" in gone.stderr
    assert run("query", tmp_path / "index", "weather", "--model", moved).returncode == 0


def test_wrong_arguments_of_the_model_exit_with_2(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("text\n")
    for option in (("--model", "./none"), ("--precision", "fp32"), ("--precision", "int3")):
        done = run("build", tmp_path / "x.txt", "-o", tmp_path / "index", *option)
        assert done.returncode == 2, done.stderr
        assert "the model cannot be loaded: " in done.stderr
    assert not (tmp_path / "index").exists()


def test_ctrl_c_while_encoding(tmp_path: Path) -> None:
    with (tmp_path / "x.txt").open("w") as file:
        file.writelines(
            f"a sentence about the number {number} and its many neighbours\n" for number in range(300_000)
        )
    process = subprocess.Popen(
        [*COMMAND, "build", tmp_path / "x.txt", "-o", tmp_path / "index"], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 120
        while not any(path.stat().st_size for path in tmp_path.glob("index/segments/.building/vectors.f32")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        _, error = process.communicate(timeout=60)
        assert time.monotonic() - begin < 20
        assert process.returncode == 130
        assert "documents of" in error
        assert "are encoded; run the same command again to resume" in error
        assert not (tmp_path / "index" / "CURRENT").exists()
    finally:
        process.kill()


def test_importing_embedkit_loads_no_faiss() -> None:
    code = "import sys, embedkit.cli, embedkit.index; print('faiss' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["False", "False"]
