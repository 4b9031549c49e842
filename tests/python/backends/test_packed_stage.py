"""The encode stage of GPUs on a simulated device: graphs, staging, memory, several devices, errors."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from core_stage import CoreStage, staged
from eager_device import EagerDevice, PlainModel, cosine, packed

import embedkit.encoder
from embedkit import Encoder, Index
from embedkit.backends import cuda, cuda_device, cuda_engine, packed_stage
from embedkit.backends.buckets import SMALL
from embedkit.backends.cuda import choose_precision
from embedkit.backends.engine import tokenizer_of
from embedkit.backends.many import ManyStages
from embedkit.backends.packed_model import DTYPES
from embedkit.backends.packed_stage import PackedStage
from embedkit.index.encoder import load_encoder
from embedkit.model_folder.folder import open_folder
from embedkit.model_folder.static import StaticFiles

Make = Callable[..., Path]
pytestmark = pytest.mark.filterwarnings("ignore:.*longer than max_length")
RANGES = np.stack([np.full(32, -0.5), np.full(32, 0.5)])


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(embedkit.encoder, "_WINDOW", 130)


@pytest.mark.parametrize("include_prompt", [True, False])
def test_vectors_of_the_cpu(make_model: Make, texts: list[str], include_prompt: bool) -> None:
    folder = make_model(include_prompt=include_prompt)
    encoder, device, model = packed(folder)
    for prompt in ("", "the night"):
        expected = Encoder(folder).encode(texts, prompt=prompt)
        assert cosine(encoder.encode(texts, prompt=prompt), expected) >= 0.99999
    assert device.replayed >= 4 and device.captured >= 2
    assert len(device.stagings) == 2 and device.stagings[0].copied.waited >= 2
    for used, all_ in model.batches:
        # The largest graph is captured before other large ones, with no text in it.
        # The first batch of a size may use the graph of a larger one.
        assert all_ <= SMALL or all_ - used <= 0.25 * all_ or (used, all_) == (0, 592)
    described = encoder.describe()
    assert described["cuda_graphs"] == device.captured and described["token_budget"] == 592
    assert described["batch_memory_bytes"] > 2 * 592 * (7 * 32 + 64) * 4 + (32 << 20)
    assert described["pinned_memory_bytes"] > 3 * 160 * 32 * 4
    assert described["precision"] == "fp32" and described["stages"]["encode"] > 0


def test_one_query_replays_a_small_graph(make_model: Make) -> None:
    folder = make_model()
    encoder, device, model = packed(folder)
    expected = Encoder(folder)
    for query in ("day", "sunny day", "water", "naïve café"):
        np.testing.assert_allclose(encoder.encode(query), expected.encode(query), rtol=0, atol=1e-5)
    assert {size for _, size in model.batches} == {16}
    assert (device.captured, device.replayed, device.uploads) == (1, 2, 4)


@pytest.mark.parametrize("include_prompt", [True, False])
def test_warm_up_captures_the_usual_sizes(make_model: Make, texts: list[str], include_prompt: bool) -> None:
    folder = make_model(include_prompt=include_prompt)
    encoder, device, model = packed(folder, budget=2000)
    encoder.warm_up()
    kinds = 1 if include_prompt else 2
    stage = encoder._engine.stage  # type: ignore[attr-defined]
    usual = stage._buckets.usual(0.25)
    assert device.captured == kinds * len(usual) == encoder.describe()["cuda_graphs"]
    assert encoder.describe()["texts"] == 0
    model.batches.clear()
    encoder.encode("sunny day")
    expected = Encoder(folder).encode(texts[:80])
    np.testing.assert_allclose(encoder.encode(texts[:80]), expected, rtol=0, atol=1e-5)
    assert device.captured == kinds * len(usual) and set(usual) >= {size for _, size in model.batches}
    encoder.warm_up()
    assert device.captured == kinds * len(usual)


def test_warm_up_without_memory_halves_the_budget(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    model = PlainModel(folder)

    def fail(tokens: int) -> None:
        if tokens > 600:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.fail = fail
    encoder, _, _ = packed(folder, budget=2000, model=model)
    with pytest.warns(UserWarning, match="out of memory: batches have 992 tokens from now on"):
        encoder.warm_up()
    described = encoder.describe()
    assert described["token_budget"] == 496 and described["cuda_graphs"] > 4


@pytest.mark.parametrize("graphs", [False, True])
def test_an_interrupted_batch_keeps_its_staging_memory(
    make_model: Make, monkeypatch: pytest.MonkeyPatch, graphs: bool
) -> None:
    """What it started reads it, so that the next batch takes the other, and the one after that waits."""
    encoder, device, model = packed(make_model(), budget=600)
    log: list[tuple[str, int]] = []

    def note(name: str) -> None:
        method = getattr(device, name)

        def noted(staging: Any, *rest: Any) -> None:
            log.append((name, device.stagings.index(staging)))
            method(staging, *rest)

        monkeypatch.setattr(device, name, noted)

    def interrupt(tokens: int) -> None:
        raise KeyboardInterrupt

    note("upload")
    note("consumed")
    options: dict[str, Any] = {} if graphs else {"output_value": "token_embeddings"}
    model.fail = interrupt
    with pytest.raises(KeyboardInterrupt):
        encoder.encode("sunny day", **options)
    model.fail = None
    for _ in range(3):
        encoder.encode("sunny day", **options)
    assert log == [(name, number) for number in (0, 1, 0, 1) for name in ("upload", "consumed")]


def test_a_remainder_replays_a_larger_graph(make_model: Make) -> None:
    folder = make_model()
    encoder, _, _ = packed(folder)
    stage = encoder._engine.stage  # type: ignore[attr-defined]
    larger, own = stage._buckets.sizes[-1], stage._buckets.sizes[-2]
    layout = packed_stage._Layout(larger, stage._buckets.sequences(larger), False)
    assert stage._captured(own, own, 10, False) == own
    stage._graphs[layout] = lambda: None
    assert stage._captured(own, own, 10, True) == own
    assert stage._captured(own, own, stage._buckets.sequences(larger) + 1, False) == own
    assert stage._captured(own, larger // 2, 10, False) == own
    assert stage._captured(own, own, 10, False) == larger
    assert stage._captured(own, own, 10, False) == own
    assert stage._captured(16, 16, 2, False) == 16


def same(got: Any, want: Any, dtype: str) -> None:
    """Quantized values may fall on the other side of a step."""
    assert got.dtype == want.dtype and got.shape == want.shape
    if dtype == "float32":
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    else:
        assert (got != want).mean() < 0.002


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_outputs(make_model: Make, texts: list[str], dtype: Any, tensor: bool) -> None:
    folder = make_model()
    encoder, _, _ = packed(folder)
    for kept in ({}, {"truncate_dim": 11, "normalize_embeddings": True}):
        width = kept.get("truncate_dim", 32)
        ranges = RANGES[:, :width] if dtype in ("int8", "uint8") else None
        options = {"output_dtype": dtype, "ranges": ranges, **kept}
        result = encoder.encode(texts, convert_to_tensor=tensor, **options)  # type: ignore[call-overload]
        if tensor:
            assert isinstance(result, torch.Tensor) and not result.is_inference()
        same(np.asarray(result), Encoder(folder).encode(texts, **options), dtype)  # type: ignore[call-overload]


def test_ranges_that_the_caller_changes(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    encoder, _, _ = packed(folder)
    ranges = RANGES.astype(np.float32)
    for _ in range(2):
        got = encoder.encode(texts[:20], output_dtype="int8", ranges=ranges)
        want = Encoder(folder).encode(texts[:20], output_dtype="int8", ranges=ranges.copy())
        same(got, want, "int8")
        ranges *= 4  # in place


def test_other_shapes_of_results(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    encoder, _, _ = packed(folder)
    core = Encoder(folder)
    for of_tensors in (False, True):
        tokens = encoder.encode(texts, output_value="token_embeddings", convert_to_tensor=of_tensors)
        for got, want in zip(tokens, core.encode(texts, output_value="token_embeddings"), strict=True):
            assert isinstance(got, torch.Tensor) == of_tensors
            np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=1e-4)
    rows = encoder.encode(texts[:3], convert_to_numpy=False)
    assert [row.shape for row in rows] == [(32,)] * 3 and all(isinstance(row, torch.Tensor) for row in rows)
    assert encoder.encode("a", convert_to_tensor=True).shape == (32,)
    assert encoder.encode([], convert_to_tensor=True).shape == (0,)
    assert encoder.encode([]).shape == (0,)
    blocks = list(encoder.encode_iter(texts, block_size=50))
    np.testing.assert_allclose(np.concatenate(blocks), core.encode(texts), rtol=0, atol=1e-5)


@pytest.mark.parametrize("tensor", [False, True])
def test_windows_of_a_text(make_model: Make, texts: list[str], tensor: bool) -> None:
    folder = make_model(include_prompt=False)
    options: dict[str, Any] = {"max_length": 9, "on_overflow": "window"}
    encoder, _, _ = packed(folder, **options)
    result = encoder.encode(texts, prompt="the night", normalize_embeddings=True, convert_to_tensor=tensor)
    expected = Encoder(folder, **options).encode(texts, prompt="the night", normalize_embeddings=True)
    np.testing.assert_allclose(np.asarray(result), expected, rtol=0, atol=1e-5)


def test_out_of_memory_halves_the_budget(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    model = PlainModel(folder)

    def fail(tokens: int) -> None:
        if tokens > 300:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.fail = fail
    encoder, device, _ = packed(folder, budget=2000, model=model)
    with pytest.warns(
        UserWarning, match="out of memory: batches have 992 tokens from now on, not 2000"
    ) as seen:
        result = encoder.encode(texts)
    assert len([warning for warning in seen if "out of memory" in str(warning.message)]) == 1
    np.testing.assert_allclose(result, Encoder(folder).encode(texts), rtol=0, atol=1e-5)
    assert encoder.describe()["token_budget"] == 240 and device.resets == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(encoder.encode(texts[:50]), result[:50], rtol=0, atol=1e-5)
    model.fail = lambda tokens: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(
        MemoryError, match=r"no memory for a batch of \d+ tokens; stop other users.*precision='fp16'"
    ):
        encoder.encode(texts)
    model.fail = None
    np.testing.assert_allclose(encoder.encode(texts), result, rtol=0, atol=1e-5)


def test_memory_is_for_the_texts_not_for_all_positions(make_model: Make) -> None:
    folder = make_model(max_positions=5000)
    model = PlainModel(folder)

    def fail(tokens: int) -> None:
        if tokens > 2000:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.fail = fail
    encoder, _, _ = packed(folder, budget=8000, model=model, max_length=4000)
    short, long = ["a red fox"] * 1500, "the night " * 1500
    reference = Encoder(folder, max_length=4000)
    with pytest.warns(UserWarning, match="out of memory"):
        np.testing.assert_allclose(encoder.encode(short), reference.encode(short), rtol=0, atol=1e-5)
    budget = encoder.describe()["token_budget"]
    assert 500 < budget <= 2000
    with pytest.raises(MemoryError, match="no memory for a batch of 30"):
        encoder.encode(["a", long])
    model.fail = None
    texts = [*short, long]
    np.testing.assert_allclose(encoder.encode(texts), reference.encode(texts), rtol=0, atol=1e-5)


def test_a_text_longer_than_the_budget_raises_it(make_model: Make) -> None:
    folder = make_model(max_positions=5000)
    encoder, _, _ = packed(folder, budget=200, max_length=4000)
    texts = ["a red fox", "the night " * 700, "a"] * 3
    expected = Encoder(folder, max_length=4000).encode(texts)
    np.testing.assert_allclose(encoder.encode(texts), expected, rtol=0, atol=1e-5)
    assert encoder.describe()["token_budget"] == 1408


@pytest.mark.parametrize(
    "message",
    ["CUDA error: out of memory", "Triton Error [CUDA]: out of memory", "CUBLAS_STATUS_ALLOC_FAILED"],
)
def test_memory_outside_torch_runs_out(make_model: Make, texts: list[str], message: str) -> None:
    folder = make_model()
    encoder, device, _ = packed(folder)

    def fail() -> None:
        if encoder.describe()["token_budget"] > 300:
            raise RuntimeError(message)

    device.fail_capture = fail
    with pytest.warns(UserWarning, match="out of memory: batches have 288 tokens from now on, not 592"):
        result = encoder.encode(texts)
    np.testing.assert_allclose(result, Encoder(folder).encode(texts), rtol=0, atol=1e-5)
    assert encoder.describe()["token_budget"] == 288 and device.captured


def test_a_capture_that_fails_leaves_the_batch_and_the_other_graphs(
    make_model: Make, texts: list[str]
) -> None:
    folder = make_model()
    encoder, device, _ = packed(folder)
    failed = 0

    def fail() -> None:
        nonlocal failed
        failed += 1
        if failed == 1:
            raise RuntimeError("operation failed due to a previous error during capture")

    device.fail_capture = fail
    expected = Encoder(folder).encode(texts)
    for _ in range(3):
        np.testing.assert_allclose(encoder.encode(texts), expected, rtol=0, atol=1e-5)
    assert device.captured == failed - 1 == encoder.describe()["cuda_graphs"] > 0 and device.resets == 0
    model = PlainModel(folder)
    encoder, _, _ = packed(folder, model=model)
    model.fail = lambda tokens: (_ for _ in ()).throw(RuntimeError("an illegal instruction"))
    with pytest.raises(RuntimeError, match="an illegal instruction"):
        encoder.encode(texts)


def test_normalized_vectors_are_not_normalized_again(
    make_model: Make, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    finish = packed_stage.finish_on_device

    def spy(vectors: Any, request: Any, ranges: Any) -> Any:
        seen.append(request.normalize)
        return finish(vectors, request, ranges)

    monkeypatch.setattr(packed_stage, "finish_on_device", spy)
    for normalize, width, expected in ((True, None, False), (True, 11, True), (False, None, True)):
        folder = make_model(normalize=normalize)
        seen.clear()
        packed(folder)[0].encode(texts[:3], normalize_embeddings=True, truncate_dim=width)
        assert set(seen) == {expected}


def test_several_devices_keep_the_order(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    core = Encoder(folder)
    stages = [CoreStage(folder, ahead=1, texts=3), CoreStage(folder, ahead=0, texts=3)]
    many = ManyStages(stages)
    names = [thread.name for thread in threading.enumerate()]
    assert {"embedkit-device-0", "embedkit-device-1"} <= set(names)
    encoder = staged(folder, many)
    np.testing.assert_array_equal(encoder.encode(texts * 3), core.encode(texts * 3))
    assert all(stage.batches for stage in stages) and len(encoder.describe()["devices"]) == 2
    assert [stage.threads for stage in stages] == [{"embedkit-device-0"}, {"embedkit-device-1"}]


def test_an_error_of_one_device_stops_the_others(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    stages = [CoreStage(folder, texts=3), CoreStage(folder, texts=3)]

    def fail(batch: int) -> None:
        if batch == 3:
            raise RuntimeError("the device is gone")

    stages[1].fail = fail
    encoder = staged(folder, ManyStages(stages))
    with pytest.raises(RuntimeError, match="the device is gone"):
        encoder.encode(texts * 20)
    assert sum(map(len, (stage.batches for stage in stages))) < 1500
    np.testing.assert_array_equal(encoder.encode(texts), Encoder(folder).encode(texts))


def test_idle_devices_hold_no_batch(make_model: Make) -> None:
    folder = make_model()
    batches: weakref.WeakSet[Any] = weakref.WeakSet()

    class Noted(CoreStage):
        def submit(self, window: Any, order: Any, request: Any) -> Any:
            batch = super().submit(window, order, request)
            batches.add(batch)
            return batch

    encoder = staged(folder, ManyStages([Noted(folder, ahead=2), Noted(folder, ahead=2)]))
    assert len(encoder.encode(["sunny day"] * 60)) == 60
    until = time.monotonic() + 20
    while len(batches) and time.monotonic() < until:
        time.sleep(0.05)
    assert not len(batches)


def test_the_threads_of_devices_end(make_model: Make) -> None:
    folder = make_model()

    def devices() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("embedkit-device")]

    before = set(devices())
    encoder = staged(folder, ManyStages([CoreStage(folder), CoreStage(folder)]))
    encoder.encode("day")
    own = set(devices()) - before
    assert len(own) == 2
    encoder.close()
    for thread in own:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_raises_with_a_remedy(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, _, _ = packed(make_model())
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)  # as in a child
    with pytest.raises(
        RuntimeError, match=r"CUDA does not survive a fork.*get_context\('spawn'\) or 'forkserver'"
    ):
        encoder.encode("day")


def test_the_nearest_precision_is_chosen(make_model: Make) -> None:
    folder = make_model()
    opened = open_folder(folder)
    tokenizer = Encoder(folder)._engine.tokenizer
    loaded: list[str] = []

    def choice(spoil: str = "", refuse: str = "") -> str:
        def load(precision: str, device: Any) -> Any:
            loaded.append(precision)
            if precision == refuse == "fp32":
                raise torch.OutOfMemoryError("CUDA out of memory")
            if precision == refuse:
                raise ValueError(f"tensor 'x' holds values beyond {precision}")
            model = PlainModel(folder, DTYPES[precision])
            if precision == spoil:
                hidden = model.hidden
                model.hidden = lambda batch: hidden(batch) * torch.inf  # type: ignore[method-assign]
            return model

        return choose_precision(opened, tokenizer, EagerDevice(), load, 64)  # type: ignore[arg-type]

    assert choice() == "fp16"
    assert loaded == ["fp32", "fp16", "bf16"]
    assert choice(spoil="fp16") == "bf16"
    assert choice(refuse="fp16") == "bf16"
    assert choice(refuse="fp32") == "bf16"


def test_fp32_is_not_computed_in_fewer_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the setting of torch from 2.9 on, and by the one before."""
    cuda.check_products()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(ValueError, match="TF32, with 10 mantissa bits instead of 23; set it to"):
            cuda.check_products()
    finally:
        torch.set_float32_matmul_precision("highest")
    cuda.check_products()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", pytest.fail)  # it raises where both are used
    for setting, refused in (("tf32", True), ("none", False), ("ieee", False)):
        monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(fp32_precision=setting))
        with pytest.raises(ValueError, match="set it to 'ieee'") if refused else nullcontext():
            cuda.check_products()
    monkeypatch.setattr(torch.backends.cuda, "matmul", object())
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    with pytest.raises(ValueError, match=r"is 'high', .*; set it to 'highest'"):
        cuda.check_products()


def test_a_setting_that_changes_later_is_refused(make_model: Make, texts: list[str]) -> None:
    encoder, _, _ = packed(make_model(), check=cuda.check_products)
    encoder.encode(texts[:3])
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(ValueError, match="TF32, with 10 mantissa bits instead of 23; set it to"):
            encoder.encode(texts[:3])
    finally:
        torch.set_float32_matmul_precision("highest")
    encoder.encode(texts[:3])


def test_calls_from_several_threads(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    encoder, _, _ = packed(folder)
    expected = Encoder(folder).encode(texts)
    results: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: encoder.encode(texts[i:])})) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        np.testing.assert_allclose(results[i], expected[i:], rtol=0, atol=1e-5)


def test_the_stage_alone_takes_a_batch_beyond_its_budget(make_model: Make, texts: list[str]) -> None:
    """Another device's budget may be larger than this one's."""
    folder = make_model()
    stage = PackedStage(open_folder(folder), PlainModel(folder), EagerDevice(), precision="fp32", budget=64)  # type: ignore[arg-type]
    stage.cut = lambda lengths, most: [0, len(lengths)]  # type: ignore[method-assign]
    np.testing.assert_allclose(
        staged(folder, stage).encode(texts), Encoder(folder).encode(texts), rtol=0, atol=1e-5
    )


@pytest.fixture
def devices_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `Encoder` open simulated CUDA devices."""

    def find(names: Any) -> tuple[str, ...]:
        return tuple("cuda:0" if name == "cuda" else name for name in names)

    def model(folder: Any, precision: str, device: Any) -> PlainModel:
        return PlainModel(folder.transformer, DTYPES[precision])

    monkeypatch.setattr(cuda_device, "find_devices", find)
    monkeypatch.setattr(cuda, "find_devices", find)
    monkeypatch.setattr(cuda, "CudaDevice", lambda name: EagerDevice())
    monkeypatch.setattr(cuda, "PackedModel", model)


@pytest.mark.usefixtures("devices_everywhere")
def test_the_encoder_of_a_device(make_model: Make, texts: list[str], tmp_path: Path) -> None:
    folder = make_model()
    encoder = Encoder(folder, device="cuda", precision="fp32")
    expected = Encoder(folder).encode(texts)
    np.testing.assert_allclose(encoder.encode(texts, device="cuda"), expected, rtol=0, atol=1e-5)
    assert encoder.device == "cuda:0" and "device='cuda:0'" in repr(encoder)
    for other in ("cpu", "cuda:1"):
        with pytest.raises(ValueError, match=f"device='{other}': this encoder is on 'cuda:0'"):
            encoder.encode("a", device=other)
    restored = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(restored.encode(texts), encoder.encode(texts))
    assert restored.describe()["device"] == "cuda:0" and restored.describe()["precision"] == "fp32"
    assert copy.deepcopy(encoder).encode("day").shape == (32,)
    encoder.save(tmp_path / "saved")
    np.testing.assert_array_equal(Encoder(tmp_path / "saved").encode(texts), expected)
    with pytest.raises(
        ValueError, match="unknown precision='fp64' on 'cuda:0'; expected one of 'auto', 'fp32'"
    ):
        Encoder(folder, device="cuda", precision="fp64")


@pytest.mark.usefixtures("devices_everywhere")
def test_a_static_model_stays_on_the_cpu(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_engine, "check_cuda", lambda names: names)
    folder = open_folder(make_model())
    static = StaticFiles(folder.path / "model.safetensors", "embeddings", "F32", None)
    with pytest.raises(ValueError, match=r"is a static model, .*; use device='cpu'"):
        cuda_engine.CudaEngine(replace(folder, static=static), ["cuda:0"], "auto")


@pytest.mark.usefixtures("devices_everywhere")
def test_the_encoder_of_several_devices(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    encoder = Encoder(folder, device=["cuda:0", "cuda:1"])
    assert encoder.device == ["cuda:0", "cuda:1"]
    described = encoder.describe()
    assert described["precision"] == "fp16"  # chosen on the first, used on all
    assert [device["precision"] for device in described["devices"]] == ["fp16", "fp16"]
    expected = Encoder(folder).encode(texts)
    for tensor in (False, True):
        assert cosine(encoder.encode(texts, convert_to_tensor=tensor), expected) >= 0.9999
    assert encoder.encode("day", device=["cuda:0", "cuda:1"]).shape == (32,)


@pytest.mark.usefixtures("devices_everywhere")
def test_token_embeddings_of_all_devices_lie_on_the_first(
    make_model: Make, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(make_model())
    monkeypatch.setattr(cuda, "CudaDevice", EagerDevice)
    many = cuda.open_stage(folder, tokenizer_of(folder), ["cuda:0", "cuda:1"], "fp32", 64)
    assert isinstance(many, ManyStages)
    assert [stage._target for stage in many._stages] == [torch.device("cuda:0")] * 2  # type: ignore[attr-defined]

    elsewhere = torch.device("meta")
    stages = [
        PackedStage(
            folder, PlainModel(folder.path), EagerDevice(), precision="fp32", budget=64, target=elsewhere
        )
        for _ in range(2)
    ]
    encoder = staged(folder.path, ManyStages(stages))
    encoder._loaded.tensors = True  # type: ignore[union-attr]
    found = encoder.encode(texts[:40], output_value="token_embeddings", convert_to_tensor=True)
    assert {one.device for one in found} == {elsewhere}
    found = encoder.encode(texts[:40], output_value="token_embeddings")
    assert all(isinstance(one, np.ndarray) for one in found)


@pytest.mark.usefixtures("devices_everywhere")
def test_an_index_of_8_bits_is_asked_by_a_gpu_in_its_own(
    make_model: Make, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU's int8 is no precision of a GPU; a static model stays on the CPU."""
    pytest.importorskip("faiss")
    Index.build(tmp_path / "index", texts[6:20], Encoder(make_model(), precision="int8")).close()
    with Index.open(tmp_path / "index") as index:
        manifest = index.generation.manifest
    assert manifest.encoder.precision == "int8"
    encoder = load_encoder(manifest, None, 1, "cuda")
    assert (encoder.device, encoder.describe()["precision"]) == ("cuda:0", "fp16")
    monkeypatch.setattr("embedkit.index.encoder._is_static", lambda model: True)
    encoder = load_encoder(manifest, None, 1, "cuda")
    assert (encoder.device, encoder.describe()["precision"]) == ("cpu", "int8")


@pytest.mark.usefixtures("devices_everywhere")
def test_an_index_built_on_a_device_is_searched_without(
    make_model: Make, texts: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    folder = make_model()
    Index.build(tmp_path / "index", texts[6:], Encoder(folder, device="cuda", precision="bf16")).close()
    with Index.open(tmp_path / "index") as index:
        assert index.info()["precision"] == "bf16"
        assert index.search(texts[100], k=1)[0][0].text == texts[100]
        assert index.encoder.describe()["precision"] == "fp32"
