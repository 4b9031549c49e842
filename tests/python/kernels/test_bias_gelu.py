"""The machine code of the GELU kernel for several GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from embedkit.kernels import bias_gelu_triton as kernels
from embedkit.kernels.blocks import blocks
from triton_harness import CAPABILITIES, check_usage, compiled


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize(("size", "dtype"), [(1536, "bf16"), (1200, "fp32")])
def test_compiles_without_a_spill(
    *, capability: int, new: bool, size: int, dtype: str, tmp_path: Path, record_property: Any
) -> None:
    types = dict.fromkeys(("x_ptr", "bias_ptr", "out_ptr"), f"*{dtype}") | {"tokens": "i32"}
    constants = {"SIZE": size, "NEW": new, **blocks("bias_gelu", capability)}
    code = compiled(kernels.forward, types, constants, capability)
    check_usage(code, tmp_path, record_property)
    assert "ld.global.v4.b32" in code.asm["ptx"], "rows are not read 16 bytes at a time"
