"""The time of a batch on a GPU, term by term: what each kernel needs by arithmetic, beside what was measured.

    python benchmarks/roofline.py [--shape 6,384,12,1536] [--tokens 16384] [--length 16] [--gpu H200]
    python benchmarks/roofline.py --measure --model FOLDER --json OUT.json       # on a GPU

A term takes the longer of its operations at the rate of the tensor cores and its bytes at the rate of memory;
attention, which has them and its element-wise work one after another, their sum. A launch within a CUDA graph is added.
The rates are those of the data sheets times the shares below.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["GPUS", "Gpu", "Shape", "Term", "classify", "model", "rows", "total"]


@dataclass(frozen=True)
class Gpu:
    """A GPU by its data sheet.

    Attributes:
        products: dense bf16 operations/s.
        memory: bytes/s.
        lanes: plain operations/s: multiprocessors · 128 lanes · clock.
        multiprocessors: their number.
    """

    products: float
    memory: float
    lanes: float
    multiprocessors: int


#: NVIDIA's data sheets of the H100 and H200 (SXM; 1,979 TFLOP/s with sparsity, 132 multiprocessors at up to 1.98 GHz).
GPUS = {
    "H200": Gpu(989e12, 4.8e12, 132 * 128 * 1.98e9, 132),
    "H100": Gpu(989e12, 3.35e12, 132 * 128 * 1.98e9, 132),
}
#: Of the products' peak, with weights of a few hundred columns; a product of 8192³ reached 0.8 of it on an H200.
PRODUCTS = 0.48
#: Of the memory's peak: a large copy on an H200 moved 4.3 TB/s.
MEMORY = 0.9
#: Seconds of a kernel within a CUDA graph beside its work.
LAUNCH = 1e-6
#: Seconds of a multiprocessor for a program that finds its tile empty.
IDLE = 0.21e-6
#: Plain operations of one score of attention: scale, mask, exponential, sum.
SCORE = 12
TILE = 64
_VALUE = 2  # bytes of bf16


@dataclass(frozen=True)
class Shape:
    """Sizes of a BERT."""

    layers: int = 6
    hidden: int = 384
    heads: int = 12
    inner: int = 1536


@dataclass(frozen=True)
class Term:
    """A kernel of a layer, all layers together.

    Attributes:
        name: as `classify` names the measured kernels.
        flops, bytes: of one layer.
        seconds: of all layers.
        bound: what takes the longest.
    """

    name: str
    flops: float
    bytes: float
    seconds: float
    bound: str


def model(shape: Shape, tokens: int, length: int, gpu: Gpu) -> list[Term]:
    """The terms of one batch of ``tokens`` tokens in texts of ``length`` each."""
    hidden, inner = shape.hidden, shape.inner
    products, memory = gpu.products * PRODUCTS, gpu.memory * MEMORY

    def term(name: str, flops: float, values: float) -> Term:
        taken = {"products": flops / products, "memory": values * _VALUE / memory}
        bound = max(taken, key=lambda key: taken[key])
        return Term(name, flops, values * _VALUE, shape.layers * (taken[bound] + LAUNCH), bound)

    def linear(name: str, rows_in: int, rows_out: int) -> Term:
        return term(name, 2 * tokens * rows_in * rows_out, tokens * (rows_in + rows_out))

    # A tile multiplies 64 queries with all keys of its texts, and reserved tiles beyond the used ones are looked at.
    used = math.ceil(tokens / max(1, TILE // length * length)) if length <= TILE else tokens // TILE
    keys = TILE if length <= TILE else length
    scores = used * TILE * keys * shape.heads
    flops = 4 * scores * (hidden // shape.heads)
    reserved = 2 * tokens // TILE + 2
    seconds = flops / products + tokens * 4 * hidden * _VALUE / memory + SCORE * scores / gpu.lanes + LAUNCH
    seconds += max(0, reserved - used) * shape.heads * IDLE / gpu.multiprocessors
    norm = term("norm", 0, 2 * 3 * tokens * hidden)
    return [
        linear("QKV", hidden, 3 * hidden),
        Term("attention", flops, tokens * 4 * hidden * _VALUE, shape.layers * seconds, "all, in turn"),
        linear("out", hidden, hidden),
        Term("norms", 0, norm.bytes, norm.seconds + shape.layers * LAUNCH, norm.bound),
        linear("FFN1", hidden, inner),
        linear("FFN2", inner, hidden),
    ]


def total(terms: Iterable[Term]) -> float:
    """Seconds of a batch, without embeddings and pooling."""
    return sum(term.seconds for term in terms)


#: The kernels of a layer in the order of their launches, as `model` names them.
_ORDER = ("QKV", "attention", "out", "norms", "FFN1", "FFN2", "norms")


def classify(kernels: Sequence[tuple[str, float]], layers: int) -> dict[str, float]:
    """Seconds of each term of one batch, from its kernels (name, seconds) in order.

    The embeddings come before the layers, pooling after them ("embeddings", "pooling").

    Raises:
        ValueError: there are fewer kernels than the layers have.
    """
    first = next((i for i, (name, _) in enumerate(kernels) if name.startswith("embed")), -1) + 1
    if first == 0 or len(kernels) - first < layers * len(_ORDER):
        raise ValueError(
            f"{len(kernels)} kernels are not those of {layers} layers: {', '.join(n for n, _ in kernels[:12])}"
        )
    found = dict.fromkeys(("embeddings", *_ORDER, "pooling"), 0.0)
    for i, (_, seconds) in enumerate(kernels):
        place = i - first
        name = "embeddings" if place < 0 else "pooling"
        if 0 <= place < layers * len(_ORDER):
            name = _ORDER[place % len(_ORDER)]
        found[name] += seconds
    return found


def rows(terms: Sequence[Term], measured: dict[str, float] | None) -> list[list[str]]:
    """The cells of a table: term, GFLOP and MB of a layer, bound, microseconds of the model and as measured."""
    cells = [
        [
            term.name,
            f"{term.flops / 1e9:.1f}",
            f"{term.bytes / 1e6:.0f}",
            term.bound,
            f"{term.seconds * 1e6:,.0f}",
            "not measured yet" if measured is None else f"{measured[term.name] * 1e6:,.0f}",
        ]
        for term in terms
    ]
    if measured is None:
        return [*cells, ["the layers", "", "", "", f"{total(terms) * 1e6:,.0f}", "not measured yet"]]
    names = [term.name for term in terms]
    beside = [name for name in measured if name not in names]  # of which the model knows nothing
    layers = sum(measured[name] for name in names)
    return [
        *cells,
        ["the layers", "", "", "", f"{total(terms) * 1e6:,.0f}", f"{layers * 1e6:,.0f}"],
        *(_only_measured(name, measured[name]) for name in beside),
        _only_measured("all", sum(measured.values())),
    ]


def _only_measured(name: str, seconds: float) -> list[str]:
    return [name, "", "", "", "", f"{seconds * 1e6:,.0f}"]


HEADERS = ["term", "GFLOP a layer", "MB a layer", "bound by", "model, µs", "measured, µs"]


def measure(folder: Path, tokens: int, length: int) -> dict[str, Any]:
    """The kernels of one batch on the GPU, by torch's profiler."""
    import numpy as np
    import torch
    from embedkit.kernels.attention_tiles import max_attention_tiles
    from torch.profiler import ProfilerActivity, profile

    from embedkit.backends.packed_model import PackedModel
    from embedkit.model_folder.folder import open_folder

    opened = open_folder(folder)
    encoder = PackedModel(opened, "bf16", torch.device("cuda"))
    ids = np.random.default_rng(0).integers(1000, 20000, size=(tokens // length, length))
    batch = encoder.hidden.pack(list(ids), tiles=max_attention_tiles(tokens, descending=True))
    for _ in range(3):
        encoder.vectors(batch, skips=False)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        encoder.vectors(batch, skips=False)
        torch.cuda.synchronize()
    events = sorted((e for e in record.events() if e.device_time_total > 0), key=lambda e: e.time_range.start)
    kernels = [
        (event.name, event.device_time_total / 1e6) for event in events if not event.name.startswith("Mem")
    ]
    layers = int(opened.config["num_hidden_layers"])
    return {
        "gpu": torch.cuda.get_device_name(), "tokens": tokens, "length": length, "layers": layers,
        "seconds": classify(kernels, layers), "kernels": kernels,
    }  # fmt: skip


def main() -> None:
    """Print the model, or measure."""
    import common

    parser = common.parser(__doc__)
    parser.add_argument(
        "--shape", default="6,384,12,1536", help="layers,hidden,heads,inner (default: MiniLM's)"
    )
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--length", type=int, default=16, help="tokens of each text (default: 16)")
    parser.add_argument("--gpu", choices=list(GPUS), default="H200")
    parser.add_argument("--measure", action="store_true", help="measure the kernels of --model")
    parser.add_argument("--model", type=common.model_folder)
    parser.add_argument("--json", type=Path, help="write what was measured here")
    options = parser.parse_args()
    shape = Shape(*map(int, options.shape.split(",")))
    measured = None
    if options.measure:
        found = measure(options.model, options.tokens, options.length)
        measured = found["seconds"]
        if options.json:
            about = {
                "machine": common.machine_info(),
                "versions": common.versions(["embedkit", "torch", "triton"]),
            }
            common.write_json(options.json, common.report("roofline", **about, **found))
    terms = model(shape, options.tokens, options.length, GPUS[options.gpu])
    print(common.table(HEADERS, rows(terms, measured)))
    rate = options.tokens / total(terms)
    print(
        f"{rate / 1e6:.1f} M tokens/s, {rate / options.length:,.0f} texts/s of {options.length} tokens by the model"
    )


if __name__ == "__main__":
    main()
