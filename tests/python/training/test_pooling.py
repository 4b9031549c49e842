"""embedkit.training.pooling on a CPU, against numpy and against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from embedkit.training.pooling import pool_project_normalize

# Texts of one token, empty ones at both ends and in the middle, and rows after the last text.
LENGTHS = [0, 1, 5, 0, 0, 3, 17, 1, 0]
IDLE = 3


def expected(
    hidden: np.ndarray,
    lengths: list[int],
    pooling: str,
    *,
    weight: np.ndarray | None,
    bias: np.ndarray | None,
    activation: str,
    normalize: bool,
) -> np.ndarray:
    """The formula of the module, a text at a time in double precision."""
    start, rows = 0, []
    for length in lengths:
        tokens = hidden[start : start + length].astype(np.float64)
        start += length
        tokens = tokens if length else np.zeros((1, hidden.shape[1]))
        row = {"mean": tokens.mean(axis=0), "max": tokens.max(axis=0), "cls": tokens[0]}[pooling]
        if weight is not None:
            row = row @ weight
            row = row if bias is None else row + bias
            row = np.tanh(row) if activation == "tanh" else row
        rows.append(row / max(np.linalg.norm(row), 1e-12) if normalize else row)
    return np.stack(rows)


def boundaries(lengths: list[int], dtype: Any = torch.int32) -> Any:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=dtype)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize(
    ("hidden_size", "dimension", "activation", "normalize"),
    [
        (26, None, "identity", False),
        (26, 1, "tanh", False),
        (312, 128, "identity", True),
        (5, 3, "tanh", True),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_against_numpy(
    *, pooling: Any, hidden_size: int, dimension: int | None, activation: Any, normalize: bool, dtype: str
) -> None:
    rng = np.random.default_rng(0)
    hidden = torch.tensor(rng.normal(size=(sum(LENGTHS) + IDLE, hidden_size))).to(getattr(torch, dtype))
    hidden[-IDLE:] = float("nan")  # must not be read
    weight = None if dimension is None else rng.normal(size=(hidden_size, dimension)) / hidden_size**0.5
    bias = None if dimension is None else rng.normal(size=dimension)
    result = pool_project_normalize(
        hidden,
        boundaries(LENGTHS, torch.int64 if dtype == "float64" else torch.int32),
        pooling=pooling,
        weight=None if weight is None else torch.tensor(weight),
        bias=None if bias is None else torch.tensor(bias),
        activation=activation,
        normalize=normalize,
    )
    assert result.dtype == (torch.float64 if dtype == "float64" else torch.float32)
    want = expected(
        hidden.double().numpy(),
        LENGTHS,
        pooling,
        weight=weight,
        bias=bias,
        activation=activation,
        normalize=normalize,
    )
    tolerance = 1e-12 if dtype == "float64" else 2e-6
    np.testing.assert_allclose(result.numpy(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("activation", ["identity", "tanh"])
@pytest.mark.parametrize("normalize", [False, True])
def test_gradients_against_finite_differences(pooling: Any, activation: Any, normalize: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()
        for shape in ((12, 4), (4, 3), (3,))
    )
    cu_seqlens = boundaries([0, 1, 5, 0, 4])

    def function(hidden: Any, weight: Any, bias: Any) -> Any:
        return pool_project_normalize(
            hidden,
            cu_seqlens,
            pooling=pooling,
            weight=weight,
            bias=bias,
            activation=activation,
            normalize=normalize,
        )

    assert torch.autograd.gradcheck(function, (hidden, weight, bias))
    assert torch.autograd.gradcheck(
        lambda hidden: pool_project_normalize(hidden, cu_seqlens, pooling=pooling, normalize=normalize),
        (hidden,),
    )


def test_zeros_have_no_gradient_of_their_direction() -> None:
    """torch's would be 1e12 times the one before, and leave nothing of a step whose gradients are clipped."""
    hidden, weight, bias = torch.ones(1, 2), torch.ones(2, 3), torch.zeros(3)
    bias.requires_grad_()
    vectors = pool_project_normalize(hidden, boundaries([0, 1]), weight=weight, bias=bias, normalize=True)
    (vectors * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert bias.grad is not None and bias.grad.abs().max() < 10
    assert vectors[0].tolist() == [0, 0, 0]


def test_the_first_of_equal_maxima_takes_the_gradient() -> None:
    hidden = torch.tensor([[1.0], [2.0], [2.0], [2.0], [2.0]], requires_grad=True)
    pool_project_normalize(hidden, boundaries([3, 2]), pooling="max").sum().backward()
    assert hidden.grad is not None
    assert hidden.grad[:, 0].tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_no_tokens_at_all(pooling: Any) -> None:
    hidden = torch.zeros(0, 4, requires_grad=True)
    result = pool_project_normalize(hidden, boundaries([0, 0]), pooling=pooling, normalize=True)
    result.sum().backward()
    assert result.tolist() == [[0.0] * 4] * 2
    assert pool_project_normalize(hidden, boundaries([]), pooling=pooling).shape == (0, 4)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_nan_stays_in_its_own_text_and_is_not_hidden(pooling: Any) -> None:
    hidden = torch.ones(6, 2)
    hidden[2, 0] = float("nan")
    result = pool_project_normalize(hidden, boundaries([2, 2, 2]), pooling=pooling)
    assert result.isnan().tolist() == [[False, False], [True, False], [False, False]]


def test_infinite_values() -> None:
    hidden = torch.full((4, 1), float("-inf"))
    hidden[0] = 1
    result = pool_project_normalize(hidden, boundaries([2, 2]), pooling="max")
    assert result.tolist() == [[1.0], [float("-inf")]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.zeros(2, 3, 4)}, "hidden must be a float tensor"),
        ({"hidden": torch.zeros(6, 4, dtype=torch.int64)}, "hidden must be a float tensor"),
        ({"cu_seqlens": torch.tensor([0.0, 6.0])}, "cu_seqlens must be an int32"),
        ({"cu_seqlens": torch.tensor([], dtype=torch.int32)}, "cu_seqlens must be an int32"),
        ({"cu_seqlens": torch.tensor([0, 4, 2])}, "cu_seqlens must rise"),
        ({"cu_seqlens": torch.tensor([0, 7])}, "at most 6"),
        ({"cu_seqlens": torch.tensor([-1, 6])}, "cu_seqlens must rise"),
        ({"pooling": "median"}, "unknown pooling 'median'; expected one of mean, max, cls"),
        ({"activation": "gelu", "weight": torch.zeros(4, 2)}, "unknown activation 'gelu'"),
        ({"weight": torch.zeros(2, 4)}, r"linear\.weight\.T"),
        ({"weight": torch.zeros(4, 2), "bias": torch.zeros(4)}, r"bias must be \(2,\)"),
        ({"bias": torch.zeros(4)}, "Give weight as well"),
        ({"activation": "tanh"}, "Give weight as well"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    arguments = {"hidden": torch.zeros(6, 4), "cu_seqlens": torch.tensor([0, 6]), **change}
    with pytest.raises(ValueError, match=message):
        pool_project_normalize(**arguments)
