"""The machine code of the layer norm kernels for several GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from embedkit.kernels import layernorm_triton as kernels
from embedkit.kernels.layernorm import row_blocks
from triton_harness import CAPABILITIES, check_usage, compiled


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("size", [312, 384, 768, 8192])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_residual_compiles_without_a_spill(
    *, capability: int, size: int, dtype: str, tmp_path: Path, record_property: Any
) -> None:
    names = ("x_ptr", "residual_ptr", "x_bias_ptr", "weight_ptr", "bias_ptr", "out_ptr")
    types = {**dict.fromkeys(names, f"*{dtype}"), "tokens": "i32", "eps": "fp32"}
    constants = {"H": size, "X_BIAS": True, "QUANTIZE": "", **row_blocks(size, capability)}
    code = compiled(kernels.residual, types, constants, capability)
    check_usage(code, tmp_path, record_property)
    assert "ld.global.v4.b32" in code.asm["ptx"], "rows are not read 16 bytes at a time"


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(
    ("size", "dtype", "typed"), [(384, "bf16", True), (384, "bf16", False), (8192, "fp32", True)]
)
def test_embed_compiles_without_a_spill(
    *, capability: int, size: int, dtype: str, typed: bool, tmp_path: Path, record_property: Any
) -> None:
    """Typed: with the type of each token; else all have type 0, as everywhere in the package."""
    types = dict.fromkeys(("ids_ptr", "positions_ptr", *(("types_ptr",) if typed else ())), "*i32")
    names = ("word_ptr", "position_ptr", "type_ptr", "weight_ptr", "bias_ptr", "out_ptr")
    types |= {**dict.fromkeys(names, f"*{dtype}"), "tokens": "i32", "eps": "fp32"}
    constants = {"H": size, "POSITION": True, "TYPE": True, "TYPE_IDS": typed, "QUANTIZE": ""}
    constants |= row_blocks(size, capability)
    check_usage(compiled(kernels.embed, types, constants, capability), tmp_path, record_property)
