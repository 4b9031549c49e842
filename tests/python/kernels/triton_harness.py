"""Shared by the tests of all Triton kernels: inputs, processes for the interpreter, compiling without a GPU.

``NAME_cases.py`` calls a kernel and compares it with a reference in double precision. ``test_arithmetic.py`` runs all
such files in separate processes, under Triton's interpreter and, if there is one, on a GPU. ``test_NAME.py``
compiles the kernel for GPUs that this machine may not have.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).parents[3]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# The interpreter takes milliseconds for each program: what another case shows there too runs on a GPU alone.
WHOLE = DEVICE == "cuda"
INTERPRETED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
# Shared memory that one program may have, bytes; a multiprocessor has 1 KiB more, and takes 1 KiB for each program.
CAPABILITIES = [80, 86, 89, 90, 100, 120]
"""Ten times the compute capabilities that each kernel is compiled for, in a common shape."""

SHARED_MEMORY = {
    75: 64 * 1024,
    80: 163 * 1024,
    86: 99 * 1024,
    89: 99 * 1024,
    90: 227 * 1024,
    100: 227 * 1024,
    120: 99 * 1024,
}
# Of a multiprocessor; each has 65,536 registers.
WARPS = {75: 32, 80: 64, 86: 48, 89: 48, 90: 64, 100: 64, 120: 48}


def round_to_fp8(monkeypatch: Any) -> None:
    """Have the interpreter round float32 to e4m3 as GPUs do.

    Triton 3.7's own rounds the bits after the first up without a carry: 31.5 becomes 16, not 32.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def rounded(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source, target) != (tl.float32, tl.float8e4nv):
            return convert(values, source, target, rounding)
        return torch.from_numpy(values.copy()).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", rounded)


def tensor(*shape: int, seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    values = np.random.default_rng(seed).normal(size=shape, scale=scale)
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def boundaries(lengths: list[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=dtype, device=DEVICE)


def check(result: Tensor, expected: Tensor, tolerance: float) -> None:
    """Close in units of the largest value: a sum's rounding is relative to its terms, not to itself."""
    scale = expected.abs().max().clamp(min=1e-30)
    assert result.isfinite().all()
    assert ((result.double() - expected.double()).abs().max() / scale).item() <= tolerance


def _release(package: str) -> tuple[int, int]:
    major, minor = metadata.version(package).split(".")[:2]
    return int(major), int(minor)


def run_cases(cases: Path, **environment: str) -> None:
    """Run a file of cases in a separate process: triton chooses its interpreter when it is imported."""
    if (
        environment.get("TRITON_INTERPRET") == "1"
        and _release("triton") < (3, 7)
        and _release("numpy") >= (2, 4)
    ):
        pytest.skip(
            "the interpreter of Triton before 3.7 cannot loop up to a loaded value with NumPy 2.4 and later"
        )
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
        [*command, str(cases)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"\b[1-9]\d* passed", done.stdout), done.stdout[-6000:]


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], capability: int) -> Any:
    """``kernel`` as machine code; pointers are aligned as torch's are, and absent ones are None."""
    import triton
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
    found = re.findall(r"\b(REG|STACK|LOCAL):(\d+)", _report(code, folder, "-res-usage"))
    return {name: int(value) for name, value in found}


def instructions(code: Any, folder: Path) -> int:
    """How many instructions the machine code has."""
    return len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+\S", _report(code, folder, "-sass"), re.MULTILINE))


def _report(code: Any, folder: Path, option: str) -> str:
    from triton.backends import nvidia

    path = folder / "kernel.cubin"
    path.write_bytes(code.asm["cubin"])
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    report = subprocess.run([tool, option, path], capture_output=True, text=True, check=True)
    return report.stdout + report.stderr


def occupancy(code: Any, folder: Path) -> int:
    """How many programs a multiprocessor runs at a time."""
    capability, warps = code.metadata.target.arch, code.metadata.num_warps
    registers = -(-usage(code, folder)["REG"] // 8) * 8 * 32 * warps
    shared = (SHARED_MEMORY[capability] + 1024) // (code.metadata.shared + 1024)
    return int(min(65536 // registers, WARPS[capability] // warps, shared, 32))


def check_usage(
    code: Any,
    folder: Path,
    record_property: Any,
    *,
    programs: int = 1,
    longest: int | None = None,
    stack: int = 0,
) -> None:
    """Nothing may be spilled, and the GPU must have the shared memory; the registers are reported.

    The kernels were tuned for the Triton of constraints.txt: another one may put a few values on the stack, and only
    has to compile.
    ``programs``: at least as many run on a multiprocessor; ``longest``: maximum number of instructions.
    ``stack``: bytes a thread that the code may use by design, e.g. for a table of a library function.
    """
    used = usage(code, folder)
    tuned = f"triton=={metadata.version('triton')}" in (ROOT / "constraints.txt").read_text().split()
    capability = code.metadata.target.arch
    record_property("kernel", f"{code.src.fn.__module__.rpartition('.')[2]}.{code.metadata.name}")
    record_property("capability", capability)
    record_property("registers", used["REG"])
    assert used["STACK"] <= stack + (0 if tuned else 32) and used["LOCAL"] == 0, used
    assert code.metadata.shared <= SHARED_MEMORY[capability]
    found = occupancy(code, folder)
    record_property("programs", found)
    if not tuned:
        return
    assert found >= programs, (found, used, code.metadata.shared)
    if longest is not None:
        assert instructions(code, folder) <= longest
