"""Block sizes of each kernel, by GPU: the only place to change after a measurement.

The entries are reasoned; on an H100 they reach what ``benchmarks/results/gpu-h100-kernels.json`` has, and those of
attention are the fastest of a grid. ``benchmarks/kernels.py --device cuda --tune`` prints the fastest around each.
Sizes that follow from a shape alone (a row must fit the registers) are computed where the kernel is launched, and
passed to `blocks`.

* ``bias_gelu``, ``layernorm``: 2048 values in 128 threads are 16 per thread, i.e. two 16-byte loads of 16-bit values
  in flight; a multiprocessor has room for 16 such programs (12 on sm_86 and sm_89).
* ``pool_project_normalize``: 8192 values in 128 threads are 64 registers of sums, and up to 16 tokens in flight: a
  text of 16 tokens is read in one pass.
* ``varlen_attention``: 64 tokens per tile are the minimum of a warp group of sm_90, and four texts of 16 tokens; keys
  per step and stages follow from the shape, by the registers that they leave (test_varlen_attention.py holds them).
* ``quantized_linear``: a tile of 128 x 128 results does 128 operations per byte from the L2 cache: at 7 TB/s of an
  H100 about 900 Tera operations/s, the peak of its 16-bit products. Three stages of (128 + 128) x 128 bytes fill the
  shared memory of sm_86 and sm_89. On sm_90 registers limit a multiprocessor to one program, so a fourth stage is
  free. The columns of a tile are a group of `embedkit.kernels.quantize` and must stay 128; 256 rows are in the grid of
  ``--tune``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import triton

__all__ = ["blocks", "capability_of", "multiprocessors", "override"]

_TABLE: dict[str, dict[int, dict[str, int]]] = {
    "bias_gelu": {80: {"BLOCK_T": 4, "BLOCK_I": 512, "num_warps": 4}},
    "layernorm": {80: {"VALUES": 2048}},
    "pool_project_normalize": {80: {"VALUES": 8192}},
    "varlen_attention": {80: {}},
    "quantized_linear": {
        80: {"BLOCK_N": 128, "BLOCK_K": 128, "num_stages": 3},
        90: {"BLOCK_N": 128, "BLOCK_K": 128, "num_stages": 4},
    },
}
_overrides: dict[str, dict[str, int]] = {}


def blocks(kernel: str, capability: int, **computed: int) -> dict[str, int]:
    """The block sizes of ``kernel`` for a GPU: ``computed``, then the table's, then those of `override`.

    Args:
        kernel: a name of the table.
        capability: ten times the compute capability, e.g. 90; selects the entry of the highest one not above it.
        computed: sizes that the launcher derived from shapes.
    """
    entries = _TABLE[kernel]
    known = [entry for entry in entries if entry <= capability]
    return {**computed, **entries[max(known) if known else min(entries)], **_overrides.get(kernel, {})}


@contextmanager
def override(kernel: str, values: Mapping[str, int]) -> Iterator[None]:
    """Use ``values`` for ``kernel`` within the block, for benchmarks. Not thread-safe."""
    if kernel not in _TABLE:
        raise ValueError(f"no kernel {kernel!r} in the table; there are {', '.join(_TABLE)}")
    before = _overrides.pop(kernel, None)
    _overrides[kernel] = dict(values)
    try:
        yield
    finally:
        del _overrides[kernel]
        if before is not None:
            _overrides[kernel] = before


def capability_of(device: torch.device) -> int:
    """Ten times the compute capability of a GPU; 80 under the interpreter."""
    if device.type != "cuda" or triton.knobs.runtime.interpret:
        return 80
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU; 1 under the interpreter."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
