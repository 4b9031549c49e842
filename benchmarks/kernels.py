"""Speed of each kernel, and its share of the peak of the processor or GPU.

    python benchmarks/kernels.py --device cpu  [--op linear_int8,gelu] [--json OUT.json]
    python benchmarks/kernels.py --device cuda [--op varlen_attention] [--tune] [--json OUT.json]

On a CPU, kernels run on every instruction set of the machine (or that of EMBEDKIT_ISA), on one thread with the
operands in the cache. The ceiling of products and attention is the measured peak of the instruction set's
multiply-adds; that of the others is copying as many floats.

On a GPU, every kernel is first compared with torch in float64, then timed in a CUDA graph, as are the unfused torch
sequence and torch.compile. The ceiling is the roofline: the time to move its bytes at the bandwidth of a large
copy, or to run its operations at the rate of a large product, whichever is longer. ``--tune`` searches block sizes
around those of `embedkit.kernels.blocks`. ``--dry-run`` checks everything but the timing, on tiny sizes under
Triton's interpreter.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import common

#: Operation -> shapes (rows, columns, out_features).
CPU_OPS: dict[str, list[tuple[int, int, int]]] = {
    "linear_int8": [(128, 384, 1152), (128, 384, 384), (128, 384, 1536), (128, 1536, 384), (16, 384, 1152)],
    "linear_bf16": [(128, 384, 1152), (128, 1536, 384), (16, 384, 1152)],
    "linear_fp32": [(128, 384, 1152), (128, 384, 384), (128, 384, 1536), (128, 1536, 384), (16, 384, 1152)],
    "attention": [(16, 32, 0), (64, 32, 0), (256, 32, 0), (64, 64, 0)],
    "attention_bf16": [(16, 32, 0), (64, 32, 0), (256, 32, 0), (64, 64, 0)],
    "attention_int8": [(16, 32, 0), (64, 32, 0), (256, 32, 0), (64, 64, 0)],
    "gelu": [(128, 1536, 0)],
    "layer_norm": [(128, 384, 0)],
    "quantize": [(128, 384, 0)],
    "rotate": [(128, 32, 0)],
}
GPU_OPS = (
    "pool_project_normalize",
    "varlen_attention",
    "embed_layernorm",
    "residual_layernorm",
    "bias_gelu",
    "linear_gelu",
    "quantized_linear",
)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--op", help="operations, comma-separated (default: all)")
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="CPU: time of each measurement (default: 0.3)"
    )
    parser.add_argument(
        "--tokens", type=int, default=131072, help="GPU: tokens of the batch (default: 131072)"
    )
    parser.add_argument("--length", type=int, default=16, help="GPU: tokens of each text (default: 16)")
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--inner", type=int, default=1536)
    parser.add_argument(
        "--dimension", type=int, default=128, help="dimension of the projection (default: 128)"
    )
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="bfloat16")
    parser.add_argument("--no-compile", action="store_true", help="GPU: skip torch.compile")
    parser.add_argument("--tune", action="store_true", help="GPU: search for the best block sizes")
    parser.add_argument(
        "--dry-run", action="store_true", help="GPU: check the kernels on tiny sizes, without timing"
    )
    parser.add_argument("--json", type=Path, help="write the results here")
    return parser.parse_args()


def chosen(given: str | None, known: tuple[str, ...]) -> list[str]:
    """The operations of ``--op``."""
    names = list(known) if given is None else given.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"--op: no operation {unknown[0]!r} on this device; there are {', '.join(known)}")
    return names


def cpu_work(operation: str, shape: tuple[int, int, int], eight: int) -> tuple[str, float]:
    """Work of one call: ("int8", "bf16" or "fp32", operations) or ("copy", bytes read and written).

    Args:
        operation: a key of CPU_OPS.
        shape: one of its entries.
        eight: bytes of a quantized activation.
    """
    rows, columns, outputs = shape
    if operation.startswith("linear_"):
        return operation.removeprefix("linear_"), 2.0 * rows * columns * outputs
    if operation.startswith("attention"):
        return operation.partition("_")[2] or "fp32", 4.0 * rows * rows * columns
    of_each = {"gelu": 4 + eight, "layer_norm": 12 + eight, "quantize": 4 + eight, "rotate": 16}
    return "copy", float(rows * columns * of_each[operation])


def significant(value: float) -> float:
    """`value` to four significant digits: rates differ by orders of magnitude."""
    return float(f"{value:.4g}")


def measure_cpu(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each operation, shape and instruction set."""
    from embedkit import _core

    forced = os.environ.get("EMBEDKIT_ISA")
    rows = []
    # These have no ceiling: one is written to be read, one to be tested.
    every = [isa for isa in reversed(_core.available_isas()) if isa not in ("reference", "amx_emulated")]
    for isa in [_core.active_isa()] if forced or not every else every:
        # AVX2 multiplies 16-bit values, since its 8-bit instruction saturates.
        eight = 2 if isa == "avx2" else 1
        peaks: dict[str, float] = {}
        own = []
        for operation in chosen(options.op, tuple(CPU_OPS)):
            for shape in CPU_OPS[operation]:
                kind, work = cpu_work(operation, shape, eight)
                # The ceiling is measured with every kernel and the best counts for all, so that a slow spell of the
                # machine does not lower it.
                if kind == "copy":
                    kind = f"copy of {shape[0]} x {shape[1]}"
                    taken = _core.measure_kernel("copy", *shape[:2], 0, isa, options.seconds / 3)
                    peak = 8e-9 * shape[0] * shape[1] / taken
                else:
                    peak = _core.measure_peak(kind, options.seconds / 3, isa)
                peaks[kind] = max(peak, peaks.get(kind, 0.0))
                own.append(
                    (
                        operation,
                        shape,
                        kind,
                        work,
                        _core.measure_kernel(operation, *shape, isa, options.seconds),
                    )
                )
        for operation, shape, kind, work, taken in own:
            rate = work / taken / 1e9
            rows.append(
                {
                    "isa": isa,
                    "op": operation,
                    "shape": " x ".join(map(str, shape[:2])) + (f" -> {shape[2]}" if shape[2] else ""),
                    "us": significant(taken * 1e6),
                    "unit": "GB/s" if kind.startswith("copy") else "GOP/s",
                    "rate": significant(rate),
                    "ceiling": significant(peaks[kind]),
                    "share_of_ceiling": round(rate / peaks[kind], 4),
                }
            )
    return rows


def show_cpu(rows: list[dict[str, Any]]) -> str:
    """The table of the CPU kernels."""
    return common.table(
        ["instruction set", "operation", "shape", "us", "rate", "ceiling", "of the ceiling"],
        [
            [
                row["isa"],
                row["op"],
                row["shape"],
                row["us"],
                f"{row['rate']} {row['unit']}",
                f"{row['ceiling']} {row['unit']}",
                f"{row['share_of_ceiling']:.0%}",
            ]
            for row in rows
        ],
    )


def measure_gpu(options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Check, time and compare every kernel; pass the result so far to ``keep`` after each operation."""
    if options.dry_run:
        # Must be set before triton is imported.
        os.environ["TRITON_INTERPRET"] = "1"
        options.tokens, options.length, options.hidden, options.heads = 48, 6, 32, 2
        options.inner, options.dimension = 64, 16
    import torch

    if not options.dry_run and not torch.cuda.is_available():
        raise SystemExit("no CUDA device; --dry-run checks the kernels without one")
    if options.tokens % options.length:
        raise SystemExit(f"--tokens {options.tokens} is not a multiple of --length {options.length}")
    import gpu_rates
    import kernels_gpu

    names = chosen(options.op, GPU_OPS)
    sizes = kernels_gpu.Sizes(
        options.tokens, options.length, options.hidden, options.heads, options.inner, options.dimension,
        "float32" if options.dry_run else options.dtype, "cpu" if options.dry_run else "cuda",
        **({"lengths": (24,), "head_sizes": (26,)} if options.dry_run else {}),
    )  # fmt: skip
    products: tuple[str, ...] = ("int8",)
    if options.dry_run or torch.cuda.get_device_capability() >= (8, 9):
        products = ("int8", "fp8")
    ceiling = {} if options.dry_run else gpu_rates.ceilings(sizes.dtype, products)
    rows: list[dict[str, Any]] = []
    tuned: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    device = "the interpreter, not timed" if options.dry_run else torch.cuda.get_device_name()

    def content() -> dict[str, Any]:
        return {
            "device": device,
            "sizes": asdict(sizes),
            "ceilings": {name: round(value / 1e9, 1) for name, value in ceiling.items()},
            "rows": rows,
            "tuned": tuned,
            "failed": failed,
        }

    compiled = not options.dry_run and not options.no_compile
    for case in kernels_gpu.cases(sizes, compiled=compiled, products=products):
        if case.op not in names:
            continue
        expected = case.expected()
        times: dict[str, float] = {}
        for form, run in case.forms.items():
            try:
                result = run()
                wrong = None if "sums only" in form else kernels_gpu.error(result, expected)
                if options.dry_run:
                    start = time.perf_counter()
                    run()
                    times[form] = time.perf_counter() - start
                else:
                    times[form] = gpu_rates.seconds(run)
            # Compilers and libraries may raise anything; keep the figures of the other forms.
            except Exception as error:
                why = gpu_rates.first_line(error)
                print(f"failed: {case.op} ({case.shape}), {form}: {why}", flush=True)
                failed.append({"op": case.op, "shape": case.shape, "form": form, "why": why})
                continue
            own = times.get("embedkit")
            rows.append(
                {
                    "op": case.op,
                    "shape": case.shape,
                    "form": form,
                    "error": None if wrong is None else float(f"{wrong:.2g}"),
                    **kernels_gpu.rates(case, times[form], ceiling),
                    "embedkit_is_faster": round(times[form] / own, 3) if own else None,
                }
            )
        if options.tune and case.tuned and "embedkit" in times and not options.dry_run:
            found = kernels_gpu.tune(case)
            best = [{"us": round(t * 1e6, 2), **choice} for t, choice in found[:3]]
            tuned.append(
                {"op": case.op, "shape": case.shape, "default_us": rows[-len(times)]["us"], "best": best}
            )
        if not options.dry_run:
            torch.cuda.empty_cache()
        keep(content())
    return content()


def show_gpu(result: dict[str, Any]) -> str:
    """The table, the ceilings, and the best block sizes."""
    lines = [f"{result['device']}; " + ", ".join(f"{k} {v:,.0f} G/s" for k, v in result["ceilings"].items())]
    timed = bool(result["ceilings"])
    rows = []
    for row in result["rows"]:
        cells = [row["op"], row["shape"], row["form"], "-" if row["error"] is None else f"{row['error']:.1e}"]
        if timed:
            share = f"{row['share_of_roofline']:.0%} ({row['bound']})"
            cells += [
                row["us"],
                f"{row['bytes'] / 1e6:.1f}",
                row["gb_per_s"],
                row["tflop_per_s"],
                share,
                "-" if row["embedkit_is_faster"] is None else f"{row['embedkit_is_faster']:.2f} x",
            ]
        rows.append(cells)
    headers = ["operation", "shape", "form", "relative error"]
    headers += ["us", "MB", "GB/s", "TFLOP/s", "of the roofline", "embedkit is faster"] if timed else []
    lines.append(common.table(headers, rows))
    for one in result["tuned"]:
        best = "; ".join(str(choice) for choice in one["best"])
        lines.append(f"{one['op']} ({one['shape']}): {one['default_us']} us now, best: {best}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    options = arguments()
    machine = common.machine_info()
    packages = ["embedkit", "numpy"] + (["torch", "triton"] if options.device == "cuda" else [])
    found = common.versions(packages)
    print(common.show_machine(machine, found))

    def keep(content: dict[str, Any], *, finished: bool = False) -> None:
        result = common.report(
            f"kernels-{options.device}",
            machine=machine,
            versions=found,
            dry_run=options.dry_run,
            **content,
        )
        common.write_json(options.json, result, finished=finished)

    if options.device == "cpu":
        rows = measure_cpu(options)
        content: dict[str, Any] = {"threads": 1, "rows": rows}
        print(show_cpu(rows))
    else:
        content = measure_gpu(options, keep)
        print(show_gpu(content))
    keep(content, finished=True)
    if own := [one["shape"] for one in content.get("failed", []) if one["form"] == "embedkit"]:
        raise SystemExit(f"embedkit's kernels failed on: {'; '.join(own)}")


if __name__ == "__main__":
    main()
