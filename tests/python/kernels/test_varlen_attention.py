"""The attention kernel: its machine code for several GPUs, and its tiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from embedkit.kernels import varlen_attention as host
from embedkit.kernels import varlen_attention_triton as kernels
from embedkit.kernels.attention_tiles import HEADER, attention_tiles, max_attention_tiles
from triton_harness import CAPABILITIES, DTYPES, check_usage, compiled

# Head size, heads, type, positions, tokens a tile: MiniLM, MPNet, RoFormer, TinyBERT (26), the narrowest, the widest.
SHAPES = [
    (32, 12, "bf16", "", 64),
    (64, 12, "bf16", "bias", 64),
    (64, 12, "fp16", "rotary_value", 64),
    (26, 12, "fp16", "", 128),
    (16, 8, "fp16", "bias", 16),
    (128, 8, "bf16", "rotary_value", 64),
    (128, 8, "bf16", "bias", 128),
    (32, 12, "fp32", "rotary_value", 64),
    (64, 12, "fp32", "bias", 64),
    (128, 8, "fp32", "", 64),
    (128, 8, "fp32", "rotary_value", 64),
    (256, 4, "bf16", "rotary_value", 64),
]
TARGETS = [(shape, capability) for shape in SHAPES for capability in (80, 90)]
# sm_86 and sm_89: the two common models, and those that need the most shared memory, of which these GPUs have less.
TARGETS += [(SHAPES[index], capability) for index in (0, 1, 5, 10, 11) for capability in (86, 89)]
TARGETS += [(SHAPES[index], capability) for index in (0, 1, 2, 4, 11) for capability in (100, 120)]
# sm_75: what needs the most shared memory of what it takes.
TARGETS += [(SHAPES[10], 75)]
# Programs on a multiprocessor, and instructions, of what runs most; the second pass is half of the latter.
FLOORS = {(0, 90): (8, 1300), (1, 90): (3, 2700), (0, 100): (8, 1500), (0, 120): (5, 1500)}


@pytest.mark.parametrize(("shape", "capability"), TARGETS, ids=lambda value: str(value).replace(" ", ""))
def test_compiles_without_a_spill(
    shape: tuple[Any, ...], capability: int, tmp_path: Path, record_property: Any
) -> None:
    size, heads, dtype, kind, block = shape
    assert size <= host.max_head_size(capability)
    types = dict.fromkeys(["query_ptr", "key_ptr", "value_ptr", "out_ptr"], f"*{dtype}")
    types |= {"tiles_ptr": "*i32", "scale": "fp32"}
    types |= {"bias_ptr": "*fp32"} if kind == "bias" else {}
    types |= {"cos_ptr": "*fp32", "sin_ptr": "*fp32"} if "rotary" in kind else {}
    constants = host._options(
        size, DTYPES[dtype].itemsize, block, capability, bias=kind == "bias", rotary="rotary" in kind
    )
    constants |= {f"{name}_TOKEN": 3 * heads * size for name in ("QUERY", "KEY", "VALUE")}
    constants |= {f"{name}_HEAD": size for name in ("QUERY", "KEY", "VALUE")}
    constants |= {"HEADS": heads, "MAX_DISTANCE": 512 if kind == "bias" else 0}
    constants |= {"ROTARY": "rotary" in kind, "ROTARY_VALUE": kind == "rotary_value"}
    constants |= {"SHARED": 1, "BEFORE": -1, "AFTER": -1}
    code = compiled(kernels.forward, types, constants, capability)
    programs, longest = FLOORS.get((SHAPES.index(shape), capability), (1, None))
    few = 64 if "rotary" in kind and size > 128 else 0  # bytes that spill: nothing beside the keys of a step
    check_usage(code, tmp_path, record_property, programs=programs, longest=longest, stack=few)
    # float32 is multiplied in float32; 16 bits on the tensor cores.
    assert ("mma" in code.asm["ptx"] or "tcgen05" in code.asm["ptx"]) == (dtype != "fp32")
    assert "tf32" not in code.asm["ptx"]


# Head size, heads, heads of keys, type, bias, window, causal: ModernBERT, its global layers, Qwen3, Gemma, Jina v2.
WINDOWS = [
    (64, 12, 12, "bf16", False, 64, False),
    (64, 12, 12, "bf16", False, None, False),
    (128, 16, 8, "bf16", False, None, True),
    (256, 3, 1, "bf16", False, 256, False),
    (256, 3, 1, "fp32", False, 256, False),
    (64, 12, 12, "fp16", True, None, False),
]


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("shape", WINDOWS, ids=lambda value: str(value).replace(" ", ""))
def test_windows_compile_without_a_spill(
    shape: tuple[Any, ...], capability: int, tmp_path: Path, record_property: Any
) -> None:
    size, heads, shared, dtype, bias, window, causal = shape
    types = dict.fromkeys(["query_ptr", "key_ptr", "value_ptr", "out_ptr"], f"*{dtype}")
    types |= {"tiles_ptr": "*i32", "scale": "fp32"} | ({"bias_ptr": "*fp32"} if bias else {})
    constants = host._options(size, DTYPES[dtype].itemsize, 64, capability, bias=bias, rotary=False)
    constants |= {f"{name}_TOKEN": (heads + 2 * shared) * size for name in ("QUERY", "KEY", "VALUE")}
    constants |= {f"{name}_HEAD": size for name in ("QUERY", "KEY", "VALUE")}
    constants |= {"HEADS": heads, "MAX_DISTANCE": 512 if bias else 0, "ROTARY": False, "ROTARY_VALUE": False}
    before = -1 if window is None else window
    constants |= {"SHARED": heads // shared, "BEFORE": before, "AFTER": 0 if causal else before}
    code = compiled(kernels.forward, types, constants, capability)
    check_usage(code, tmp_path, record_property)


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("longest", [2, 30, 70, 300])
def test_tiles_cover_each_token_once_with_the_keys_of_its_sequence(block: int, longest: int) -> None:
    random = np.random.default_rng(longest)
    for idle in (0, 1, 100):
        lengths = random.integers(0, longest + 1, size=60)
        total = int(lengths.sum())
        room = max_attention_tiles(total + idle, block)
        tiles = attention_tiles(lengths, block, tokens=total + idle, tiles=room)
        assert tiles.shape == (room, HEADER + block)
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        ends = np.repeat(np.cumsum(lengths), lengths)
        seen = np.zeros(total + idle, dtype=int)
        for first, end, key_start, key_end, *of_row in tiles.tolist():
            seen[first:end] += 1
            assert end - first <= block
            if first >= total:
                assert key_start == key_end
                continue
            assert of_row[: end - first] == starts[first:end].tolist()
            assert key_start <= min(of_row[: end - first], default=0)
            assert key_end >= ends[first:end].max(initial=0)
        assert (seen == 1).all()


def test_the_bound_of_tiles_is_reached_by_the_worst_lengths() -> None:
    lengths = [1, *[17, 1] * 50]
    needed = len(attention_tiles(lengths, 16))
    assert needed == 151 <= max_attention_tiles(sum(lengths), 16)
    with pytest.raises(ValueError, match="has 151 tiles, and there is room for 150"):
        attention_tiles(lengths, 16, tiles=150)


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("longest", [2, 20, 70, 300])
def test_descending_lengths_need_fewer_tiles(block: int, longest: int) -> None:
    random = np.random.default_rng(longest)
    for count in (1, 2, 3, 10, 100):
        for idle in (0, 1, 200):
            lengths = -np.sort(-random.integers(0, longest + 1, size=count))
            tokens = int(lengths.sum()) + idle
            room = max_attention_tiles(tokens, block, descending=True)
            attention_tiles(lengths, block, tokens=tokens, tiles=room)
    # The worst: every sequence leaves a part of one token, or cannot share a tile.
    for worst in ([block + 1] * 50, [block // 2 + 1] * 50, [block + 1] * 50 + [block // 2 + 1] * 51):
        room = max_attention_tiles(sum(worst), block, descending=True)
        assert room >= len(attention_tiles(worst, block)) > 0.85 * room


def test_short_sequences_share_tiles() -> None:
    assert len(attention_tiles([16] * 40, 64)) == 10
    assert not attention_tiles([], 64).any()
    assert attention_tiles([], 64).shape == (1, HEADER + 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [1], "block": 24}, "block must be"),
        ({"lengths": [-1]}, "not negative"),
        ({"lengths": [[1]]}, r"must be \(sequences,\)"),
        ({"lengths": [5], "tokens": 4}, "the sequences have 5 tokens, the batch 4"),
    ],
)
def test_bad_lengths_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention_tiles(**arguments)


def test_importing_the_kernels_imports_nothing_heavy() -> None:
    script = """
import sys, embedkit.kernels
from embedkit.kernels import attention_tiles
assert attention_tiles.attention_tiles([3]).shape == (1, 68)
assert not {"torch", "triton"} & set(sys.modules)
assert not hasattr(embedkit.kernels, "nothing")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
