"""The GPU benchmarks where there is no GPU: what they compute from what they measure, and a dry run."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in [
        m for m in sys.modules if m in ("common", "gpu", "lengths", "shapes", "hpd") or m[:5] == "peers"
    ]:
        del sys.modules[name]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import gpu

    monkeypatch.setattr(gpu, "name", lambda: "NVIDIA H200")
    return gpu


class FakeWorker:
    """Encodes 1000 texts a second and one query in a millisecond."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def texts(self, texts: list[str]) -> None:
        self.sent = texts

    def alone(self, batch: int | None) -> float:
        return 0.004

    def one_by_one(self) -> list[float]:
        return [0.001] * len(self.sent)


def test_utilisation_and_one_query(gpu: ModuleType) -> None:
    worker: Any = FakeWorker()
    texts, counts = ["a", "b", "c", "d"], [8, 16, 16, 24]
    measured = gpu.measure({"own": worker}, {"own": None}, texts, counts, rounds=3)
    assert worker.sent == ["b", "c"]  # of the median length
    assert measured["own"]["one_query"] == {"tokens": 16, "p50_ms": 1.0, "p99_ms": 1.0}
    alone = measured["own"]["alone"]
    assert (alone["sentences_per_s"].median, alone["tokens_per_s"]) == (1000, 16000)
    gpu.add_utilisation(measured, operations_per_token=989e7, peaks={"bf16": 632_960.0, "fp16": 1.0})
    assert alone["mfu"] == pytest.approx(0.16)
    assert alone["share_of_measured_peak"] == pytest.approx(0.25)
    shown = gpu.show([{"name": "embedkit", **measured["own"]}])
    assert "16.0%" in shown and "1.000 / 1.000" in shown


def test_operations_of_texts(tmp_path: Path) -> None:
    import shapes

    config = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = 2 * 2 * (4 * 8 * 8 + 2 * 8 * 32)
    assert shapes.flops(tmp_path, [3, 5]) == 8 * weights + 2 * 4 * 8 * (9 + 25)


@pytest.mark.parametrize("given", ["12", "5-20"])
def test_texts_have_the_lengths_that_were_asked_for(given: str) -> None:
    pytest.importorskip("tokenizers")
    import common
    import lengths
    from peers.base import Tokenizer

    import embedkit

    folder = Path(embedkit.__file__).parent / "models" / "all-MiniLM-L6-v2-int8"
    wanted = lengths.wanted(given, 40)
    texts = lengths.texts_of_lengths(folder, common.sample_texts(100), wanted)
    assert [len(row) for row in Tokenizer(folder)(texts)] == wanted
    assert len(set(texts)) == 40


@pytest.mark.parametrize("given", ["x", "2", "9-5"])
def test_bad_lengths_are_named(given: str) -> None:
    import lengths

    with pytest.raises(SystemExit, match=f"--lengths '{given}'"):
        lengths.wanted(given, 1)


def test_a_projected_folder_is_what_sentence_transformers_reads(make_model: Any, tmp_path: Path) -> None:
    transformer = pytest.importorskip("sentence_transformers").SentenceTransformer
    import shapes

    from embedkit import Encoder

    source = make_model(hidden=40, heads=4, intermediate=72, layers=1)
    folder = shapes.project(source, 7, tmp_path)
    assert shapes.parameters(folder) == shapes.parameters(source) + 7 * 40 + 7
    theirs = transformer(str(folder), device="cpu").encode(["the weather", "people"])
    assert theirs.shape == (2, 7)
    np.testing.assert_allclose(
        Encoder(str(folder), precision="fp32").encode(["the weather", "people"]), theirs, atol=2e-6
    )


def test_every_kernel_passes_the_dry_run(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    if triton.__version__ < "3.7" and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip(
            "the interpreter of Triton before 3.7 cannot loop up to a loaded value with NumPy 2.4 and later"
        )
    file = tmp_path / "kernels.json"
    script = [
        sys.executable,
        str(BENCHMARKS / "kernels.py"),
        "--device",
        "cuda",
        "--dry-run",
        "--json",
        str(file),
    ]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    own = {row["op"]: row["error"] for row in rows if row["form"] == "embedkit"}
    assert len(own) == 6
    assert all(error < (0.1 if op == "quantized_linear" else 1e-5) for op, error in own.items())


def test_every_kernel_of_the_core_is_timed(tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    script = [sys.executable, str(BENCHMARKS / "kernels.py"), "--seconds", "0.003", "--json", str(file)]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert {row["op"] for row in rows} >= {"int8_linear", "fp32_linear", "attention", "gelu", "layer_norm"}
    assert all(row["rate"] > 0 and row["ceiling"] > 0 for row in rows)
    script = [sys.executable, str(BENCHMARKS / "kernels.py"), "--op", "softmax"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=300)
    assert "no operation 'softmax' on this device; there are int8_linear" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gemm", 1, 1), "operation is 'gemm'; known are int8_linear"),
        (("gelu", 0, 1), "rows and columns must be"),
        (("gelu", 1, 1, 5), "out_features belongs to the products"),
        (("int8_linear", 1, 1), "out_features belongs to the products"),
        (("rotate", 2, 3), "give even columns"),
        (("gelu", 1, 1, 0, "sse9"), "isa is 'sse9'; this machine has reference"),
    ],
)
def test_bad_operands_of_a_kernel_are_named(arguments: tuple[Any, ...], message: str) -> None:
    from embedkit import _core

    with pytest.raises(ValueError, match=message):
        _core.measure_kernel(*arguments)
