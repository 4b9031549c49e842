"""Timing on a GPU, and the rates of its memory and of large products."""

import statistics
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["ceilings", "first_line", "products", "seconds"]


def seconds(run: Callable[[], Any], *, calls: int = 10, rounds: int = 15) -> float:
    """Median time of one call on a GPU, from ``calls`` calls in one CUDA graph, without launch overhead."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    taken = []
    for _ in range(rounds + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / 1000 / calls)
    return statistics.median(taken[2:])


def _copy_rate() -> float:
    """Bytes/s, read and written, of a copy larger than the caches."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source))


def ceilings(dtype: str, eight: tuple[str, ...]) -> dict[str, float]:
    """Measured on the GPU: "copy" in bytes/s (read and written), and a large product in operations/s by type."""
    return {"copy": _copy_rate()} | products({dtype, *eight})


def products(kinds: set[str]) -> dict[str, float]:
    """Operations/s of a large product of each of `kinds`, torch's dtypes, "int8" and "fp8".

    Types that the GPU or torch does not support are reported and left out.
    """
    side = 8192
    found = {}
    for kind in sorted(kinds):
        try:
            found[kind] = 2 * side**3 / seconds(_product(kind, side), calls=4)
        except (RuntimeError, ValueError) as error:
            print(f"no large product of {kind}: {first_line(error)}")
    return found


def _product(kind: str, side: int) -> Callable[[], Any]:
    if kind == "int8":
        x, w = (torch.randint(-128, 128, (side, side), dtype=torch.int8, device="cuda") for _ in range(2))
        return lambda: torch._int_mm(x, w.T)
    dtype = torch.float8_e4m3fn if kind == "fp8" else getattr(torch, kind)
    a, b = (torch.randn(side, side, device="cuda").to(dtype) for _ in range(2))
    if kind != "fp8":
        return lambda: a @ b
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16)


def first_line(failure: BaseException) -> str:
    """Type and first line of an error."""
    said = str(failure).strip().splitlines()
    return f"{type(failure).__name__}: {said[0] if said else ''}"
