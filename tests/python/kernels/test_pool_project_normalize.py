"""The machine code of the pooling kernel for several GPUs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from embedkit.kernels import pool_project_normalize as host
from embedkit.kernels import pool_project_normalize_triton as kernels
from embedkit.kernels.launch import warps
from triton_harness import CAPABILITIES, DTYPES, check_usage, compiled

# H, D, dtype, layout, pooling, output, save: the common models, the widest rows, the widest projections.
FORWARD = [
    (384, 128, "bf16", "packed", "mean", "float32", False),
    (384, 128, "fp32", "packed", "mean", "float32", True),
    (312, 128, "fp16", "mask", "max", "float32", True),
    (1024, 1024, "fp32", "packed", "max", "float32", True),
    (1024, 1024, "bf16", "lengths", "mean", "int8", False),
    (26, 1, "fp32", "mask", "cls", "float32", True),
    (768, None, "bf16", "packed", "mean", "ubinary", False),
    (8192, None, "fp32", "packed", "max", "float32", True),
    (768, 512, "fp32", "packed", "mean", "float32", False),
]


TARGETS = [(case, capability) for case in FORWARD for capability in (80, 90)]
# sm_86 and sm_89: the common case, and those that need the most shared memory, of which these GPUs have less.
TARGETS += [(FORWARD[index], capability) for index in (0, 3) for capability in (86, 89, 100, 120)]
# sm_75: the widest float32 projection that it takes.
TARGETS += [(FORWARD[8], 75)]


@pytest.mark.parametrize(("case", "capability"), TARGETS, ids=lambda value: str(value).replace(" ", ""))
def test_forward_compiles_without_a_spill(
    case: tuple[Any, ...], capability: int, tmp_path: Path, record_property: Any
) -> None:
    size, dimension, dtype, layout, pooling, output, save = case
    project = dimension is not None
    assert not project or dimension <= host.max_dimension(DTYPES[dtype], capability)
    weight = torch.empty(dimension, size, dtype=DTYPES[dtype]).T if project else None
    settings = host._Settings(layout, 0, pooling, "tanh" if project else "identity", True, output)
    constants = host._options(settings, size, dimension or size, weight, capability)
    constants |= {"STRIDE_TOKEN": size, "BIAS": project, "SAVE": save}
    types = {"hidden_ptr": f"*{dtype}", "texts": "i32", "padded": "i32", "out_ptr": "*fp32"}
    types |= {"mask_ptr": "*i64"} if layout == "mask" else {"bounds_ptr": "*i32"}
    if project:
        types |= {
            "weight_ptr": f"*{dtype}",
            "bias_ptr": f"*{dtype}",
            "pooled_ptr": "*fp32",
            "ticket_ptr": "*i32",
        }
    if save:
        types["count_ptr"] = "*i32"
        types["norm_ptr"] = "*fp32"
        types |= {"index_ptr": "*i32"} if pooling != "mean" else {}
    if output != "float32":
        types["out_ptr"] = "*i8" if output == "int8" else "*u8"
        types |= {"ranges_ptr": "*fp32"} if output == "int8" else {}
    code = compiled(kernels.forward, types, constants, capability)
    spilled = 0 if capability >= 80 else 1024  # it runs there, and is slow
    check_usage(code, tmp_path, record_property, stack=spilled)
    ptx = code.asm["ptx"]
    if project:
        # float32 is multiplied in float32; 16 bits on the tensor cores.
        assert ("mma.sync" in ptx) == (dtype != "fp32")
        assert "tf32" not in ptx
    if size % 8 == 0:
        assert re.search(r"ld\.global\.v4\.b32", ptx), "rows are not read 16 bytes at a time"


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("size", [384, 8192])
@pytest.mark.parametrize(("layout", "pooling"), [("packed", "mean"), ("mask", "max"), ("lengths", "cls")])
def test_backward_compiles_without_a_spill(
    *, capability: int, size: int, layout: str, pooling: str, tmp_path: Path, record_property: Any
) -> None:
    types = {"grad_ptr": "*fp32", "count_ptr": "*i32", "result_ptr": "*bf16"}
    types |= {"texts": "i32", "padded": "i32", "tokens": "i32"}
    types |= {"mask_ptr": "*u8"} if layout == "mask" else {"bounds_ptr": "*i64"}
    types |= {"index_ptr": "*i32"} if pooling != "mean" else {}
    constants = {"H": size, "LAYOUT": layout, "POOLING": pooling, **host._blocks(size, capability=capability)}
    constants["num_warps"] = warps(size)
    check_usage(compiled(kernels.backward_tokens, types, constants, capability), tmp_path, record_property)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dimension", [1, 128, 8192])
def test_backward_of_the_head_compiles_without_a_spill(
    *, capability: int, dimension: int, tmp_path: Path, record_property: Any
) -> None:
    types = dict.fromkeys(["grad_ptr", "out_ptr", "norm_ptr", "result_ptr"], "*fp32")
    types["texts"] = "i32"
    block = triton.next_power_of_2(dimension)
    constants = {
        "D": dimension,
        "TANH": True,
        "NORMALIZE": True,
        "ROWS": max(1, 1024 // block),
        "BLOCK_D": block,
        "num_warps": warps(block),
    }
    check_usage(compiled(kernels.backward_head, types, constants, capability), tmp_path, record_property)
