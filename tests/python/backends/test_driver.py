"""Texts through an encode stage: the results of the core, in order, with errors and Ctrl-C where they belong."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_stage import CoreStage, staged

import embedkit.encoder
from embedkit import Encoder, _core
from embedkit.backends.driver import Occupancy, encode_windows
from embedkit.backends.stage import Request, combine

Make = Callable[..., Path]
pytestmark = pytest.mark.filterwarnings("ignore:.*longer than max_length")
RANGES = np.stack([np.full(32, -0.5), np.full(32, 0.5)])


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedkit.encoder, "_WINDOW", 40)


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_embeddings": True, "truncate_dim": 11},
        {"output_dtype": "int8", "ranges": RANGES},
        {"output_dtype": "uint8", "ranges": RANGES},
        {"output_dtype": "binary"},
        {"output_dtype": "ubinary", "batch_size": 3},
        {"prompt": "query: the "},
    ],
)
def test_same_as_the_core(make_model: Make, texts: list[str], options: dict[str, Any], ahead: int) -> None:
    folder = make_model(include_prompt=False)
    stage = CoreStage(folder, ahead=ahead)
    np.testing.assert_array_equal(
        staged(folder, stage).encode(texts, **options), Encoder(folder).encode(texts, **options)
    )
    assert max(stage.batches) == options.get("batch_size", 7)
    assert stage.most_waiting == ahead + 1 and stage.waiting == 0


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("include_prompt", [False, True])
def test_windows_of_a_text(make_model: Make, texts: list[str], normalize: bool, include_prompt: bool) -> None:
    folder = make_model(normalize=normalize, include_prompt=include_prompt)
    options = {"max_length": 9, "on_overflow": "window"}
    stage = CoreStage(folder, ahead=1)
    for kept in ({}, {"truncate_dim": 8, "normalize_embeddings": True}, {"output_dtype": "binary"}):
        expected = Encoder(folder, **options).encode(texts, prompt="the night", **kept)
        result = staged(folder, stage, **options).encode(texts, prompt="the night", **kept)
        np.testing.assert_allclose(result, expected, rtol=0, atol=2e-7)


def test_combine_weighs_by_the_tokens_that_were_pooled() -> None:
    options = _core.EncodeOptions(
        threads=1, prefix_ids=[1], suffix_ids=[2], max_length=6, overflow="window",
        pool_skip=2,
    )  # fmt: skip
    window = _core.tokenize_window_ids([[5, 6, 7, 8, 9, 10], [5], []], options)
    assert window.lengths.tolist() == [6, 4, 3, 2]
    assert window.text_of_sequence.tolist() == [0, 0, 1, 2]
    assert window.pool_skip.tolist() == [2, 0, 2, 2]
    assert window.lengths is window.lengths and not window.lengths.flags.writeable
    parts = np.array([[1.0, 0.0], [0.0, 3.0], [2.0, 2.0], [5.0, 5.0]], np.float32)
    np.testing.assert_allclose(combine(parts, window, normalized=False), [[0.5, 1.5], [2.0, 2.0], [5.0, 5.0]])
    np.testing.assert_allclose(
        combine(parts, window, normalized=True)[0], np.array([1, 3]) / 10**0.5, rtol=1e-6
    )


def test_token_embeddings(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    expected = Encoder(folder).encode(texts, output_value="token_embeddings")
    result = staged(folder, CoreStage(folder, ahead=2)).encode(texts, output_value="token_embeddings")
    for got, want in zip(result, expected, strict=True):
        np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match="exclude each other"):
        staged(folder, CoreStage(folder), on_overflow="window").encode("a", output_value="token_embeddings")


def test_nothing_and_one_text(make_model: Make) -> None:
    folder = make_model()
    stage = CoreStage(folder)
    encoder = staged(folder, stage)
    assert encoder.encode([]).shape == (0,)
    assert encoder.encode([], output_value="token_embeddings") == []
    assert encoder.encode("day").shape == (32,)
    assert list(encoder.encode_iter([])) == []
    assert stage.threads == {threading.main_thread().name}


@pytest.mark.parametrize("block_size", [1, 7, 400])
def test_encode_iter(make_model: Make, texts: list[str], block_size: int) -> None:
    folder = make_model()
    read = 0

    def source() -> Iterator[str]:
        nonlocal read
        for text in texts:
            assert threading.current_thread() is threading.main_thread()
            read += 1
            yield text

    blocks, seen = [], 0
    for block in staged(folder, CoreStage(folder, ahead=1)).encode_iter(source(), block_size=block_size):
        blocks.append(block)
        seen += len(block)
        assert read <= seen + 4 * block_size + 1
    np.testing.assert_array_equal(np.concatenate(blocks), Encoder(folder).encode(texts))


def test_counts_and_occupancy(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    encoder, core = staged(folder, CoreStage(folder)), Encoder(folder)
    encoder.encode(texts)
    core.encode(texts)
    described, expected = encoder.describe(), core.describe()
    for name in ("texts", "tokens", "truncated", "precision", "max_length"):
        assert described[name] == expected[name]
    stages = described["stages"]
    assert set(stages) == {"seconds", "tokenize", "encode", "deliver"}
    assert stages["seconds"] > 0 and 0 <= stages["deliver"] <= 1


def test_errors_come_after_complete_windows(make_model: Make, texts: list[str]) -> None:
    folder = make_model()

    def broken() -> Iterator[str]:
        yield from texts[:25]
        raise OSError("the disk is gone")

    for source, error in ((broken, OSError), (lambda: iter([*texts[:25], 7]), TypeError)):
        for encoder in (Encoder(folder), staged(folder, CoreStage(folder, ahead=1))):
            seen = []
            with pytest.raises(error):
                seen.extend(encoder.encode_iter(source(), block_size=10))
            assert [len(block) for block in seen] == [10, 10]
    seen = []
    with pytest.raises(ValueError, match=r"texts\[25\] .*lone surrogate"):
        for block in staged(folder, CoreStage(folder, ahead=1)).encode_iter(
            [*texts[:25], "\ud800", *texts], block_size=10
        ):
            seen.append(block)
    assert len(seen) == 2
    with pytest.raises(ValueError, match=r"texts\[2\] has \d+ tokens"):
        staged(folder, CoreStage(folder), on_overflow="error").encode(["a", "b", "day " * 99])


def test_an_error_of_the_stage_stops_the_others(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    stage = CoreStage(folder, ahead=2)

    def fail(batch: int) -> None:
        if batch == 9:
            raise RuntimeError("the device is gone")

    stage.fail = fail
    encoder = staged(folder, stage)
    blocks = []
    with pytest.raises(RuntimeError, match="the device is gone"):
        blocks.extend(encoder.encode_iter(texts, block_size=20))
    assert len(blocks) == 2 and len(stage.batches) == 9 and stage.waiting == 0
    assert not [thread for thread in threading.enumerate() if "embedkit-tokenize" in thread.name]
    stage.fail = None
    np.testing.assert_array_equal(encoder.encode(texts), Encoder(folder).encode(texts))


def test_closing_the_generator_ends_its_thread(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    stage = CoreStage(folder, ahead=2)
    blocks = staged(folder, stage).encode_iter(texts * 10, block_size=20)
    next(blocks)
    assert [thread for thread in threading.enumerate() if "embedkit-tokenize" in thread.name]
    blocks.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if "embedkit-tokenize" in thread.name]
    assert stage.waiting == 0


def test_several_threads_and_interleaved_streams(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    encoder = staged(folder, CoreStage(folder, ahead=1))
    expected = Encoder(folder).encode(texts)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda i: (i, encoder.encode(texts[i:])), range(8)):
            np.testing.assert_array_equal(result[1], expected[result[0] :])
    for block in encoder.encode_iter(texts, block_size=100):
        np.testing.assert_array_equal(encoder.encode(texts[:5]), expected[:5])
        assert len(block) == 100


def test_ctrl_c_interrupts_the_pipeline(make_model: Make) -> None:
    script = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from core_stage import CoreStage, staged
folder = Path(sys.argv[1])
encoder = staged(folder, CoreStage(folder, ahead=1))
def interrupt():
    global sent
    sent = time.perf_counter()
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.4, interrupt).start()
try:
    encoder.encode(["day night " * 20] * 10**5)
except KeyboardInterrupt:
    assert time.perf_counter() - sent < 10, time.perf_counter() - sent
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if "embedkit" in name], names
else:
    raise AssertionError("not interrupted")
assert encoder.encode("day").shape == (32,)
"""
    command = [sys.executable, "-c", script, str(make_model()), str(Path(__file__).parent)]
    subprocess.run(command, check=True, timeout=60)


def test_a_cancelled_tokenization() -> None:
    cancel = _core.Cancel()
    cancel.cancel()
    options = _core.EncodeOptions(threads=2, prefix_ids=[], suffix_ids=[], max_length=6)
    with pytest.raises(RuntimeError, match="interrupted"):
        _core.tokenize_window_ids([[1]] * 1000, options, cancel)


def test_what_pack_refuses() -> None:
    options = _core.EncodeOptions(threads=1, prefix_ids=[], suffix_ids=[], max_length=6)
    window = _core.tokenize_window_ids([[1, 2], [3]], options)
    order, bounds = np.arange(2), np.empty(3, np.int32)
    ids = np.empty(3, np.int32)
    assert window.pack(order, ids, bounds, vocab_size=4) == 3
    assert ids.tolist() == [1, 2, 3] and bounds.tolist() == [0, 2, 3]
    with pytest.raises(ValueError, match="token id 3 is outside the model's table of 3 tokens"):
        window.pack(order, ids, bounds, vocab_size=3)
    with pytest.raises(ValueError, match="more tokens than the 2"):
        window.pack(order, ids[:2], bounds, vocab_size=4)
    with pytest.raises(ValueError, match="sequence 2 of a window of 2"):
        window.pack(np.array([2]), ids, bounds, vocab_size=4)
    for bad in (np.empty(3, np.int64), np.empty((3, 1), np.int32), np.empty(6, np.int32)[::2]):
        with pytest.raises(TypeError, match="ids must be a writable, contiguous int32 array"):
            window.pack(order, bad, bounds, vocab_size=4)
    ids.flags.writeable = False
    with pytest.raises(TypeError, match="ids must be"):
        window.pack(order, ids, bounds, vocab_size=4)


def test_the_driver_alone() -> None:
    """Without a window, the stage is not called."""
    results = encode_windows(None, iter([]), Request(3), Occupancy())  # type: ignore[arg-type]
    assert list(results) == []
