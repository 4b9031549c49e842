"""Cases of `qk_norm_rope`, run by test_arithmetic.py in a separate process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from embedkit.kernels import reference
from embedkit.kernels.attention_tiles import attention_tiles
from embedkit.kernels.qk_norm_rope import RotaryTable, qk_norm_rope
from torch import Tensor
from triton_harness import DEVICE, DTYPES, check, tensor

LENGTHS = [0, 1, 5, 17, 64, 3, 150, 0, 90]
IDLE = 7
TOLERANCE = {"fp32": 1e-6, "fp16": 2**-10, "bf16": 2**-7}


def rotary(size: int, *, trained: int = 0, stretch: float = 1.0) -> RotaryTable:
    speed = 100.0 ** (-torch.arange(0, size, 2, device=DEVICE).double() / size)
    angle = torch.arange(max(LENGTHS), device=DEVICE)[:, None] * speed
    return RotaryTable(angle.cos().float(), angle.sin().float(), speed.float(), trained, stretch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("size", "heads", "keys", "kind"),
    [
        (16, 2, 2, "rotary"),
        (14, 6, 2, "norm rotary"),
        (18, 3, 1, "norm"),
        (64, 1, 1, "rotary stretched"),
        (256, 3, 1, "norm rotary"),
    ],
)
def test_against_torch(size: int, heads: int, keys: int, kind: str, dtype: str) -> None:
    total = sum(LENGTHS)
    x = tensor(total + IDLE, (heads + 2 * keys) * size, seed=0, dtype=DTYPES[dtype])
    before = x.clone()
    tiles = torch.from_numpy(attention_tiles(LENGTHS, tokens=len(x), tiles=30)).to(DEVICE)
    norm = tensor(2, size, seed=1) if "norm" in kind else None
    stretched = {"trained": 80, "stretch": 2.0} if "stretched" in kind else {}
    turned = rotary(size, **stretched) if "rotary" in kind else None  # type: ignore[arg-type]
    qk_norm_rope(x, heads, keys, size, tiles, rotary=turned, norm=norm, eps=1e-6)
    # Values and tokens of no sequence stay.
    assert torch.equal(x[total:], before[total:])
    assert torch.equal(x[:, (heads + keys) * size :], before[:, (heads + keys) * size :])

    def expected(first: int, last: int, row: int) -> Tensor:
        part = before[:total, first * size : last * size].double().unflatten(1, (-1, size))
        options: dict[str, Any] = {
            "speed": None
            if turned is None
            else 100.0 ** (-torch.arange(0, size, 2, device=DEVICE).double() / size),
            "norm": None if norm is None else norm[row].double(),
            "eps": 1e-6,
            **stretched,
        }
        return torch.cat([reference.qk_norm_rope(one, **options) for one in part.split(LENGTHS)]).flatten(1)

    tolerance = max(TOLERANCE[dtype], 3e-5 if stretched else 0)  # angles in float32
    check(x[:total, : heads * size], expected(0, heads, 0), tolerance)
    check(x[:total, heads * size : (heads + keys) * size], expected(heads, heads + keys, 1), tolerance)


def test_nothing_to_do() -> None:
    x = tensor(3, 8, seed=0)
    before = x.clone()
    tiles = torch.from_numpy(attention_tiles([3])).to(DEVICE)
    qk_norm_rope(x, 1, 1, 4, tiles)
    qk_norm_rope(x, 1, 1, 3, tiles)  # T5 has no positions to rotate, and may have heads of any size
    qk_norm_rope(x[:0], 1, 1, 4, tiles, norm=tensor(2, 4, seed=1))
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(4, 5)}, r"x must be contiguous \(tokens, 8 or more\)"),
        ({"size": 3}, "even sizes from 2 to 256"),
        ({"norm": torch.zeros(2, 3)}, r"norm must be float32 \(2, 4\)"),
        ({"rotary": RotaryTable(*[torch.zeros(4, 3)] * 3)}, r"cos must be float32 \(positions, 2\)"),
        (
            {"rotary": RotaryTable(torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(2), 20)},
            "below a tile of 64",
        ),
        ({"tile_map": torch.zeros(2, 68)}, "as returned by attention_tiles"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "x": torch.zeros(4, 12), "heads": 1, "key_heads": 1, "size": 4,
        "tile_map": torch.zeros(2, 68, dtype=torch.int32), "rotary": None, "norm": torch.zeros(2, 4), **change,
    }  # fmt: skip
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            arguments[name] = value.to(DEVICE)
    if arguments["rotary"] is not None:
        given = arguments["rotary"]
        arguments["rotary"] = RotaryTable(
            *(t.to(DEVICE) for t in (given.cos, given.sin, given.speed)), given.trained
        )
    with pytest.raises(ValueError, match=message):
        qk_norm_rope(**arguments)
