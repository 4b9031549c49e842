"""The machine code of the kernels of the families since BERT's, for several GPUs, and their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from embedkit.kernels import add_norm_triton, gated_triton, qk_norm_rope_triton
from embedkit.kernels.blocks import blocks
from embedkit.kernels.layernorm import row_blocks
from embedkit.kernels.modern_forward import alibi_bias, rotary_table
from embedkit.kernels.qk_norm_rope import _options
from triton_harness import CAPABILITIES, check_usage, compiled


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("function", ["silu", "gelu", "gelu_new"])
def test_gated_compiles_without_a_spill(
    *, capability: int, function: str, tmp_path: Path, record_property: Any
) -> None:
    types = {"x_ptr": "*bf16", "out_ptr": "*bf16", "tokens": "i32"}
    constants = {"SIZE": 1152, "FUNCTION": function, "SECOND": False, **blocks("bias_gelu", capability)}
    code = compiled(gated_triton.forward, types, constants, capability)
    check_usage(code, tmp_path, record_property)
    assert "ld.global.v4.b32" in code.asm["ptx"], "rows are not read 16 bytes at a time"


# Hidden size, RMS, norm before the sum: ModernBERT, Qwen3, Gemma, the widest.
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(
    ("size", "rms", "post_norm"),
    [(768, False, False), (1024, True, False), (768, True, True), (8192, True, True)],
)
def test_add_norm_compiles_without_a_spill(
    *, capability: int, size: int, rms: bool, post_norm: bool, tmp_path: Path, record_property: Any
) -> None:
    types = {**dict.fromkeys(("x_ptr", "residual_ptr", "out_ptr"), "*bf16"), "weight_ptr": "*fp32"}
    types |= {"tokens": "i32", "eps": "fp32"} | ({"post_ptr": "*fp32"} if post_norm else {})
    constants = {"H": size, "RESIDUAL": True, "POST": post_norm, "BIAS": False, "RMS": rms}
    constants |= row_blocks(size, capability)
    code = compiled(add_norm_triton.forward, types, constants, capability)
    check_usage(code, tmp_path, record_property)
    assert "ld.global.v4.b32" in code.asm["ptx"], "rows are not read 16 bytes at a time"


# Size of a head, heads, heads of keys, norm, trained length: ModernBERT, Nomic, Qwen3, Gemma.
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(
    ("size", "heads", "shared", "norm", "trained"),
    [(64, 12, 12, False, 0), (64, 12, 12, False, 2048), (128, 16, 8, True, 0), (256, 3, 1, True, 0)],
)
def test_qk_norm_rope_compiles_without_a_spill(
    *,
    capability: int,
    size: int,
    heads: int,
    shared: int,
    norm: bool,
    trained: int,
    tmp_path: Path,
    record_property: Any,
) -> None:
    types = {"x_ptr": "*bf16", "tiles_ptr": "*i32", "eps": "fp32", "stretch": "fp32"}
    types |= dict.fromkeys(("cos_ptr", "sin_ptr", "speed_ptr"), "*fp32") | (
        {"weight_ptr": "*fp32"} if norm else {}
    )
    constants: dict[str, Any] = {"TOKEN": (heads + 2 * shared) * size, "HEADS": heads, "KEYS": shared}
    constants |= {"NORM": norm, "ROTARY": True, "TRAINED": trained, **_options(size, 64)}
    code = compiled(qk_norm_rope_triton.forward, types, constants, capability)
    # Angles of thousands need cosines that reduce them exactly, with a table of 28 bytes a thread on the stack.
    check_usage(code, tmp_path, record_property, stack=64 if trained else 0)
    assert "cos.approx" not in code.asm["ptx"]


def test_alibi_has_the_slopes_of_the_paper() -> None:
    table = alibi_bias(8, 3)
    np.testing.assert_array_equal(table[:, 1], -(2.0 ** -np.arange(1, 9)))
    np.testing.assert_array_equal(table[0], [-1, -0.5, 0, -0.5, -1])
    # Between powers of two: those of 4 heads, then every second of 8.
    np.testing.assert_allclose(alibi_bias(6, 2)[:, 0], -(2.0 ** -np.array([2, 4, 6, 8, 1, 3])))


def test_rotary_table() -> None:
    rotary = rotary_table(10, 4, 100.0, 2.0, torch.device("cpu"))
    np.testing.assert_allclose(rotary.speed, [0.5, 0.05], rtol=1e-6)
    np.testing.assert_allclose(rotary.cos[3], np.cos([1.5, 0.15]), rtol=1e-6)
    np.testing.assert_allclose(rotary.sin[9], np.sin([4.5, 0.45]), rtol=1e-6)
    # Waves of 2π · 1, 10, 100 and 1,000 positions.
    llama3 = rotary_table(10, 8, 10000.0, 2.0, torch.device("cpu"), waves=(10.0, 1000.0))
    kept = (1 / (20 * np.pi) - 0.001) / (0.1 - 0.001), (1 / (200 * np.pi) - 0.001) / (0.1 - 0.001)
    between = [0.1 * (0.5 + kept[0] / 2), 0.01 * (0.5 + kept[1] / 2)]
    np.testing.assert_allclose(llama3.speed, [1, *between, 0.0005], rtol=1e-6)
    trained = rotary_table(10, 4, 100.0, 1.0, torch.device("cpu"), trained=6, stretch=2.0)
    assert (len(trained.cos), trained.trained, trained.stretch) == (6, 6, 2.0)
    assert rotary_table(5, 4, 100.0, 1.0, torch.device("cpu"), trained=6).trained == 0
