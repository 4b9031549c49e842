"""The GPU benchmarks without a GPU: what they compute from measurements, and a dry run."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


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


def test_utilization_and_one_query(gpu: ModuleType) -> None:
    worker: Any = FakeWorker()
    texts, counts = ["a", "b", "c", "d"], [8, 16, 16, 24]
    measured = gpu.measure({"own": worker}, {"own": None}, texts, counts, rounds=3)
    assert worker.sent == ["b", "c"]  # of the median length
    assert measured["own"]["one_query"] == {"tokens": 16, "p50_ms": 1.0, "p99_ms": 1.0}
    alone = measured["own"]["alone"]
    assert (alone["sentences_per_s"].median, alone["tokens_per_s"]) == (1000, 16000)
    measured["eight"] = {"alone": dict(alone)}
    peaks = {"bf16": 632_960.0, "fp16": 1.0, "fp8": 1_265_920.0}
    gpu.add_utilization(measured, 989e7, peaks, {"own": "bf16", "eight": "fp8"})
    assert measured["eight"]["alone"]["mfu"] == pytest.approx(0.08)
    assert measured["eight"]["alone"]["share_of_measured_peak"] == pytest.approx(0.125)
    assert alone["mfu"] == pytest.approx(0.16)
    assert alone["share_of_measured_peak"] == pytest.approx(0.25)
    shown = gpu.show([{"name": "embedkit", **measured["own"]}])
    assert "16.0%" in shown and "1.000 / 1.000" in shown


def test_a_candidate_that_fails_is_left_out(gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    from peers.worker import PeerFailed

    class Failing(FakeWorker):
        def alone(self, batch: int | None) -> float:
            raise PeerFailed("rival", "Traceback\n  no such kernel")

    workers: Any = {"own": FakeWorker(), "rival": Failing()}
    measured = gpu.measure(workers, {"own": None, "rival": 8}, ["a", "b"], [8, 8], rounds=2)
    assert "left out: rival: no such kernel" in capsys.readouterr().out
    assert "alone" not in measured["rival"] and measured["rival"]["one_query"]["p50_ms"] == 1.0
    gpu.add_utilization(measured, 1.0, {"bf16": 1.0}, {"own": "bf16", "rival": "fp16"})
    assert "rival" not in gpu.show([{"name": key, **one} for key, one in measured.items()])


def test_an_unresponsive_worker_is_killed(tmp_path: Path) -> None:
    from peers.worker import PeerFailed, Worker

    with (
        Worker("embedkit-fp32", tmp_path, 1, tmp_path, [0], patience=0.001) as worker,
        pytest.raises(PeerFailed, match=r"convert took more than 0\.001 s"),
    ):
        worker.convert()


@pytest.mark.parametrize(("name", "peak"), [("NVIDIA H100 NVL", 835e12), ("NVIDIA H100 80GB HBM3", 989e12)])
def test_the_data_sheet_of_a_gpu(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, peak: float
) -> None:
    monkeypatch.setattr(gpu, "name", lambda: name)
    measured: dict[str, Any] = {"own": {"alone": {"tokens_per_s": 1000}}}
    gpu.add_utilization(measured, peak / 1e4, {}, {"own": "bf16"})
    assert measured["own"]["alone"]["mfu"] == pytest.approx(0.1)


def test_the_order_of_scored_pairs(gpu: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    file = tmp_path / "sts.tsv"
    rows = ["A\tdev\t3\tx\ty", "A\tdev\t1\tx\tz", "A\ttest\t9\tx\tw", "B\ttest\t1\tx\ty", "B\ttest\t2\tx\tz"]
    file.write_text("\n".join(["task\tsplit\tscore\tsentence1\tsentence2", *rows]) + "\n")
    pairs = gpu.Sts(file)
    assert pairs.texts == ["x", "y", "z"]
    vectors = np.array([[1, 0], [0.8, 0.6], [0, 1]], dtype=np.float32)
    assert pairs.scores(vectors) == {"A": 100.0, "B": -100.0, "mean": 0.0}
    file.write_text("a\tb\n1\t2\n")
    with pytest.raises(SystemExit, match="no column 'sentence1'"):
        gpu.Sts(file)


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

    folder = Path(embedkit.__file__).parent / "models" / "embedkit-256-int8"
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
    result = json.loads(file.read_text())
    assert result["failed"] == []
    own = [row for row in result["rows"] if row["form"] == "embedkit"]
    assert len({row["op"] for row in own}) == 7
    assert all(row["bytes"] > 0 for row in own)
    rough = {"int8": 0.1, "ubinary": 0.1}  # a sum in another order can fall on the other side of a step
    for row in own:
        last = row["shape"].rpartition(", ")[2]
        bound = 0.1 if row["op"] == "quantized_linear" else rough.get(last, 1e-5)
        assert row["error"] < bound, row
    shapes = " | ".join(row["shape"] for row in own)
    for part in (
        "max",
        "cls",
        "int8",
        "ubinary",
        "forward and backward",
        "rotary",
        "relative bias",
        "heads of 26",
    ):
        assert part in shapes


def test_every_kernel_of_the_core_is_timed(tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    script = [sys.executable, str(BENCHMARKS / "kernels.py"), "--seconds", "0.003", "--json", str(file)]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert {row["op"] for row in rows} >= {"linear_int8", "linear_fp32", "attention", "gelu", "layer_norm"}
    assert all(row["rate"] > 0 and row["ceiling"] > 0 for row in rows)
    script = [sys.executable, str(BENCHMARKS / "kernels.py"), "--op", "softmax"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=300)
    assert "no operation 'softmax' on this device; there are linear_int8" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gemm", 1, 1), "operation is 'gemm'; expected one of linear_int8"),
        (("gelu", 0, 1), "rows and columns must be"),
        (("gelu", 1, 1, 5), "out_features belongs to the products"),
        (("linear_int8", 1, 1), "out_features belongs to the products"),
        (("rotate", 2, 3), "give even columns"),
        (("gelu", 1, 1, 0, "sse9"), "isa is 'sse9'; this machine has reference"),
    ],
)
def test_bad_operands_of_a_kernel_are_named(arguments: tuple[Any, ...], message: str) -> None:
    from embedkit import _core

    with pytest.raises(ValueError, match=message):
        _core.measure_kernel(*arguments)
