"""The pooling kernel: its arithmetic without a GPU, its machine code for several GPUs, and both on a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from embedkit.kernels import pool_project_normalize as host  # noqa: E402
from embedkit.kernels import pool_project_normalize_triton as kernels  # noqa: E402

CASES = Path(__file__).with_name("pool_project_normalize_cases.py")
ROOT = Path(__file__).parents[3]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Shared memory of one program, bytes: sm_86 and sm_89 have the least.
SHARED_MEMORY = 99 * 1024


def run_cases(**environment: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(ROOT),
    ]
    done = subprocess.run(
        [*command, str(CASES)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_interpreted() -> None:
    """Every case on the CPU; triton chooses its interpreter when it is imported, hence the process."""
    run_cases(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu() -> None:
    run_cases(TRITON_INTERPRET="0")


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], capability: int) -> Any:
    """``kernel`` as machine code; pointers are aligned as torch's are, and absent ones are None."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    values = {name: constants.get(name) for name in kernel.arg_names if signature[name] == "constexpr"}
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, type_ in enumerate(signature.values()) if type_[0] == "*"
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def usage(code: Any, folder: Path) -> dict[str, int]:
    """REG (a thread), STACK and LOCAL (bytes a thread) of the machine code."""
    from triton.backends import nvidia

    path = folder / "kernel.cubin"
    path.write_bytes(code.asm["cubin"])
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    report = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True)
    found = re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report.stdout + report.stderr)
    return {name: int(value) for name, value in found}


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
]


# sm_86 and sm_89 differ from sm_80 in shared memory: the case that needs most of it is enough.
TARGETS = [(case, capability) for case in FORWARD for capability in (80, 90)]
TARGETS += [(FORWARD[3], capability) for capability in (86, 89)]


@pytest.mark.parametrize(("case", "capability"), TARGETS, ids=lambda value: str(value).replace(" ", ""))
def test_forward_compiles_without_a_spill(
    case: tuple[Any, ...], capability: int, tmp_path: Path, record_property: Any
) -> None:
    size, dimension, dtype, layout, pooling, output, save = case
    project = dimension is not None
    weight = torch.empty(dimension, size, dtype=DTYPES[dtype]).T if project else None
    constants = host._options(
        size, dimension or size, weight, layout, pooling, "tanh" if project else "identity", True, output
    )
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
    if project or save:
        types["count_ptr"] = "*i32"
    if save:
        types["norm_ptr"] = "*fp32"
        types |= {"index_ptr": "*i32"} if pooling != "mean" else {}
    if output != "float32":
        types["out_ptr"] = "*i8" if output == "int8" else "*u8"
        types |= {"ranges_ptr": "*fp32"} if output == "int8" else {}
    code = compiled(kernels.forward, types, constants, capability)
    used = usage(code, tmp_path)
    record_property("registers", used["REG"])
    assert (used["STACK"], used["LOCAL"]) == (0, 0), used
    assert code.metadata.shared <= SHARED_MEMORY
    ptx = code.asm["ptx"]
    if project:
        # float32 is multiplied in float32; 16 bits on the tensor cores.
        assert ("mma.sync" in ptx) == (dtype != "fp32")
        assert "tf32" not in ptx
    if size % 8 == 0:
        assert re.search(r"ld\.global\.v4\.b32", ptx), "rows are not read 16 bytes at a time"


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("size", [384, 8192])
@pytest.mark.parametrize(("layout", "pooling"), [("packed", "mean"), ("mask", "max"), ("lengths", "cls")])
def test_backward_compiles_without_a_spill(
    *, capability: int, size: int, layout: str, pooling: str, tmp_path: Path, record_property: Any
) -> None:
    types = {"grad_ptr": "*fp32", "count_ptr": "*i32", "result_ptr": "*bf16"}
    types |= {"texts": "i32", "padded": "i32", "tokens": "i32"}
    types |= {"mask_ptr": "*u8"} if layout == "mask" else {"bounds_ptr": "*i64"}
    types |= {"index_ptr": "*i32"} if pooling != "mean" else {}
    constants = {"H": size, "LAYOUT": layout, "POOLING": pooling, **host._blocks(size)}
    used = usage(
        compiled(kernels.backward_tokens, types, {**constants, "num_warps": host._warps(size)}, capability),
        tmp_path,
    )
    record_property("registers", used["REG"])
    assert (used["STACK"], used["LOCAL"]) == (0, 0), used


@pytest.mark.parametrize("dimension", [1, 128, 8192])
def test_backward_of_the_head_compiles_without_a_spill(dimension: int, tmp_path: Path) -> None:
    types = dict.fromkeys(["grad_ptr", "out_ptr", "norm_ptr", "result_ptr"], "*fp32")
    types |= {"count_ptr": "*i32", "texts": "i32"}
    block = triton.next_power_of_2(dimension)
    constants = {
        "D": dimension,
        "TANH": True,
        "NORMALIZE": True,
        "ROWS": max(1, 1024 // block),
        "BLOCK_D": block,
    }
    used = usage(
        compiled(kernels.backward_head, types, {**constants, "num_warps": host._warps(block)}, 90), tmp_path
    )
    assert (used["STACK"], used["LOCAL"]) == (0, 0), used
