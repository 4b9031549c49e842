"""Cases of `varlen_attention`, run by test_arithmetic.py in a separate process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from embedkit.kernels.attention_tiles import attention_tiles
from embedkit.kernels.reference import attention
from embedkit.kernels.varlen_attention import varlen_attention
from torch import Tensor
from triton_harness import DEVICE, DTYPES, WHOLE, boundaries, check, tensor

# Several sequences in a tile, a whole tile, parts of a longer one, empty ones, and one alone at the end.
LENGTHS = [0, 1, 5, 0, 17, 30, 64, 3, 150, 0, 2, 9]
IDLE = 7
# Of the largest value: weights and results are rounded to the type. The interpreter cuts what bfloat16 lacks.
TOLERANCE = {"fp32": 2e-6, "fp16": 2e-3, "bf16": 2**-6}


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs as complex numbers; x (tokens, heads, D) in double precision."""
    pairs = torch.view_as_complex(x.unflatten(2, (-1, 2)).contiguous())
    turn = torch.complex(cos[: len(x)].double(), sin[: len(x)].double())
    return torch.view_as_real(pairs * turn[:, None]).flatten(2)


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
    rotary_value: bool = False,
) -> Tensor:
    """The formula in double precision, of one sequence."""
    query, key, value = query.double(), key.double(), value.double()
    if rotary is not None:
        query, key = rotated(query, *rotary), rotated(key, *rotary)
        value = rotated(value, *rotary) if rotary_value else value
    scores = torch.einsum("ihd,jhd->hij", query, key) * (query.shape[2] ** -0.5 if scale is None else scale)
    if bias is not None:
        zero = bias.shape[1] // 2
        for i in range(len(query)):
            scores[:, i] += bias[:, zero - i : zero - i + len(query)]
    return torch.einsum("hij,jhd->ihd", scores.softmax(dim=2), value)


def references(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], **options: Any) -> Tensor:
    parts = zip(*(x.split(lengths) for x in (query, key, value)), strict=True)
    return torch.cat([reference(*part, **options) for part in parts])


def positions(kind: str, heads: int, size: int, count: int) -> dict[str, Any]:
    if kind == "bias":
        return {"bias": tensor(heads, 2 * count - 1, seed=5)}
    if "rotary" in kind:
        angles = tensor(count, size // 2, seed=6)
        return {"rotary": (angles.cos(), angles.sin()), "rotary_value": kind == "rotary_value"}
    return {}


@pytest.mark.parametrize(
    ("size", "heads", "dtype", "kind"),
    [
        (32, 2, "fp32", ""),
        (32, 1, "fp16", "bias"),
        (64, 1, "bf16", "bias"),
        (26, 2, "fp32", "rotary"),
        (26, 1, "bf16", "rotary_value"),
        (128, 1, "fp32", "bias"),
        (16, 1, "fp16", "rotary_value"),
        (7, 1, "fp32", ""),
    ],
)
def test_sequences(size: int, heads: int, dtype: str, kind: str) -> None:
    tokens = sum(LENGTHS)
    # Slices of one matrix, as a projection gives them.
    packed = tensor(tokens + IDLE, 3, heads, size, seed=0, dtype=DTYPES[dtype])
    packed[tokens:] = float("nan")  # must not be read
    query, key, value = packed.unbind(dim=1)
    options = positions(kind, heads, size, max(LENGTHS))
    result = varlen_attention(query, key, value, boundaries(LENGTHS), max(LENGTHS), **options)
    assert result.dtype == DTYPES[dtype]
    assert not result[tokens:].any()
    expected = references(*packed[:tokens].unbind(dim=1), LENGTHS, **options)
    check(result[:tokens], expected, TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("size", "heads", "shared", "dtype", "before", "after"),
    [
        (16, 4, 2, "fp32", None, 0),
        (26, 3, 1, "bf16", 7, 7),
        (32, 2, 2, "fp16", 0, 0),
        (16, 2, 1, "fp32", 64, 0),
        (256, 2, 1, "fp32", 20, 20),
        (16, 6, 3, "bf16", None, None),
    ],
)
def test_windows_and_shared_keys(
    *, size: int, heads: int, shared: int, dtype: str, before: int | None, after: int | None
) -> None:
    tokens = sum(LENGTHS)
    packed = tensor(tokens + IDLE, heads + 2 * shared, size, seed=0, dtype=DTYPES[dtype])
    packed[tokens:] = float("nan")
    query, key, value = packed.split([heads, shared, shared], dim=1)
    result = varlen_attention(
        query, key, value, boundaries(LENGTHS), max(LENGTHS), before=before, after=after
    )
    assert not result[tokens:].any()
    parts = zip(*(x[:tokens].double().split(LENGTHS) for x in (query, key, value)), strict=True)
    expected = torch.cat([attention(*part, before=before, after=after) for part in parts])
    check(result[:tokens], expected, TOLERANCE[dtype])


@pytest.mark.parametrize("part", ["key", "value"])
def test_an_overflow_reaches_what_sees_it_alone(part: str) -> None:
    lengths = [40, 90]
    inputs = {
        name: tensor(130, 1, 16, seed=seed, dtype=torch.float16)
        for seed, name in enumerate(("query", "key", "value"))
    }
    before = varlen_attention(**inputs, cu_seqlens=boundaries(lengths), max_seqlen=90, before=3, after=0)
    inputs[part][60] = float("inf")
    result = varlen_attention(**inputs, cu_seqlens=boundaries(lengths), max_seqlen=90, before=3, after=0)
    seen = torch.zeros(130, dtype=torch.bool, device=DEVICE)
    seen[60:64] = True
    assert torch.equal(~result.isfinite().all(dim=2)[:, 0], seen)
    # The second pass takes fewer keys a step, and so rounds otherwise.
    torch.testing.assert_close(result[~seen], before[~seen], rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("part", ["query", "key"])
def test_an_overflow_whose_scores_are_all_negative_is_not_a_key_left_out(part: str) -> None:
    query, key, value = (torch.zeros(5, 1, 16, dtype=torch.float16, device=DEVICE) for _ in range(3))
    query[:, 0, 0], key[:, 0, 0] = 1, -1
    (query if part == "query" else key)[1, 0, 0] *= float("inf")
    result = varlen_attention(query, key, value, boundaries([3, 2]), 3)[:, 0, 0]
    broken = [1] if part == "query" else [0, 1, 2]
    assert result.isnan().nonzero()[:, 0].tolist() == broken


def test_a_window_is_one_kernel_for_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = set()

    class Noted:
        def __getitem__(self, grid: object) -> Any:
            return lambda *tensors, **given: constants.add((given["BEFORE"], given["AFTER"]))

    monkeypatch.setattr("embedkit.kernels.varlen_attention.forward", Noted())
    for tokens in (5, 6, 100):
        query = torch.zeros(tokens, 1, 16, device=DEVICE)
        varlen_attention(query, query, query, boundaries([tokens]), tokens, before=64, after=2**31 - 1)
    assert len(constants) == 1


def test_windows_beyond_any_sequence() -> None:
    inputs = [tensor(6, 2, 16, seed=seed) for seed in range(3)]
    wide = varlen_attention(*inputs, boundaries([2, 4]), 4, before=2**31 - 1, after=2**31 - 1)
    assert torch.equal(wide, varlen_attention(*inputs, boundaries([2, 4]), 4))


@pytest.mark.parametrize("block", [16, 32, 128])
def test_a_map_of_fixed_size(block: int) -> None:
    lengths = [3, 40, 0, 1, 20]
    inputs = [tensor(64, 2, 8, seed=seed) for seed in range(3)]
    tiles = torch.from_numpy(attention_tiles(lengths, block, tiles=30)).to(DEVICE)
    result = varlen_attention(*inputs, boundaries(lengths), 40, scale=0.5, tile_map=tiles)
    check(result, references(*inputs, lengths, scale=0.5), 2e-6)


def test_large_scores_and_neighbors() -> None:
    """Scores that overflow without the maximum, and neighbors in a tile that must not be affected."""
    query, key, value = (tensor(6, 1, 16, seed=seed) for seed in range(3))
    query[:2] *= 1e6
    result = varlen_attention(query, key, value, boundaries([2, 3, 1]), 3)
    check(result, references(query, key, value, [2, 3, 1]), 2e-6)
    assert torch.equal(result[5], value[5])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"] if WHOLE else ["fp16"])
@pytest.mark.parametrize("kind", ["", "bias", "rotary_value"])
@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_a_sequence_that_overflows_leaves_its_neighbors(part: str, kind: str, dtype: str) -> None:
    """In a tile of several sequences, and where it is longer than a tile itself."""
    lengths = [3, 5, 4, 70, 2]
    tokens = sum(lengths)
    inputs = {
        name: tensor(tokens, 1, 16, seed=seed, dtype=DTYPES[dtype])
        for seed, name in enumerate(("query", "key", "value"))
    }
    options = positions(kind, 1, 16, max(lengths))
    before = varlen_attention(**inputs, cu_seqlens=boundaries(lengths), max_seqlen=70, **options)
    inputs[part][4] = float("inf")
    inputs[part][9, 0, 3] = float("nan")
    inputs[part][12 + 66, 0, 15] = -float("inf")
    result = varlen_attention(**inputs, cu_seqlens=boundaries(lengths), max_seqlen=70, **options)
    finite = [part.isfinite().all().item() for part in result.split(lengths)]
    assert finite == [True, False, False, False, True]
    for old, new, same in zip(before.split(lengths), result.split(lengths), finite, strict=True):
        assert torch.equal(old, new) == same
    if part == "value":  # of every row, whatever its pooling reads
        assert result[3:82].isnan().all()


def test_no_tokens() -> None:
    empty = tensor(0, 2, 8, seed=0)
    assert varlen_attention(empty, empty, empty, boundaries([0, 0]), 0).shape == (0, 2, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(4, 8)}, r"query must be \(tokens, heads, head_size\)"),
        ({"key": torch.zeros(4, 3, 8)}, r"key is torch.float32 \(4, 3, 8\), query"),
        ({"key": torch.zeros(4, 1, 8)}, r"value is torch.float32 \(4, 2, 8\), query"),
        ({"before": -1}, "before must not be negative"),
        ({"value": torch.zeros(4, 2, 8).half()}, "value is torch.float16"),
        ({"key": torch.zeros(4, 8, 2).mT}, "head of key are not adjacent"),
        (dict.fromkeys(("query", "key", "value"), torch.zeros(4, 2, 258)), "kernel supports 1 to 256"),
        (dict.fromkeys(("query", "key", "value"), torch.zeros(4, 2, 8).double()), "query must be float32"),
        ({"cu_seqlens": torch.zeros(2)}, "cu_seqlens must be int32 or int64"),
        ({"cu_seqlens": torch.tensor([1, 4])}, "cu_seqlens must start with 0"),
        ({"max_seqlen": 3}, "at most max_seqlen = 3 tokens in a sequence, not 0 and 4"),
        (
            {"query": torch.empty_strided((4, 2, 8), (2**30, 8, 1), device="meta")},
            "4 tokens of query lie 1073741824 values apart",
        ),
        ({"bias": torch.zeros(2, 8)}, r"bias must be float32 \(2, 2 max_distance - 1\)"),
        ({"bias": torch.zeros(2, 5)}, "bias reaches sequences of 3 tokens, max_seqlen is 4"),
        ({"rotary": (torch.zeros(4, 3), torch.zeros(4, 4))}, "rotary cos must be float32"),
        ({"rotary": (torch.zeros(4, 4), torch.zeros(3, 4))}, "max_seqlen = 4 rows, not 3"),
        ({"rotary_value": True}, "pass rotary as well"),
        ({"tile_map": torch.zeros(1, 7, dtype=torch.int32)}, "as returned by attention_tiles"),
        (
            dict.fromkeys(("query", "key", "value"), torch.zeros(4, 2, 200))
            | {"tile_map": torch.zeros(1, 132, dtype=torch.int32)},
            "tiles of 128 tokens for heads of 200 values do not fit",
        ),
        ({"key": torch.zeros(4, 2, 8, device="meta")}, "key is on meta"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    arguments = {
        **dict.fromkeys(("query", "key", "value"), torch.zeros(4, 2, 8)),
        "cu_seqlens": torch.tensor([0, 4]),
        "max_seqlen": 4,
        **change,
    }
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.device.type == "cpu":
            arguments[name] = value.to(DEVICE)
    with pytest.raises(ValueError, match=message):
        varlen_attention(**arguments)
