"""`Encoder` on CUDA: on a GPU if there is one, otherwise under Triton's interpreter; and its error messages."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from eager_device import cosine
from triton_harness import INTERPRETED, run_cases

from embedkit import Encoder
from embedkit.backends import cuda_engine

Make = Callable[..., Path]
CASES = Path(__file__).with_name("packed_cases.py")
without_a_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")


def on_a_gpu(test: Any) -> Any:
    skip = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    return pytest.mark.gpu(skip(test))


def test_interpreted() -> None:
    run_cases(CASES, **INTERPRETED)


@on_a_gpu
def test_the_cases_on_a_gpu() -> None:
    run_cases(CASES, TRITON_INTERPRET="0")


@without_a_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:1", ["cuda:0", "cuda:1"]])
def test_no_device(make_model: Make, device: Any) -> None:
    with pytest.raises(
        ValueError, match=r"no CUDA device, .*pip install 'embedkit\[gpu\]', or use device='cpu'"
    ):
        Encoder(make_model(), device=device)


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_missing_package_is_named(make_model: Make, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(cuda_engine, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(ImportError, match=rf"{package} is not installed: pip install 'embedkit\[gpu\]'"):
        Encoder(make_model(), device="cuda")


@on_a_gpu
def test_precisions_and_batches(make_model: Make, texts: list[str], record_property: Any) -> None:
    """Every text against the core's fp32, alone, in any batch, from any graph; the worst cosine is reported.

    Of fp16 it is at least 0.9999. bf16 has three bits less, and is chosen only where fp16 overflows.
    """
    folder = make_model()
    expected = Encoder(folder).encode(texts)
    for precision, least in (
        ("auto", 0.9999),
        ("fp32", 0.99999),
        ("fp16", 0.9999),
        ("bf16", 0.998),
        ("int8", 0.98),
    ):
        encoder = Encoder(folder, device="cuda", precision=precision)
        # The third time from graphs captured the second time.
        worst = [
            cosine(encoder.encode(texts, batch_size=size), expected) for size in (None, None, None, 1, 7, 64)
        ]
        assert encoder.describe()["cuda_graphs"] > 0
        order = np.random.default_rng(0).permutation(len(texts))
        worst.append(cosine(encoder.encode([texts[i] for i in order]), expected[order]))
        record_property(f"worst_cosine_{precision}", min(worst))
        assert min(worst) >= least, (precision, worst)


@on_a_gpu
def test_streams_under_load(make_model: Make, texts: list[str]) -> None:
    """Many windows in flight: a copy that is not ordered after its batch would mix the texts."""
    folder = make_model()
    encoder = Encoder(folder, device="cuda", precision="fp32")
    expected = Encoder(folder).encode(texts)
    for options in ({}, {"convert_to_tensor": True}):
        result = encoder.encode(texts * 200, **options)  # type: ignore[call-overload]
        result = result.cpu().numpy() if isinstance(result, torch.Tensor) else result
        for part in result.reshape(200, *expected.shape):
            np.testing.assert_allclose(part, expected, rtol=0, atol=1e-4)
    tensor = encoder.encode(texts, convert_to_tensor=True)
    assert tensor.is_cuda and encoder.device == "cuda:0"
    restored = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_allclose(restored.encode(texts), expected, rtol=0, atol=1e-4)


@on_a_gpu
def test_every_device_of_a_list(make_model: Make, texts: list[str]) -> None:
    folder = make_model()
    names = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    encoder = Encoder(folder, device=names, precision="fp32")
    np.testing.assert_allclose(
        encoder.encode(texts * 20), np.tile(Encoder(folder).encode(texts), (20, 1)), rtol=0, atol=1e-4
    )
    tokens = encoder.encode(texts * 20, output_value="token_embeddings", convert_to_tensor=True)
    assert {str(one.device) for one in tokens} == {names[0]}
    with pytest.raises(ValueError, match="this machine has"):
        Encoder(folder, device="cuda:99")
