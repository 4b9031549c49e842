"""Cases of `bias_gelu`, run by test_arithmetic.py in a separate process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from embedkit.kernels.bias_gelu import bias_gelu, linear_gelu
from torch.nn.functional import gelu, linear
from triton_harness import DEVICE, DTYPES, check, tensor

# Of the largest value: one rounding to the type. The interpreter cuts what bfloat16 lacks.
TOLERANCE = {"fp32": 1e-6, "fp16": 2**-11, "bf16": 2**-7}
FORMS = {"gelu": "none", "gelu_new": "tanh"}  # as embedkit and torch name them


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "size"), [(1, 1), (1, 1536), (5, 1200), (9, 31)])
def test_against_torch(form: Any, dtype: str, tokens: int, size: int) -> None:
    x = tensor(tokens, size, seed=0, dtype=DTYPES[dtype], scale=3)
    bias = tensor(size, seed=1, dtype=DTYPES[dtype])
    expected = gelu(x.double() + bias.double(), approximate=FORMS[form])
    result = bias_gelu(x, bias, activation=form)
    assert result.dtype == DTYPES[dtype]
    check(result, expected, TOLERANCE[dtype])
    assert bias_gelu(x, bias, activation=form, inplace=True) is x
    assert torch.equal(x, result)


@pytest.mark.parametrize("form", FORMS)
def test_far_from_zero(form: Any) -> None:
    x = torch.tensor([[-1e30, -100, -10, -1e-20, 0, 1e-20, 10, 1e10]], device=DEVICE)
    result = bias_gelu(x, torch.zeros(8, device=DEVICE), activation=form)
    torch.testing.assert_close(
        result.double(), gelu(x.double(), approximate=FORMS[form]), rtol=1e-6, atol=1e-6
    )


def test_slices_and_no_tokens() -> None:
    wide, bias = tensor(3, 20, seed=0), tensor(10, seed=1)
    check(bias_gelu(wide[:, 10:], bias), gelu(wide[:, 10:].double() + bias.double()), 1e-6)
    assert bias_gelu(wide[:0, :10], bias).shape == (0, 10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "size", "inner"), [(1, 16, 64), (70, 312, 1200), (5, 26, 31)])
def test_after_a_product(form: Any, dtype: str, tokens: int, size: int, inner: int) -> None:
    """Of the largest value: a rounding before GELU and one after it, or tanh's form for erf's and one rounding."""
    x, weight = (tensor(n, size, seed=n, dtype=DTYPES[dtype]) for n in (tokens, inner))
    bias = tensor(inner, seed=1, dtype=DTYPES[dtype])
    expected = gelu(linear(x.double(), weight.double(), bias.double()), approximate=FORMS[form])
    result = linear_gelu(x, weight, bias, activation=form)
    assert result.dtype == DTYPES[dtype]
    check(result, expected, {"fp32": 2e-6, "fp16": 2**-10, "bf16": 2**-6}[dtype])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(4)}, r"x must be \(tokens, I\)"),
        ({"x": torch.zeros(2, 4, dtype=torch.int32)}, "x must be float32"),
        ({"x": torch.zeros(4, 2).T, "inplace": True}, "Use inplace=False"),
        ({"bias": torch.zeros(3)}, r"bias must be \(4,\)"),
        ({"activation": "relu"}, "unknown activation 'relu'"),
        ({"bias": torch.zeros(4, device="meta")}, "bias is on meta"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    arguments = {"x": torch.zeros(2, 4), "bias": torch.zeros(4), **change}
    for name in ("x", "bias"):
        if arguments[name].device.type == "cpu":
            arguments[name] = arguments[name].to(DEVICE)
    with pytest.raises(ValueError, match=message):
        bias_gelu(**arguments)


def test_an_unknown_activation_is_refused_after_a_product() -> None:
    x = torch.zeros(2, 4, device=DEVICE, dtype=torch.float16)
    with pytest.raises(ValueError, match="unknown activation 'relu'"):
        linear_gelu(x, x, x[:, 0], activation="relu")  # type: ignore[arg-type]
