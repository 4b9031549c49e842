"""The cases of test_pool_project_normalize.py: run by it in a process of their own.

On a GPU if there is one, otherwise under Triton's interpreter, chosen before triton is imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from embedkit.kernels import pool_project_normalize as module
from embedkit.kernels.pool_project_normalize import pool_project_normalize
from embedkit.training import pooling as training_pooling
from torch import Tensor
from triton_harness import DEVICE, boundaries, check, tensor

from embedkit.output import convert

# More than one tile of 16, empty texts at the ends and inside, texts of one token and of more than one block.
LENGTHS = [0, 1, 5, 0, 0, 3, 17, 1, 2, 40, 1, 1, 4, 2, 0, 1, 7, 3, 0]
IDLE = 3  # rows after the last text


def reference(
    texts: list[Tensor],
    *,
    pooling: str,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str = "identity",
    normalize: bool = False,
) -> Tensor:
    """The formula in double precision, a text at a time; ``texts`` are (tokens, H)."""
    rows = []
    for tokens in texts:
        tokens = tokens.double() if len(tokens) else tokens.new_zeros(1, tokens.shape[1], dtype=torch.float64)
        row = {"mean": tokens.mean(dim=0), "cls": tokens[0], "max": tokens.max(dim=0).values}[pooling]
        if weight is not None:
            row = row @ weight.double()
            row = row if bias is None else row + bias.double()
            row = row.tanh() if activation == "tanh" else row
        rows.append(torch.nn.functional.normalize(row, dim=0, eps=1e-12) if normalize else row)
    return torch.stack(rows)


HEADS: list[dict[str, Any]] = [
    {"H": 26, "D": None, "normalize": False},
    {"H": 384, "D": None, "normalize": True},
    {"H": 312, "D": 128, "normalize": True, "activation": "tanh", "bias": True},
    {"H": 26, "D": 1, "normalize": False, "activation": "tanh", "bias": True},
    {"H": 768, "D": 96, "normalize": True},
]


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("head", HEADS, ids=lambda head: f"{head['H']}-{head['D']}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_packed(pooling: Any, head: dict[str, Any], dtype: torch.dtype) -> None:
    size, dimension = head["H"], head["D"]
    hidden = tensor(sum(LENGTHS) + IDLE, size, seed=0, dtype=dtype)
    hidden[-IDLE:] = float("nan")  # must not be read
    inputs = [hidden.requires_grad_()]
    arguments: dict[str, Any] = {"pooling": pooling, "normalize": head["normalize"]}
    if dimension is not None:
        weight = tensor(dimension, size, seed=1, dtype=dtype, scale=size**-0.5).requires_grad_()
        inputs.append(weight)
        arguments |= {"weight": weight.T, "activation": head.get("activation", "identity")}
        if head.get("bias"):
            inputs.append(tensor(dimension, seed=2, dtype=dtype).requires_grad_())
            arguments["bias"] = inputs[-1]
    result = pool_project_normalize(hidden, boundaries(LENGTHS), **arguments)
    # Copies; otherwise torch would sum the gradients of the texts in 16 bits.
    exact = [values.detach().double().requires_grad_() for values in inputs]
    for name, values in zip(("weight", "bias"), exact[1:], strict=False):
        arguments[name] = values.T if values.ndim == 2 else values
    expected = reference(list(exact[0][:-IDLE].split(LENGTHS)), **arguments)
    assert result.dtype == torch.float32
    check(result, expected, 2e-6 if dtype == torch.float32 else 3e-5)
    upstream = tensor(*result.shape, seed=3)
    gradients = torch.autograd.grad(result, inputs, upstream)
    wanted = torch.autograd.grad(expected, exact, upstream.double())
    for got, want in zip(gradients, wanted, strict=True):
        assert got.dtype == dtype
        # The interpreter cuts the bits that bfloat16 lacks; a GPU rounds to the nearest.
        bits = 2**-7 if DEVICE == "cpu" else 2**-8
        check(got, want, 5e-6 if dtype == torch.float32 else bits)


def test_zeros_have_no_gradient_of_their_direction() -> None:
    hidden, weight = torch.ones(1, 16, device=DEVICE), torch.ones(16, 3, device=DEVICE)
    bias = torch.zeros(3, device=DEVICE, requires_grad=True)
    vectors = pool_project_normalize(hidden, boundaries([0, 1]), weight=weight, bias=bias, normalize=True)
    (vectors * torch.tensor([1.0, 2.0, 3.0], device=DEVICE)).sum().backward()
    assert bias.grad is not None and bias.grad.abs().max() < 10


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("layout", ["lengths", "mask", "bool mask", "left mask"])
def test_padded(pooling: Any, layout: str) -> None:
    lengths = [0, 3, 21, 1]
    hidden = tensor(4, 21, 26, seed=0, dtype=torch.float16)
    mask = torch.arange(21, device=DEVICE)[None] < torch.tensor(lengths, device=DEVICE)[:, None]
    if layout == "left mask":
        mask = mask.flip(1)
        mask[2, 5:9] = False  # and a gap
    hidden[~mask] = float("nan")
    hidden.requires_grad_()
    texts: dict[str, Tensor] = {"mask": mask if layout == "bool mask" else mask.long()}
    if layout == "lengths":
        texts = {"lengths": torch.tensor(lengths, device=DEVICE)}
    weight, bias = tensor(26, 7, seed=1).requires_grad_(), tensor(7, seed=2).requires_grad_()
    head: dict[str, Any] = {"weight": weight, "bias": bias, "activation": "tanh", "normalize": True}
    result = pool_project_normalize(hidden, **texts, pooling=pooling, **head)
    rows = [row[keep] for row, keep in zip(hidden, mask, strict=True)]
    expected = reference(rows, pooling=pooling, **head)
    check(result, expected, 2e-6)
    upstream = tensor(*result.shape, seed=3)
    inputs = (hidden, weight, bias)
    wanted = torch.autograd.grad(expected, inputs, upstream.double())
    for got, want in zip(torch.autograd.grad(result, inputs, upstream), wanted, strict=True):
        check(got, want, 1e-3 if got.dtype == torch.float16 else 5e-6)


@pytest.mark.parametrize("texts", [1, 16, 17])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_number_of_texts(texts: int, dtype: torch.dtype) -> None:
    hidden, weight = tensor(texts, 26, seed=0), tensor(26, 5, seed=1)
    result = pool_project_normalize(hidden, boundaries([1] * texts, dtype), weight=weight)
    check(result, hidden.double() @ weight.double(), 2e-6)


def test_a_text_is_bitwise_the_same_in_every_batch() -> None:
    hidden, weight = tensor(sum(LENGTHS), 40, seed=0), tensor(40, 24, seed=1)
    together = pool_project_normalize(hidden, boundaries(LENGTHS), weight=weight, normalize=True)
    for text in (2, 9, 16):
        start = sum(LENGTHS[:text])
        rows = hidden[start : start + LENGTHS[text]]
        alone = pool_project_normalize(rows, boundaries([len(rows)]), weight=weight, normalize=True)
        if DEVICE == "cpu":  # the interpreter's products are NumPy's, whose BLAS may round a row by its place
            torch.testing.assert_close(alone[0], together[text], rtol=0, atol=5e-7)
        else:
            assert torch.equal(alone[0], together[text])


def test_slices_of_a_wider_tensor() -> None:
    wide = tensor(9, 64, seed=0)
    hidden = wide[:, 8:34]
    # On a GPU another alignment is another program, which may add in another order.
    torch.testing.assert_close(
        pool_project_normalize(hidden, boundaries([4, 5])),
        pool_project_normalize(hidden.contiguous(), boundaries([4, 5])),
        rtol=0,
        atol=1e-6,
    )
    columns = tensor(26, 9, seed=1).T
    check(pool_project_normalize(columns, boundaries([9])), columns.double().mean(dim=0)[None], 1e-6)


@pytest.mark.parametrize("dimension", [None, 29])
@pytest.mark.parametrize("output", ["int8", "uint8", "binary", "ubinary"])
def test_quantized_output(dimension: int | None, output: Any) -> None:
    hidden = tensor(sum(LENGTHS), 26, seed=0)
    head: dict[str, Any] = {"normalize": True}
    if dimension is not None:
        head["weight"] = tensor(26, dimension, seed=1)
    vectors = pool_project_normalize(hidden, boundaries(LENGTHS), **head).cpu().numpy()
    ranges = None
    if "int8" in output:
        # Narrower than the values, so that some are clipped; one dimension without a range.
        ranges = np.stack([vectors.min(axis=0) * 0.7, vectors.max(axis=0) * 0.7])
        ranges[:, 3] = 0.1
        head["ranges"] = torch.tensor(ranges, device=DEVICE)
    result = pool_project_normalize(hidden, boundaries(LENGTHS), output=output, **head).cpu().numpy()
    expected = convert(vectors, output, ranges)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


def test_equal_maxima_nan_and_infinity() -> None:
    nan, inf = float("nan"), float("inf")
    hidden = torch.tensor([[1.0, nan], [2, 1], [2, nan], [-inf, 0], [-inf, 5], [7, 7]], device=DEVICE)
    hidden.requires_grad_()
    result = pool_project_normalize(hidden, boundaries([3, 2, 1]), pooling="max")
    np.testing.assert_array_equal(result.detach().cpu().numpy(), [[2, nan], [-inf, 5], [7, 7]])
    (gradient,) = torch.autograd.grad(result.sum(), hidden)
    assert gradient.tolist() == [[0, 1], [1, 0], [0, 0], [1, 0], [0, 1], [1, 1]]
    mean = pool_project_normalize(hidden, boundaries([3, 2, 1]), weight=torch.ones(2, 3, device=DEVICE))
    assert mean.isnan().any(dim=1).tolist() == [True, False, False]


def test_only_what_needs_a_gradient_gets_one() -> None:
    hidden, weight = tensor(9, 26, seed=0), tensor(26, 5, seed=1).requires_grad_()
    result = pool_project_normalize(hidden, boundaries([4, 5]), weight=weight)
    check(torch.autograd.grad(result.sum(), weight)[0][:, 0], reference_mean_sum(hidden), 2e-6)
    result = pool_project_normalize(hidden.requires_grad_(), boundaries([4, 5]), weight=weight.detach())
    assert torch.autograd.grad(result.sum(), hidden)[0].shape == (9, 26)


def reference_mean_sum(hidden: Tensor) -> Tensor:
    return hidden[:4].double().mean(dim=0) + hidden[4:].double().mean(dim=0)


def test_no_texts_and_no_tokens() -> None:
    assert pool_project_normalize(tensor(0, 4, seed=0), boundaries([])).shape == (0, 4)
    hidden, weight = tensor(0, 4, seed=0).requires_grad_(), tensor(4, 2, seed=1).requires_grad_()
    result = pool_project_normalize(hidden, boundaries([0, 0]), weight=weight, normalize=True)
    assert result.tolist() == [[0, 0], [0, 0]]
    gradients = torch.autograd.grad(result.sum(), (hidden, weight))
    assert gradients[0].shape == (0, 4)
    assert not gradients[1].any()


def test_training_agrees_with_its_path_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight = tensor(sum(LENGTHS), 26, seed=0), tensor(26, 5, seed=1)
    arguments: dict[str, Any] = {"weight": weight, "activation": "tanh", "normalize": True}
    monkeypatch.setattr(training_pooling, "_has_kernel", lambda *_: False)
    plain = training_pooling.pool_project_normalize(hidden, boundaries(LENGTHS), **arguments)
    monkeypatch.setattr(training_pooling, "_has_kernel", lambda *_: True)
    check(training_pooling.pool_project_normalize(hidden, boundaries(LENGTHS), **arguments), plain, 2e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_seqlens": None}, "give one of cu_seqlens, mask and lengths"),
        ({"lengths": torch.ones(3)}, "give one of"),
        ({"hidden": torch.zeros(2, 3, 4)}, r"hidden must be \(tokens, H\)"),
        ({"hidden": torch.zeros(6, 4, dtype=torch.float64)}, "hidden must be float32, float16 or bfloat16"),
        ({"hidden": torch.zeros(6, 9000)}, "the kernel supports 1 to 8192"),
        ({"cu_seqlens": torch.zeros(3)}, "cu_seqlens must be int32 or int64"),
        ({"cu_seqlens": None, "mask": torch.ones(3, 2), "hidden": torch.zeros(2, 3, 4)}, "mask must be"),
        ({"cu_seqlens": None, "lengths": torch.ones(2), "hidden": torch.zeros(2, 3, 4)}, "lengths must be"),
        ({"pooling": "median"}, "unknown pooling 'median'"),
        ({"output": "int4"}, "unknown output 'int4'"),
        ({"output": "int8"}, "needs ranges"),
        ({"ranges": torch.zeros(2, 4)}, "takes no ranges"),
        ({"output": "int8", "ranges": torch.zeros(4)}, r"ranges must be float32 \(2, 4\)"),
        ({"activation": "tanh"}, "Give weight as well"),
        ({"weight": torch.zeros(2, 4)}, r"linear\.weight\.T"),
        ({"weight": torch.zeros(4, 2000)}, "the kernel supports 1 to 1024"),
        ({"weight": torch.zeros(4, 2), "bias": torch.zeros(4)}, r"bias must be \(2,\)"),
        ({"hidden": torch.zeros(6, 4, requires_grad=True), "output": "binary"}, "has no gradient"),
        ({"weight": torch.zeros(4, 2, device="meta")}, "weight is on meta"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    arguments = {"hidden": torch.zeros(6, 4), "cu_seqlens": torch.tensor([0, 6]), **change}
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.device.type == "cpu":
            arguments[name] = value.detach().to(DEVICE).requires_grad_(value.requires_grad)
    with pytest.raises(ValueError, match=message):
        pool_project_normalize(**arguments)


def test_a_cpu_is_refused_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.triton.knobs.runtime, "interpret", False)
    with pytest.raises(ValueError, match=r"On a CPU use embedkit\.training\.pooling"):
        pool_project_normalize(torch.zeros(6, 4), torch.tensor([0, 6]))
