"""Cases of `layernorm`, run by test_arithmetic.py in a separate process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from embedkit.kernels.layernorm import embed_layernorm, residual_layernorm
from torch import Tensor
from torch.nn.functional import layer_norm
from triton_harness import DEVICE, DTYPES, check, tensor

# Of the largest value: one rounding to the type. The interpreter cuts what bfloat16 lacks.
TOLERANCE = {"fp32": 1e-6, "fp16": 2**-11, "bf16": 2**-7}
SIZES = [1, 26, 312, 384, 768, 2049]


def ids(count: int, rows: int, seed: int, dtype: torch.dtype = torch.int32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(rows, (count,), generator=generator).to(dtype).to(DEVICE)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 7])
def test_residual(size: int, dtype: str, tokens: int) -> None:
    x, residual = (tensor(tokens, size, seed=seed, dtype=DTYPES[dtype], scale=3) for seed in range(2))
    weight, bias, x_bias = (tensor(size, seed=seed, dtype=DTYPES[dtype]) for seed in range(2, 5))
    for added in (None, x_bias):
        total = x.double() + residual.double() + (0 if added is None else added.double())
        result = residual_layernorm(x, residual, weight, bias, 1e-5, added)
        assert result.dtype == DTYPES[dtype]
        check(result, layer_norm(total, (size,), weight.double(), bias.double(), 1e-5), TOLERANCE[dtype])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["bert", "typed", "mpnet", "roformer"])
def test_embed(size: int, dtype: str, kind: str) -> None:
    tokens = 1 if kind == "mpnet" else 9
    word, position, types = (
        tensor(rows, size, seed=seed, dtype=DTYPES[dtype]) for seed, rows in enumerate((11, 10, 2))
    )
    weight, bias = tensor(size, seed=3, dtype=DTYPES[dtype]), tensor(size, seed=4, dtype=DTYPES[dtype])
    words, places = ids(tokens, 11, 0, torch.int64), ids(tokens, 10, 1)
    of_type = ids(tokens, 2, 2) if kind == "typed" else None
    total = word[words].double()
    if kind != "roformer":
        total = total + position[places].double()
    if kind != "mpnet":
        total = total + (types[0] if of_type is None else types[of_type]).double()
    result = embed_layernorm(
        words,
        None if kind == "roformer" else places,
        of_type,
        word,
        None if kind == "roformer" else position,
        None if kind == "mpnet" else types,
        weight,
        bias,
        1e-12,
    )
    assert result.dtype == DTYPES[dtype]
    # A row of one value has no variance: only rounding is left, over 1e-6.
    if size > 1:
        check(result, layer_norm(total, (size,), weight.double(), bias.double(), 1e-12), TOLERANCE[dtype])
    assert result.isfinite().all()


def test_a_large_mean_does_not_cancel() -> None:
    x, ones, zeros = tensor(3, 384, seed=0), torch.ones(384, device=DEVICE), torch.zeros(384, device=DEVICE)
    x += 1000
    expected = layer_norm(x.double(), (384,), eps=1e-12)
    # A mean of 1000 is rounded to 6e-5; the difference of squares would be wrong in the first digit.
    check(residual_layernorm(x, torch.zeros_like(x), ones, zeros, 1e-12), expected, 1e-4)


def test_equal_rows_slices_and_no_tokens() -> None:
    ones, zeros = torch.ones(8, device=DEVICE), torch.zeros(8, device=DEVICE)
    flat = torch.full((2, 8), 3.0, device=DEVICE)
    assert not residual_layernorm(flat, flat, ones, zeros, 1e-12).any()
    wide = tensor(3, 16, seed=0)
    sliced = residual_layernorm(wide[:, :8], wide[:, 8:], ones, zeros, 1e-12)
    check(sliced, layer_norm((wide[:, :8] + wide[:, 8:]).double(), (8,), eps=1e-12), 1e-6)
    assert residual_layernorm(flat[:0], flat[:0], ones, zeros, 1e-12).shape == (0, 8)
    nothing = torch.zeros(0, dtype=torch.int32, device=DEVICE)
    assert embed_layernorm(nothing, None, None, flat, None, None, ones, zeros, 1e-12).shape == (0, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"word": torch.zeros(4)}, r"word must be \(vocab_size, H\)"),
        ({"word": torch.zeros(4, 8, dtype=torch.float64)}, "word must be float32"),
        ({"input_ids": torch.zeros(2, 2, dtype=torch.int32)}, r"input_ids must be \(tokens,\)"),
        ({"input_ids": torch.zeros(2)}, "input_ids must be int32 or int64"),
        ({"positions": None}, "pass both or neither"),
        ({"positions": torch.zeros(3, dtype=torch.int32)}, r"positions must be int32 or int64 \(2,\)"),
        ({"type": None}, "pass type as well"),
        ({"position": torch.zeros(4, 7)}, r"position must be \(rows, 8\)"),
        ({"weight": torch.zeros(7)}, r"weight must be \(8,\)"),
        ({"eps": -1.0}, "eps must be"),
        ({"bias": torch.zeros(8, device="meta")}, "bias is on meta"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    arguments = {
        **dict.fromkeys(("input_ids", "positions", "token_types"), torch.zeros(2, dtype=torch.int32)),
        **dict.fromkeys(("word", "position", "type"), torch.zeros(4, 8)),
        **dict.fromkeys(("weight", "bias"), torch.zeros(8)),
        "eps": 1e-12,
        **change,
    }
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.device.type == "cpu":
            arguments[name] = value.to(DEVICE)
    with pytest.raises(ValueError, match=message):
        embed_layernorm(**arguments)


def test_bad_residuals_are_named() -> None:
    x, row = torch.zeros(2, 8, device=DEVICE), torch.zeros(8, device=DEVICE)
    with pytest.raises(ValueError, match="x and residual must both be"):
        residual_layernorm(x, x[:1], row, row, 1e-12)
    with pytest.raises(ValueError, match=r"x_bias must be \(8,\)"):
        residual_layernorm(x, x, row, row, 1e-12, row[:3])
    wide = torch.zeros(1, 8193, device=DEVICE)
    with pytest.raises(ValueError, match="kernel supports 1 to 8192"):
        residual_layernorm(wide, wide, wide[0], wide[0], 1e-12)
