"""Cases of `add_norm`, run by test_arithmetic.py in a separate process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from embedkit.kernels import reference
from embedkit.kernels.add_norm import add_norm
from triton_harness import DEVICE, DTYPES, check, tensor

# Of the largest value: one rounding to the type. The interpreter cuts what bfloat16 lacks.
TOLERANCE = {"fp32": 1e-6, "fp16": 2**-11, "bf16": 2**-7}
SIZES = [2, 26, 384, 768, 2049]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["layer", "layer-bias", "rms", "rms-post_norm"])
def test_against_torch(size: int, dtype: str, kind: str) -> None:
    x, residual = (tensor(7, size, seed=seed, dtype=DTYPES[dtype], scale=3) for seed in range(2))
    weight, bias, post_norm = (tensor(size, seed=seed) for seed in range(2, 5))
    options: dict[str, Any] = {
        "rms": kind.startswith("rms"),
        "post_norm": post_norm if kind == "rms-post_norm" else None,
    }
    added = bias if kind == "layer-bias" else None
    wide = {name: None if v is None or v is True else v for name, v in options.items() if name == "post_norm"}
    total, expected = reference.add_norm(
        x.double(), residual.double(), weight.double(), None if added is None else added.double(), 1e-6,
        rms=options["rms"], post_norm=None if wide["post_norm"] is None else post_norm.double(),
    )  # fmt: skip
    result = add_norm(x, residual, weight, added, 1e-6, **options)
    assert result.dtype == residual.dtype == DTYPES[dtype]
    check(residual, total, TOLERANCE[dtype])
    check(result, expected, TOLERANCE[dtype])
    check(
        add_norm(x, None, weight, added, 1e-6, rms=options["rms"]),
        reference.add_norm(
            x.double(), torch.zeros_like(x).double(), weight.double(),
            None if added is None else added.double(), 1e-6, rms=options["rms"],
        )[1],
        TOLERANCE[dtype],
    )  # fmt: skip


def test_a_large_mean_does_not_cancel() -> None:
    x, ones = tensor(3, 384, seed=0) + 1e4, torch.ones(384, device=DEVICE)
    _, expected = reference.add_norm(x.double(), torch.zeros_like(x).double(), ones.double(), None, 1e-6)
    # Σ x² − μ² would be wrong by 10; the mean itself is rounded to 0.001.
    check(add_norm(x, torch.zeros_like(x), ones, None, 1e-6), expected, 1e-3)


def test_no_tokens() -> None:
    assert add_norm(
        tensor(0, 8, seed=0), tensor(0, 8, seed=0), torch.ones(8, device=DEVICE), None, 0.0
    ).shape == (0, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(4)}, r"must both be \(tokens, H\)"),
        ({"residual": torch.zeros(4, 2)}, r"must both be \(tokens, H\)"),
        ({"residual": torch.zeros(4, 2).T}, "must be contiguous"),
        ({"weight": torch.zeros(3)}, r"weight must be \(4,\)"),
        ({"post_norm": torch.zeros(3)}, r"post_norm must be \(4,\)"),
        ({"eps": 2.0}, "eps must be from 0 to 1"),
        ({"x": torch.zeros(2, 4, dtype=torch.int32)}, "x must be float32"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    arguments = {
        "x": torch.zeros(2, 4), "residual": torch.zeros(2, 4), "weight": torch.zeros(4), "bias": None, "eps": 0.0,
        **change,
    }  # fmt: skip
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            arguments[name] = value.to(DEVICE)
    with pytest.raises(ValueError, match=message):
        add_norm(**arguments)
