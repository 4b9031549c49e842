"""Streams and graphs of `CudaDevice` on a stand-in for torch.cuda."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from core_stage import staged
from eager_device import PlainModel
from fake_cuda import CapturedDevice, FakeCuda, install

import embedkit.encoder
from embedkit import Encoder
from embedkit.backends.cuda_device import out_of_memory
from embedkit.backends.packed_stage import PackedStage
from embedkit.model_folder.folder import open_folder

Make = Callable[..., Path]
pytestmark = pytest.mark.filterwarnings("ignore:.*longer than max_length")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    torch.set_num_threads(1)
    monkeypatch.setattr(embedkit.encoder, "_WINDOW", 130)
    return install(monkeypatch)


@pytest.fixture
def few(texts: list[str]) -> list[str]:
    return texts[:50]


class Model(PlainModel):
    """Its matrix products need a cuBLAS workspace."""

    def __init__(self, folder: Path, cuda: FakeCuda) -> None:
        super().__init__(folder)
        self.cuda = cuda

    def hidden(self, batch: Any) -> Any:
        self.cuda.multiply()
        return super().hidden(batch)


def on(cuda: FakeCuda, folder: Path) -> tuple[Encoder, Model]:
    model, device = Model(folder, cuda), CapturedDevice("cpu")
    return staged(
        folder, PackedStage(open_folder(folder), model, device, precision="fp32", budget=600)
    ), model  # type: ignore[arg-type]


def test_graphs_are_captured_without_emptying_caches(
    make_model: Make, few: list[str], cuda: FakeCuda
) -> None:
    folder = make_model()
    encoder, _ = on(cuda, folder)
    expected = Encoder(folder).encode(few)
    for _ in range(3):
        np.testing.assert_allclose(encoder.encode(few), expected, rtol=0, atol=1e-5)
    assert cuda.replays and cuda.emptied == cuda.synchronized == 0


@pytest.mark.parametrize("step", ["begin", "run", "end"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_capture_leaves_the_other_graphs(
    make_model: Make, few: list[str], cuda: FakeCuda, step: str, error: type[BaseException]
) -> None:
    folder = make_model()
    encoder, model = on(cuda, folder)
    expected = Encoder(folder).encode(few)
    for query in ("day", "water", "sunny day"):
        encoder.encode(query)
    assert cuda.replays == 1 and encoder.describe()["cuda_graphs"] == 1
    left = 1

    def fail(now: str) -> None:
        nonlocal left
        if now == step and left and (now != "run" or cuda.capturing is not None):
            left -= 1
            raise error("stop")

    cuda.fail = fail
    model.fail = lambda tokens: fail("run")
    try:
        for _ in range(3):
            encoder.encode(few)
    except KeyboardInterrupt:
        assert error is KeyboardInterrupt
    assert left == 0
    gc.collect()
    for query in ("day", "water"):
        np.testing.assert_allclose(encoder.encode(query), Encoder(folder).encode(query), rtol=0, atol=1e-5)
    for _ in range(3):
        np.testing.assert_allclose(encoder.encode(few), expected, rtol=0, atol=1e-5)


def test_memory_that_caches_hold_is_given_to_the_capture(
    make_model: Make, few: list[str], cuda: FakeCuda
) -> None:
    folder = make_model()
    encoder, model = on(cuda, folder)

    def fail(tokens: int) -> None:
        if cuda.capturing is not None and not cuda.emptied:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.fail = fail
    for _ in range(3):
        encoder.encode(few)
    assert encoder.describe()["token_budget"] == 592 and encoder.describe()["cuda_graphs"]
    assert cuda.emptied == 1


def test_settings_of_the_callers_torch_change_nothing(
    make_model: Make, few: list[str], cuda: FakeCuda
) -> None:
    folder = make_model()
    expected = on(cuda, folder)[0].encode(few)
    encoder = on(cuda, folder)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        np.testing.assert_array_equal(encoder.encode(few), expected)
    encoder = on(cuda, folder)[0]
    torch.set_default_dtype(torch.float64)
    try:
        np.testing.assert_array_equal(encoder.encode(few), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_batch_in_the_callers_inference_mode_spoils_no_later_one(
    make_model: Make, few: list[str], cuda: FakeCuda
) -> None:
    encoder = on(cuda, make_model())[0]
    with torch.inference_mode():
        first = encoder.encode(few)
    for _ in range(3):
        np.testing.assert_array_equal(encoder.encode(few), first)


def test_pinned_memory_lies_on_the_host(cuda: FakeCuda) -> None:
    device = CapturedDevice("cpu")
    with torch.device("meta"):
        assert device.staging(8).host.device.type == "cpu"
        host, _ = device.download(torch.zeros(3, device="cpu"), device.mark())
    assert host.device.type == "cpu"


def test_encoders_do_not_share_a_stream_with_graphs(make_model: Make, few: list[str], cuda: FakeCuda) -> None:
    folder = make_model()
    devices = [CapturedDevice("cpu") for _ in range(40)]
    exclusive = [device for device in devices if device._streams.exclusive]
    computing = {device._compute.cuda_stream for device in exclusive}
    assert 20 <= len(computing) == len(exclusive) < 40
    for device in devices:
        assert not computing & {device._copy.cuda_stream, device._deliver.cuda_stream}
        assert device in exclusive or device._compute.cuda_stream not in computing
    # Without a stream of its own it has no graphs.
    stage = PackedStage(open_folder(folder), Model(folder, cuda), devices[-1], precision="fp32", budget=600)  # type: ignore[arg-type]
    encoder = staged(folder, stage)
    for _ in range(3):
        np.testing.assert_allclose(encoder.encode(few), Encoder(folder).encode(few), rtol=0, atol=1e-5)
    assert cuda.replays == encoder.describe()["cuda_graphs"] == 0
    del devices, exclusive, device, stage, encoder
    gc.collect()
    assert CapturedDevice("cpu")._streams.exclusive


def test_graphs_outlive_other_encoders(make_model: Make, cuda: FakeCuda) -> None:
    """Those of a closed encoder are freed with their workspaces, which no other uses."""
    folder = make_model()
    encoder, _ = on(cuda, folder)
    others = [on(cuda, folder)[0] for _ in range(14)]
    for one in (encoder, *others):
        for query in ("day", "water", "sunny day"):
            one.encode(query)
    assert cuda.replays == 15
    for other in others:
        other.close()
    del others, one, other
    gc.collect()
    encoder.encode("day")
    assert cuda.replays == 16


def test_graphs_replay_in_any_thread(make_model: Make, few: list[str], cuda: FakeCuda) -> None:
    """Each thread has its own cuBLAS handle, which a capture cannot open."""
    folder = make_model()
    encoder, _ = on(cuda, folder)
    expected = Encoder(folder).encode(few)
    results: list[Any] = []
    for _ in range(4):
        thread = threading.Thread(target=lambda: results.append(encoder.encode(few)))
        thread.start()
        thread.join()
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)
    assert len(results) == 4 and cuda.replays


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_out_of_memory(message: str, expected: bool) -> None:
    assert out_of_memory(RuntimeError(message)) is expected
