"""Cases of `quantized_linear`, run by test_arithmetic.py in a separate process."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from embedkit.kernels.layernorm import embed_layernorm, residual_layernorm
from embedkit.kernels.quantize import GROUP, QuantizedRows, quantize_weight
from embedkit.kernels.quantized_linear import quantized_linear, quantized_linear_groups
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear
from triton_harness import DEVICE, DTYPES, check, round_to_fp8, tensor

PRODUCTS: Any = (
    ["int8", "fp8"] if DEVICE == "cpu" or torch.cuda.get_device_capability() >= (8, 9) else ["int8"]
)
# Of the largest value, in float32. Compute capability 9.0 adds the products of 8-bit floats with about 14 bits.
SUMS = {"int8": 3e-6, "fp8": 3e-6 if DEVICE == "cpu" else 2**-9}
ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": torch.relu,
    "gelu": gelu,
    "gelu_new": lambda x: gelu(x, approximate="tanh"),
}


@pytest.fixture(autouse=True)
def rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    round_to_fp8(monkeypatch)


def rows(tokens: int, size: int, products: Any, seed: int = 0) -> QuantizedRows:
    """Random 8-bit values with random scales: the kernel's operands are known, and so is the exact result."""
    generator = torch.Generator().manual_seed(seed)
    result = QuantizedRows.empty(tokens, size, products, torch.device(DEVICE))
    if products == "int8":
        result.values.copy_(torch.randint(-128, 128, (tokens, size), generator=generator))
        assert result.shift is not None
        result.shift.copy_(tensor(tokens, seed=seed + 1))
    else:
        result.values.copy_((torch.randn(tokens, size, generator=generator) * 40).to(result.values.dtype))
    result.scale.copy_(tensor(tokens, seed=seed + 2).abs() / 100)
    return result


def exact(x: QuantizedRows) -> Tensor:
    """The numbers that 8 bits stand for, in double precision."""
    values = x.values.double()
    if x.groups:
        return values * x.scale.double().repeat_interleave(GROUP, dim=1)[:, : values.shape[1]]
    return values * x.scale.double()[:, None] + (0 if x.shift is None else x.shift.double()[:, None])


def half_a_step(x: Tensor, largest: Tensor) -> Tensor:
    """Of e4m3 with ``largest`` at 448: 3 bits after the first, and no number below 2⁻⁹."""
    return (x * 2**-4).maximum(largest / 448 * 2**-10)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize(("tokens", "inputs", "outputs"), [(1, 16, 1), (70, 312, 150), (5, 128, 384)])
def test_products(activation: Any, products: Any, tokens: int, inputs: int, outputs: int) -> None:
    x = rows(tokens, inputs, products)
    weight = quantize_weight(tensor(outputs, inputs, seed=3, scale=inputs**-0.5), products)
    bias = tensor(outputs, seed=4)
    matrix = weight.values.double() * weight.scale.double()[:, None]
    expected = ACTIVATIONS[activation](linear(exact(x), matrix, bias.double()))
    check(
        quantized_linear(x, weight, bias, activation=activation, dtype=torch.float32),
        expected,
        SUMS[products],
    )
    # The same in groups of 8 bits: half a step of each group's range, or half a bit of e4m3's three.
    grouped = quantized_linear_groups(x, weight, bias, activation=activation)
    assert grouped.groups and grouped.scale.shape == (tokens, -(-outputs // GROUP))
    error = (exact(grouped) - expected).abs()
    for start in range(0, outputs, GROUP):
        part = expected[:, start : start + GROUP].abs()
        largest = part.amax(dim=1, keepdim=True)
        bound = largest / 254 if products == "int8" else half_a_step(part, largest)
        assert (error[:, start : start + GROUP] <= bound + 3 * SUMS[products] * expected.abs().max()).all()


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_groups_and_types(products: Any, dtype: str) -> None:
    """The result of `quantized_linear_groups` is an input of `quantized_linear`."""
    weight = quantize_weight(tensor(300, 40, seed=1), products)
    inner = quantized_linear_groups(rows(20, 40, products), weight, activation="gelu")
    second = quantize_weight(tensor(33, 300, seed=2), products)
    expected = linear(exact(inner), second.values.double() * second.scale.double()[:, None])
    result = quantized_linear(inner, second, dtype=DTYPES[dtype])
    assert result.dtype == DTYPES[dtype]
    check(result, expected, SUMS[products] + {"fp32": 0, "fp16": 2**-10, "bf16": 2**-7}[dtype])


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("size", [26, 312, 384])
def test_layer_norms_write_8_bits(products: Any, size: int) -> None:
    x, residual = tensor(7, size, seed=0, scale=3), tensor(7, size, seed=1)
    weight, bias = tensor(size, seed=2), tensor(size, seed=3)
    bias[0] += 8  # one side reaches further
    expected = layer_norm((x + residual).double(), (size,), weight.double(), bias.double(), 1e-12)
    for kernel in ("residual", "embed"):
        quantized = QuantizedRows.empty(7, size, products, x.device)
        if kernel == "residual":
            plain = residual_layernorm(x, residual, weight, bias, 1e-12, quantized=quantized)
        else:
            ids = torch.arange(7, dtype=torch.int32, device=DEVICE)
            plain = embed_layernorm(
                ids, ids, None, x, residual, None, weight, bias, 1e-12, quantized=quantized
            )
        check(plain, expected, 1e-5)
        error = (exact(quantized) - expected).abs()
        if products == "int8":
            step = (expected.amax(dim=1) - expected.amin(dim=1)) / 255
            assert (error <= 0.502 * step[:, None] + 1e-5).all()
        else:
            largest = expected.abs().amax(dim=1, keepdim=True)
            assert (error <= half_a_step(expected.abs(), largest) + 1e-5).all()


@pytest.mark.parametrize("products", PRODUCTS)
def test_rows_without_a_range(products: Any) -> None:
    """Equal values, and zeros, have no range to be divided by."""
    ones, zeros = torch.ones(16, device=DEVICE), torch.zeros(16, device=DEVICE)
    quantized = QuantizedRows.empty(2, 16, products, ones.device)
    flat = torch.stack([ones, zeros])
    result = residual_layernorm(flat, flat, ones, zeros, 1e-12, quantized=quantized)
    assert not result.any()
    assert not exact(quantized).any()
    weight = quantize_weight(torch.zeros(3, 16, device=DEVICE), products)
    assert not quantized_linear(quantized, weight, dtype=torch.float32).any()
    assert not exact(quantized_linear_groups(quantized, weight)).any()


def test_no_tokens() -> None:
    weight = quantize_weight(tensor(3, 16, seed=0), "int8")
    empty = QuantizedRows.empty(0, 16, "int8", weight.values.device)
    assert quantized_linear(empty, weight).shape == (0, 3)
    assert quantized_linear_groups(empty, weight).scale.shape == (0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": rows(2, 24, "int8")}, r"x must be \(tokens, K\) and weight \(N, K\), not \(2, 24\)"),
        ({"x": rows(2, 16, "fp8")}, "weight is torch.int8 for int8 products, x is for fp8"),
        ({"bias": torch.zeros(4)}, r"bias must be contiguous \(3,\)"),
        ({"activation": "tanh"}, "unknown activation 'tanh'"),
        ({"dtype": torch.float64}, "dtype must be"),
        ({"bias": torch.zeros(3, device="meta")}, "bias is on meta"),
        ({"x": dataclasses.replace(rows(2, 16, "int8"), shift=torch.zeros(3))}, r"x.shift must be .* \(2,\)"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    weight = quantize_weight(tensor(3, 16, seed=0), "int8")
    with pytest.raises(ValueError, match=message):
        quantized_linear(**{"x": rows(2, 16, "int8"), "weight": weight, **change})


def test_bad_memory_is_named() -> None:
    with pytest.raises(ValueError, match="unknown products 'int4'"):
        QuantizedRows.empty(1, 1, "int4", torch.device(DEVICE))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weight must be floating"):
        quantize_weight(torch.zeros(2, dtype=torch.int8), "int8")
    x, ones = tensor(2, 16, seed=0), torch.ones(16, device=DEVICE)
    grouped = QuantizedRows.empty(2, 16, "int8", x.device, groups=True)
    with pytest.raises(ValueError, match=r"quantized must be rows \(2, 16\), not \(2, 16\) in groups"):
        residual_layernorm(x, x, ones, ones, 1e-12, quantized=grouped)
