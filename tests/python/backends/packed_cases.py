"""The cases of test_cuda.py: the Triton kernels behind `Encoder`, run by it in a separate process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eager_device import cosine, packed
from safetensors.numpy import load_file, save_file
from tiny_families import tiny as tiny_family
from triton_harness import DEVICE, WHOLE

from embedkit import Encoder
from embedkit.backends import packed_model
from embedkit.backends.packed_model import PackedModel
from embedkit.model_folder.folder import open_folder

Make = Callable[..., Path]
pytestmark = pytest.mark.filterwarnings("ignore:.*longer than max_length")
HEADS: dict[str, dict[str, Any]] = {
    "mean": {},
    "cls-tanh-normalize": {"pooling": "cls", "dense": ((12, "Tanh", True),), "normalize": True},
    "max-identity-gelu": {"pooling": "max", "dense": ((12, "Identity", False), (9, "GELU", True))},
    "mean_sqrt_len_tokens": {"pooling": "mean_sqrt_len_tokens", "normalize": True},
    "weightedmean": {"pooling": "weightedmean"},
    "lasttoken": {"pooling": "lasttoken", "dense": ((7, "ReLU", True),)},
    "several": {"pooling": ("cls", "mean", "max"), "dense": ((8, "Sigmoid", True), (9, "SiLU", True))},
}


def opened(folder: Path, **options: Any) -> Encoder:
    """On a real GPU if there is one, otherwise on a simulated device."""
    if DEVICE == "cuda":
        return Encoder(folder, device="cuda", precision="fp32", **options)
    model = PackedModel(open_folder(folder), "fp32", torch.device("cpu"))
    return packed(folder, model=model, budget=64, **options)[0]


def tiny(make_model: Make, **options: Any) -> Path:
    """The interpreter takes milliseconds for each program."""
    return make_model(heads=1, layers=1, **options)


@pytest.fixture
def few(texts: list[str]) -> list[str]:
    return [*texts[1:6], "sunny day", "water" * 30, "the " * 70]


@pytest.mark.parametrize("head", HEADS)
def test_vectors_of_the_core(head: str, make_model: Make, few: list[str]) -> None:
    folder = tiny(make_model, **HEADS[head], include_prompt=False)
    encoder, core = opened(folder), Encoder(folder)
    repeated = ["the night"] if WHOLE or head == "mean" else []  # from graphs
    for prompt in ["", "the night", *repeated]:
        expected = core.encode(few, prompt=prompt)
        result = encoder.encode(few, prompt=prompt)
        assert cosine(result, expected) >= 0.99999
        np.testing.assert_allclose(result, expected, rtol=0, atol=3e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["modernbert", "gte", "qwen3", "gemma", "t5"] if WHOLE else ["gemma"])
def test_families_since_bert(kind: str, tmp_path: Path) -> None:
    """Windows, rotary positions, gates, causal masks and shared keys behind `Encoder`; texts beyond a window."""
    folder = tiny_family(tmp_path / kind, kind, num_hidden_layers=2)
    encoder, core = opened(folder, max_length=64), Encoder(folder, max_length=64)
    some = ["the weather", "people stay out now " * 6, "", "a b c", "lovely " * 70]
    for _ in range(2):  # the last from graphs
        expected = core.encode(some)
        result = encoder.encode(some)
        assert cosine(result, expected) >= 0.99999
        np.testing.assert_allclose(result, expected, rtol=0, atol=3e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    "head", [*(HEADS if WHOLE else ("mean", "weightedmean", "lasttoken", "several")), "dense-bias"]
)
def test_texts_of_no_tokens(head: str, make_model: Make, tmp_path: Path) -> None:
    """Of a tokenizer without special tokens; alone, and more of them than the largest graph holds."""
    options = HEADS.get(head, {"dense": ((12, "Tanh", True),), "normalize": True})
    folder = Path(shutil.copytree(tiny(make_model, **options), tmp_path / "copy"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    encoder, core = opened(folder), Encoder(folder)
    for some in (["", "sunny day", ""], [""] * 40):
        np.testing.assert_allclose(encoder.encode(some), core.encode(some), rtol=0, atol=3e-5)


def test_weights_of_tokens_that_pass_2_to_31() -> None:
    tokens = 46_400
    bounds = torch.tensor([0, tokens], dtype=torch.int32, device=DEVICE)
    mean = packed_model._pool("weightedmean", torch.ones(tokens, 1, device=DEVICE), bounds, False)
    assert mean.item() == pytest.approx(1)


def test_heads_that_no_gpu_takes(make_model: Make) -> None:
    folder = open_folder(tiny(make_model))
    folder = replace(folder, config={**folder.config, "head_size": 512})
    with pytest.raises(
        ValueError, match=r"heads of 512 features; this GPU runs up to 256\. Use device='cpu'"
    ):
        PackedModel(folder, "fp32", torch.device(DEVICE))


def test_families_that_no_gpu_takes(tmp_path: Path) -> None:
    folder = open_folder(tiny_family(tmp_path, "deberta"))
    with pytest.raises(ValueError, match="deberta-v2 models run on the CPU; use device='cpu'"):
        PackedModel(folder, "fp32", torch.device(DEVICE))


def test_heads_beyond_the_shared_memory_of_an_older_gpu(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(tiny(make_model))
    folder = replace(folder, config={**folder.config, "head_size": 256})
    monkeypatch.setattr("embedkit.kernels.packing.capability_of", lambda device: 75)
    with pytest.raises(
        ValueError, match=r"heads of 256 features; this GPU runs up to 128\. Use device='cpu'"
    ):
        PackedModel(folder, "fp32", torch.device(DEVICE))


def test_alone_and_in_a_batch(make_model: Make, few: list[str]) -> None:
    encoder = opened(tiny(make_model))
    together = encoder.encode(few)
    assert cosine([encoder.encode(text) for text in few[:3]], together[:3]) >= 0.99999


def test_outputs(make_model: Make, few: list[str]) -> None:
    folder = tiny(make_model, dense=((20, "Tanh", True),))
    encoder, core = opened(folder), Encoder(folder)
    ranges = np.stack([np.full(20, -0.8), np.full(20, 0.8)])
    for dtype in ("int8", "ubinary"):
        options: dict[str, Any] = {"output_dtype": dtype, "ranges": ranges if "int8" in dtype else None}
        got, want = encoder.encode(few, **options), core.encode(few, **options)
        assert got.dtype == want.dtype and got.shape == want.shape and (got != want).mean() < 0.01
    tokens = encoder.encode(few, output_value="token_embeddings", convert_to_tensor=True)
    for got, want in zip(tokens, core.encode(few, output_value="token_embeddings"), strict=True):
        np.testing.assert_allclose(got.cpu().numpy(), want, rtol=0, atol=1e-4)


def test_a_projection_beyond_fp16(make_model: Make, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny(make_model, dense=((12, "Tanh", True),)), tmp_path / "copy"))
    path = folder / "2_Dense" / "model.safetensors"
    weights = load_file(path)
    weights["linear.weight"] *= 1e6
    save_file(weights, path)
    with pytest.raises(ValueError, match="the projection holds values beyond fp16; use precision='bf16'"):
        PackedModel(open_folder(folder), "fp16", torch.device(DEVICE))


def test_products_in_8_bits(make_model: Make, few: list[str]) -> None:
    """On a GPU that has them; the interpreter multiplies int8 as well."""
    folder = tiny(make_model)
    expected = Encoder(folder).encode(few)
    model = PackedModel(open_folder(folder), "int8", torch.device(DEVICE))
    encoder = (
        packed(folder, model=model, budget=64)[0]
        if DEVICE == "cpu"
        else Encoder(folder, device="cuda", precision="int8")
    )
    assert cosine(encoder.encode(few), expected) >= 0.98
