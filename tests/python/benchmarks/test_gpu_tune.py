"""Every choice of `kernels.py --tune` compiles, for the GPU that it is meant for first."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from embedkit.kernels import (
    bias_gelu_triton,
    layernorm_triton,
    pool_project_normalize_triton,
    quantized_linear_triton,
    varlen_attention_triton,
)
from embedkit.kernels import pool_project_normalize as pooling
from embedkit.kernels import quantized_linear as products
from embedkit.kernels import varlen_attention as attention
from embedkit.kernels.blocks import blocks, override
from embedkit.kernels.layernorm import row_blocks
from triton_harness import compiled

CAPABILITY = 90
SIZE, HEADS, INNER = 384, 12, 1536  # of MiniLM


def bias_gelu() -> Any:
    types = dict.fromkeys(("x_ptr", "bias_ptr", "out_ptr"), "*bf16") | {"tokens": "i32"}
    constants = {"SIZE": INNER, "NEW": False, **blocks("bias_gelu", CAPABILITY)}
    return compiled(bias_gelu_triton.forward, types, constants, CAPABILITY)


def layernorm() -> Any:
    names = ("x_ptr", "residual_ptr", "x_bias_ptr", "weight_ptr", "bias_ptr", "out_ptr")
    types = {**dict.fromkeys(names, "*bf16"), "tokens": "i32", "eps": "fp32"}
    constants = {"H": SIZE, "X_BIAS": True, "QUANTIZE": "", **row_blocks(SIZE, CAPABILITY)}
    return compiled(layernorm_triton.residual, types, constants, CAPABILITY)


def pool_project_normalize() -> Any:
    settings = pooling._Settings("packed", 0, "mean", "identity", True, "float32")
    constants = pooling._options(settings, SIZE, SIZE, None, CAPABILITY)
    constants |= {"STRIDE_TOKEN": SIZE, "BIAS": False, "SAVE": False}
    types = {"hidden_ptr": "*bf16", "texts": "i32", "padded": "i32", "out_ptr": "*fp32", "bounds_ptr": "*i32"}
    return compiled(pool_project_normalize_triton.forward, types, constants, CAPABILITY)


def varlen_attention() -> Any:
    types = dict.fromkeys(["query_ptr", "key_ptr", "value_ptr", "out_ptr"], "*bf16")
    types |= {"tiles_ptr": "*i32", "scale": "fp32"}
    constants = attention._options(SIZE // HEADS, 2, 64, CAPABILITY, bias=False, rotary=False)
    constants |= {f"{name}_TOKEN": 3 * SIZE for name in ("QUERY", "KEY", "VALUE")}
    constants |= {f"{name}_HEAD": SIZE // HEADS for name in ("QUERY", "KEY", "VALUE")}
    constants |= {"HEADS": HEADS, "MAX_DISTANCE": 0, "ROTARY": False, "ROTARY_VALUE": False}
    constants |= {"SHARED": 1, "BEFORE": -1, "AFTER": -1}
    return compiled(varlen_attention_triton.forward, types, constants, CAPABILITY)


def quantized_linear() -> Any:
    types = {
        "x_ptr": "*fp8e4nv", "x_scale_ptr": "*fp32", "weight_ptr": "*fp8e4nv", "weight_scale_ptr": "*fp32",
        "weight_sums_ptr": "*fp32", "bias_ptr": "*bf16", "tokens": "i32", "out_ptr": "*bf16",
    }  # fmt: skip
    constants = products._options(16384, 3 * SIZE, CAPABILITY, programs=132)
    constants |= {
        "N": 3 * SIZE, "K": SIZE, "PRODUCTS": "fp8", "GROUPS": False, "SHIFT": False, "BIAS": True,
        "ACTIVATION": "identity", "QUANTIZE": False,
    }  # fmt: skip
    return compiled(quantized_linear_triton.forward, types, constants, CAPABILITY)


KERNELS = {
    one.__name__: one
    for one in (bias_gelu, layernorm, pool_project_normalize, varlen_attention, quantized_linear)
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_choice_of_the_grid_compiles(kernel: str) -> None:
    from kernels_gpu import GRIDS

    assert set(GRIDS) == set(KERNELS)
    grid = GRIDS[kernel]
    for values in itertools.product(*grid.values()):
        choice = dict(zip(grid, values, strict=True))
        with override(kernel, choice):
            code = KERNELS[kernel]()
        assert code.asm["cubin"], choice
        assert code.metadata.num_warps == choice.get("num_warps", code.metadata.num_warps)
