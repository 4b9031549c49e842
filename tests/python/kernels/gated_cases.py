"""Cases of `gated`, run by test_arithmetic.py in a separate process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from embedkit.kernels import reference
from embedkit.kernels.gated import FUNCTIONS, gated_activation
from triton_harness import DEVICE, DTYPES, check, tensor

# Of the largest value: one rounding to the type. The interpreter cuts what bfloat16 lacks.
TOLERANCE = {"fp32": 1e-6, "fp16": 2**-11, "bf16": 2**-7}


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "size"), [(1, 1), (5, 520), (9, 31)])
def test_against_torch(*, second: bool, function: Any, dtype: str, tokens: int, size: int) -> None:
    x = tensor(tokens, 2 * size, seed=0, dtype=DTYPES[dtype], scale=3)
    result = gated_activation(x, function=function, second=second)
    assert result.dtype == DTYPES[dtype]
    check(result, reference.gated_activation(x.double(), function, second=second), TOLERANCE[dtype])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_far_from_zero_and_not_finite(function: Any) -> None:
    x = torch.tensor([[-1e30, -100, -1e-20, 0, 10, 1e10, float("nan"), 1]], device=DEVICE)
    result = gated_activation(torch.cat([x, torch.ones_like(x)], dim=1), function=function)
    expected = reference.gated_activation(torch.cat([x, torch.ones_like(x)], dim=1).double(), function)
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_slices_and_no_tokens() -> None:
    wide = tensor(3, 20, seed=0)
    check(
        gated_activation(wide[:, 10:], function="silu"),
        reference.gated_activation(wide[:, 10:].double(), "silu"),
        1e-6,
    )
    assert gated_activation(wide[:0], function="silu").shape == (0, 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 3)}, r"x must be \(tokens, 2 I\)"),
        ({"x": torch.zeros(2, 4, dtype=torch.int32)}, "x must be float32"),
        ({"function": "tanh"}, "unknown function 'tanh'"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    arguments = {"x": torch.zeros(2, 4), "function": "silu", **change}
    arguments["x"] = arguments["x"].to(DEVICE)
    with pytest.raises(ValueError, match=message):
        gated_activation(**arguments)
