"""The first look at a GPU: each kernel against float64 on small sizes, and one `encode` against the CPU core.

    python benchmarks/gpu_smoke.py --model FOLDER [--dry-run] [--json OUT.json]

Exits with 1 if anything is off. ``--dry-run`` runs the kernels under Triton's interpreter.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import common

#: Largest relative error (Euclidean) of a kernel, by type and for 8-bit products and outputs.
BOUNDS = {"float32": 1e-5, "bfloat16": 2e-2, "rough": 0.1}
TEXTS = ["A short text.", "The weather is lovely today.", "How do I reset my password?", "water " * 40]


Case = tuple[str, Callable[[], float], float]
"""A name, what measures the error, and its bound."""


def usual(options: argparse.Namespace, dtype: str, device: str) -> Iterator[Case]:
    """The kernels of `kernels.py --device cuda`."""
    import kernels_gpu

    sizes = kernels_gpu.Sizes(
        *((48, 6, 32, 2, 64, 16) if options.dry_run else (4096, 16, 384, 12, 1536, 128)), dtype, device,
        **({"lengths": (24,), "head_sizes": (26,)} if options.dry_run else {}),
    )  # fmt: skip
    import torch

    eight = options.dry_run or torch.cuda.get_device_capability() >= (8, 9)
    for case in kernels_gpu.cases(sizes, compiled=False, products=("int8", "fp8") if eight else ("int8",)):
        rough = case.op == "quantized_linear" or case.shape.endswith(("int8", "ubinary"))
        bound = BOUNDS["rough" if rough else dtype]
        yield (
            f"{case.op} ({case.shape})",
            lambda case=case: kernels_gpu.error(case.forms["embedkit"](), case.expected()),
            bound,
        )


def modern(dtype: str, device: str) -> Iterator[Case]:
    """The kernels of the families since BERT's, against `embedkit.kernels.reference`."""
    import torch
    from embedkit.kernels import reference
    from embedkit.kernels.add_norm import add_norm
    from embedkit.kernels.attention_tiles import attention_tiles
    from embedkit.kernels.gated import gated_activation
    from embedkit.kernels.modern_forward import rotary_table
    from embedkit.kernels.qk_norm_rope import qk_norm_rope
    from embedkit.kernels.varlen_attention import varlen_attention

    make = torch.Generator(device).manual_seed(0)
    kind = getattr(torch, dtype)
    bound = BOUNDS[dtype]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=make, device=device).to(kind)

    def error(result: torch.Tensor, expected: torch.Tensor) -> float:
        return float((result.double() - expected).norm() / expected.norm())

    x, residual, weight = normal(100, 96), normal(100, 96), normal(96)
    yield (
        "gated_activation",
        lambda: error(gated_activation(x, function="silu"), reference.gated_activation(x.double(), "silu")),
        bound,
    )
    yield (
        "add_norm",
        lambda: error(
            add_norm(x, residual.clone(), weight, None, 1e-6, rms=True, post_norm=weight),
            reference.add_norm(
                x.double(),
                residual.double(),
                weight.double(),
                None,
                1e-6,
                rms=True,
                post_norm=weight.double(),
            )[1],
        ),
        bound,
    )
    lengths, heads, shared, size = [70, 30], 4, 2, 16
    packed = normal(100, (heads + 2 * shared) * size)
    tiles = torch.from_numpy(attention_tiles(lengths)).to(device)
    rotary = rotary_table(128, size, 1e4, 1.0, torch.device(device))

    def placed() -> float:
        rows = packed.clone()
        qk_norm_rope(rows, heads, shared, size, tiles, rotary=rotary)
        parts = packed[:, : heads * size].double().unflatten(1, (-1, size)).split(lengths)
        expected = torch.cat([reference.qk_norm_rope(p, speed=rotary.speed.double()) for p in parts])
        return error(rows[:, : heads * size], expected.flatten(1))

    yield "qk_norm_rope", placed, bound

    def attended() -> float:
        q, k, v = packed.view(100, -1, size).split([heads, shared, shared], dim=1)
        bounds = torch.tensor([0, 70, 100], device=device)
        result = varlen_attention(q, k, v, bounds, 70, before=9, after=0, tile_map=tiles)
        parts = zip(*(t.double().split(lengths) for t in (q, k, v)), strict=True)
        return error(result, torch.cat([reference.attention(*part, before=9, after=0) for part in parts]))

    yield "varlen_attention (window, causal, shared keys)", attended, bound


def encoded(options: argparse.Namespace) -> float:
    """1 less the worst cosine of the GPU's vectors and the CPU core's."""
    import numpy as np

    from embedkit import Encoder

    core = Encoder(str(options.model), device="cpu", precision="fp32")
    expected = core.encode(TEXTS, normalize_embeddings=True)
    if options.dry_run:
        import torch

        from embedkit.backends.packed_model import PackedModel
        from embedkit.model_folder.folder import open_folder

        model = PackedModel(open_folder(options.model), "fp32", torch.device("cpu"))
        batch = model.hidden.pack(core.tokenize(TEXTS)["input_ids"])
        vectors = model.vectors(batch, skips=False).numpy()
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    else:
        vectors = Encoder(str(options.model), device="cuda", precision="bf16").encode(
            TEXTS, normalize_embeddings=True
        )
    return float(1 - np.sum(vectors * expected, axis=1).min())


def guarded(name: str, cases: Iterable[Case]) -> Iterator[Case]:
    """``cases``, made one by one; if one cannot be made, a check that fails for the same reason."""
    try:
        yield from cases
    except Exception as failure:
        found = failure

        def again() -> float:
            raise found

        yield f"{name}, from here on", again, 0.0


def main() -> None:
    """Check, print and write."""
    parser = common.parser(__doc__)
    parser.add_argument("--model", type=common.model_folder, required=True)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    dtype, device = ("float32", "cpu") if options.dry_run else ("bfloat16", "cuda")
    found: list[dict[str, Any]] = []
    checks: list[Case] = [
        ("encode, 1 - cosine to the CPU core", lambda: encoded(options), 1e-5 if options.dry_run else 2e-3)
    ]
    kernels = {"the usual kernels": usual(options, dtype, device), "the modern ones": modern(dtype, device)}
    for name, run, bound in chain(checks, *(guarded(*one) for one in kernels.items())):
        start = time.perf_counter()
        try:
            wrong, why = run(), ""
        except Exception as failure:  # a compiler may raise anything; the other kernels matter as well
            wrong, why = float("nan"), f"{type(failure).__name__}: {str(failure)[:200]}"
        taken = time.perf_counter() - start
        good = wrong < bound
        found.append(
            {
                "name": name,
                "error": wrong,
                "bound": bound,
                "good": good,
                "seconds": round(taken, 2),
                "why": why,
            }
        )
        print(
            f"{'ok ' if good else 'BAD'} {name}: {wrong:.1e} (below {bound:g}), {taken:.1f} s {why}",
            flush=True,
        )
        common.write_json(options.json, {"checks": found})
    if bad := [one["name"] for one in found if not one["good"]]:
        raise SystemExit(f"{len(bad)} of {len(found)} checks failed: {'; '.join(bad)}")


if __name__ == "__main__":
    main()
