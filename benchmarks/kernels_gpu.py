"""The Triton kernels for kernels.py: their work, and the alternatives they are compared with."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from embedkit.kernels.attention_tiles import attention_tiles
from embedkit.kernels.bias_gelu import bias_gelu, linear_gelu
from embedkit.kernels.blocks import override
from embedkit.kernels.layernorm import embed_layernorm, residual_layernorm
from embedkit.kernels.pool_project_normalize import pool_project_normalize
from embedkit.kernels.quantize import QuantizedRows, quantize_weight
from embedkit.kernels.quantized_linear import quantized_linear, quantized_linear_groups
from embedkit.kernels.varlen_attention import varlen_attention
from gpu_rates import seconds
from torch import Tensor
from torch.nn import functional

__all__ = ["Sizes", "cases", "error", "rates", "tune"]

#: The block sizes that `--tune` tries, by the names of `embedkit.kernels.blocks`.
GRIDS: dict[str, dict[str, tuple[int, ...]]] = {
    "bias_gelu": {"BLOCK_T": (1, 2, 4, 8), "BLOCK_I": (256, 512, 1024, 2048), "num_warps": (2, 4, 8)},
    "layernorm": {"VALUES": (512, 1024, 2048, 4096, 8192), "num_warps": (1, 2, 4, 8)},
    "pool_project_normalize": {"VALUES": (1024, 2048, 4096, 8192, 16384)},
    "varlen_attention": {"BLOCK_N": (16, 32, 64), "num_warps": (2, 4, 8), "num_stages": (1, 2, 3)},
    "quantized_linear": {"BLOCK_M": (64, 128, 256), "num_warps": (4, 8), "num_stages": (2, 3, 4, 5)},
}


@dataclass(frozen=True)
class Sizes:
    """A packed batch of texts of one length, and the sizes of a model.

    ``lengths`` and ``head_sizes`` are additional cases for attention.
    """

    tokens: int
    length: int
    hidden: int
    heads: int
    inner: int
    dimension: int
    dtype: str
    device: str
    lengths: tuple[int, ...] = (128, 512)
    head_sizes: tuple[int, ...] = (64, 26, 128)

    @property
    def texts(self) -> int:
        """Number of texts in the batch."""
        return self.tokens // self.length


@dataclass(frozen=True)
class Case:
    """One operation on one shape.

    Attributes:
        op: its name, that of the kernel.
        shape: for the table.
        table: its name in `embedkit.kernels.blocks`.
        forms: who does it; the first is embedkit's. All give the same.
        expected: the result in float64; in float32 of a backward pass.
        bytes: each operand read once, each result written once.
        flops: 2 for a multiplication and an addition, of the products alone.
        unit: whose rate bounds them: a dtype's name, "fp8" or "int8".
        tuned: whether ``--tune`` tries the grid on it: once for what takes the same blocks.
    """

    op: str
    shape: str
    table: str
    forms: dict[str, Callable[[], Any]]
    expected: Callable[[], Tensor]
    bytes: int
    flops: int = 0
    unit: str = ""
    tuned: bool = True


def _size(*tensors: Tensor | None) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


class Operands:
    """Random tensors, deterministic for the same sequence of calls."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.dtype = getattr(torch, sizes.dtype)
        self._generator = torch.Generator(sizes.device).manual_seed(0)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normally distributed values in the model's type."""
        values = torch.randn(shape, generator=self._generator, device=self.sizes.device)
        return (values * scale).to(self.dtype)

    def ids(self, count: int, below: int) -> Tensor:
        """Row numbers (count,) int32."""
        numbers = torch.randint(below, (count,), generator=self._generator, device=self.sizes.device)
        return numbers.to(torch.int32)


def cases(sizes: Sizes, *, compiled: bool, products: tuple[str, ...]) -> Iterator[Case]:
    """All operations, one at a time to save memory.

    Args:
        sizes: of batch and model.
        compiled: also compare with torch.compile.
        products: those of "int8" and "fp8" that the GPU supports.
    """
    compile_: Callable[[Any], Any] = (
        (lambda f: torch.compile(f, dynamic=False, fullgraph=True)) if compiled else lambda f: f
    )

    def rivals(
        name: str, function: Callable[[], Any], around: Callable[[Any], Any] = lambda f: f
    ) -> dict[str, Callable[[], Any]]:
        forms = {name: around(function)}
        return forms | ({"torch.compile": around(compile_(function))} if compiled else {})

    yield from _pooling(sizes, rivals)
    yield from _attention(sizes, rivals)
    yield from _rows(sizes, rivals)
    for kind in products:
        yield from _products(sizes, rivals, kind)
    yield from _pooling_outputs(sizes, rivals)
    yield from _pooling_backward(sizes, rivals)
    yield from _more_attention(sizes, rivals)


class Rivals(Protocol):
    """Makes torch's forms of a function: eager and compiled; ``around`` is not compiled."""

    def __call__(
        self, name: str, function: Callable[[], Any], around: Callable[[Any], Any] = ...
    ) -> dict[str, Callable[[], Any]]: ...


def _pooling(sizes: Sizes, rivals: Rivals) -> Iterator[Case]:
    make = Operands(sizes)
    hidden = make.normal(sizes.tokens, sizes.hidden)
    weight = make.normal(sizes.dimension, sizes.hidden, scale=sizes.hidden**-0.5)
    bounds = torch.arange(0, sizes.tokens + 1, sizes.length, dtype=torch.int32, device=sizes.device)
    mask = torch.ones(sizes.texts, sizes.length, 1, dtype=hidden.dtype, device=sizes.device)
    padded = hidden.view(sizes.texts, sizes.length, sizes.hidden)

    def head(pooled: Tensor, matrix: Tensor) -> Tensor:
        return functional.normalize(functional.linear(pooled, matrix), dim=-1)

    def unfused() -> Tensor:
        # As in sentence-transformers: mask, sum, count, divide, project, normalize.
        pooled = (padded * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return head(pooled, weight)

    yield Case(
        "pool_project_normalize",
        f"{sizes.texts} texts of {sizes.length} x {sizes.hidden} -> {sizes.dimension}",
        "pool_project_normalize",
        {
            "embedkit": lambda: pool_project_normalize(hidden, bounds, weight=weight.T, normalize=True),
            **rivals("torch", unfused),
        },
        lambda: head(padded.double().mean(1), weight.double()),
        _size(hidden, weight, bounds) + 4 * sizes.texts * sizes.dimension,
        2 * sizes.texts * sizes.hidden * sizes.dimension,
        sizes.dtype,
    )


def _pooling_outputs(sizes: Sizes, rivals: Rivals) -> Iterator[Case]:
    """Maximum and first token without a projection; projected mean in 8 bits and in 1 bit."""
    make = Operands(sizes)
    hidden = make.normal(sizes.tokens, sizes.hidden)
    weight = make.normal(sizes.dimension, sizes.hidden, scale=sizes.hidden**-0.5)
    bounds = torch.arange(0, sizes.tokens + 1, sizes.length, dtype=torch.int32, device=sizes.device)
    padded = hidden.view(sizes.texts, sizes.length, sizes.hidden)
    shape = f"{sizes.texts} texts of {sizes.length} x {sizes.hidden}"

    for pooling, read in (("max", _size(hidden)), ("cls", _size(hidden) // sizes.length)):

        def pooled(dtype: torch.dtype, pooling: str = pooling) -> Tensor:
            rows = padded.amax(1) if pooling == "max" else padded[:, 0]
            return functional.normalize(rows.to(dtype), dim=-1)

        yield Case(
            "pool_project_normalize",
            f"{shape}, {pooling}",
            "pool_project_normalize",
            {
                "embedkit": lambda pooling=pooling: pool_project_normalize(
                    hidden, bounds, pooling=pooling, normalize=True
                ),
                **rivals("torch", lambda pooled=pooled: pooled(hidden.dtype)),
            },
            lambda pooled=pooled: pooled(torch.float64),
            read + _size(bounds) + 4 * sizes.texts * sizes.hidden,
            tuned=False,
        )

    def head(dtype: torch.dtype) -> Tensor:
        return functional.normalize(functional.linear(padded.to(dtype).mean(1), weight.to(dtype)), dim=-1)

    vectors = head(torch.float32)
    ranges = torch.stack([vectors.amin(0), vectors.amax(0)])
    powers = 2 ** torch.arange(7, -1, -1, dtype=torch.int32, device=sizes.device)

    def eighth(rows: Tensor) -> Tensor:
        # 255 steps between the least and the greatest value, as `Encoder.encode` has them.
        steps = (rows - ranges[0]) / ((ranges[1] - ranges[0]) / 255)
        return (steps - 128).clamp(-128, 127).to(torch.int8)

    def signs(rows: Tensor) -> Tensor:
        bits = functional.pad((rows > 0).int(), (0, -sizes.dimension % 8))
        return (bits.view(len(rows), -1, 8) * powers).sum(-1).to(torch.uint8)

    for output, encoded in (("int8", eighth), ("ubinary", signs)):
        result = encoded(vectors)
        yield Case(
            "pool_project_normalize",
            f"{shape} -> {sizes.dimension}, {output}",
            "pool_project_normalize",
            {
                "embedkit": lambda output=output: pool_project_normalize(
                    hidden, bounds, weight=weight.T, normalize=True, output=output,
                    ranges=ranges if output == "int8" else None,
                ),
                **rivals("torch", lambda encoded=encoded: encoded(head(hidden.dtype))),
            },
            lambda result=result: result.float(),
            _size(hidden, weight, bounds, result),
            2 * sizes.texts * sizes.hidden * sizes.dimension,
            sizes.dtype,
            tuned=False,
        )  # fmt: skip


def _pooling_backward(sizes: Sizes, rivals: Rivals) -> Iterator[Case]:
    """Forward and backward pass, as in a training step."""
    make = Operands(sizes)
    hidden = make.normal(sizes.tokens, sizes.hidden).requires_grad_()
    weight = make.normal(sizes.dimension, sizes.hidden, scale=sizes.hidden**-0.5).requires_grad_()
    given = make.normal(sizes.texts, sizes.dimension).float()
    bounds = torch.arange(0, sizes.tokens + 1, sizes.length, dtype=torch.int32, device=sizes.device)

    def head(rows: Tensor, matrix: Tensor) -> Tensor:
        pooled = rows.view(sizes.texts, sizes.length, sizes.hidden).mean(1)
        return functional.normalize(functional.linear(pooled, matrix), dim=-1).float()

    def gradient(forward: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return lambda: torch.autograd.grad(forward(), (hidden, weight), given)[0]

    def expected() -> Tensor:
        rows, matrix = (t.detach().float().requires_grad_() for t in (hidden, weight))
        return torch.autograd.grad(head(rows, matrix), (rows, matrix), given)[0]

    yield Case(
        "pool_project_normalize",
        f"{sizes.texts} texts of {sizes.length} x {sizes.hidden} -> {sizes.dimension}, forward and backward",
        "pool_project_normalize",
        {
            "embedkit": gradient(
                lambda: pool_project_normalize(hidden, bounds, weight=weight.T, normalize=True)
            ),
            **rivals("torch", lambda: head(hidden, weight), gradient),
        },
        expected,
        # The hidden states once each way; the pooled rows are kept or made again as the form likes.
        2 * _size(hidden, weight) + _size(bounds) + 8 * sizes.texts * sizes.dimension,
        6 * sizes.texts * sizes.hidden * sizes.dimension,
        sizes.dtype,
        tuned=False,
    )


def _attention(sizes: Sizes, rivals: Rivals) -> Iterator[Case]:
    size = sizes.hidden // sizes.heads
    for kind in ("", "relative bias", "rotary"):
        yield _attention_case(sizes, rivals, sizes.length, size, kind, tuned=kind != "rotary")


def _more_attention(sizes: Sizes, rivals: Rivals) -> Iterator[Case]:
    """Other head sizes at the same length, and other lengths with the model's and with MPNet's head size."""
    own = sizes.hidden // sizes.heads
    for size in sizes.head_sizes:
        yield _attention_case(sizes, rivals, sizes.length, size, "", tuned=False)
    for length in sizes.lengths:
        if sizes.tokens % length == 0:
            yield _attention_case(sizes, rivals, length, own, "", tuned=False)
            yield _attention_case(sizes, rivals, length, sizes.head_sizes[0], "relative bias", tuned=False)


def _packed_attention(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, length: int
) -> dict[str, Callable[[], Tensor]]:
    """torch's own attention without padding, of 16-bit types on a GPU."""
    if not query.is_cuda or query.dtype == torch.float32 or query.shape[-1] % 8:
        return {}
    from torch.nn.attention.varlen import varlen_attn

    return {"torch varlen": lambda: varlen_attn(query, key, value, bounds, bounds, length, length)}


def _attention_case(sizes: Sizes, rivals: Rivals, length: int, size: int, kind: str, *, tuned: bool) -> Case:
    """Attention of the batch cut into texts of ``length``, heads of ``size``; kind "", "relative bias" or "rotary"."""
    make = Operands(sizes)
    texts = sizes.tokens // length
    packed = make.normal(sizes.tokens, 3, sizes.heads, size)
    query, key, value = packed.unbind(1)
    bounds = torch.arange(0, sizes.tokens + 1, length, dtype=torch.int32, device=sizes.device)
    tiles = torch.from_numpy(attention_tiles([length] * texts)).to(sizes.device)
    place = torch.arange(length, device=sizes.device)
    bias = make.normal(sizes.heads, 2 * length - 1).float() if kind == "relative bias" else None
    square = None if bias is None else bias[:, place[None] - place[:, None] + length - 1]
    rotary: tuple[Tensor, Tensor] | None = None
    if kind == "rotary":
        angles = place[:, None] * 10000.0 ** (-torch.arange(size // 2, device=sizes.device) * 2 / size)
        rotary = (angles.cos(), angles.sin())

    def turned(rows: Tensor) -> Tensor:
        if rotary is None:
            return rows
        cos, sin = (table.to(rows.dtype) for table in rotary)
        even, odd = rows[..., 0::2], rows[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)

    def sdpa(dtype: torch.dtype) -> Tensor:
        rows = packed.to(dtype)
        q, k, v = rows.view(texts, length, 3, sizes.heads, size).permute(2, 0, 3, 1, 4)
        mask = None if square is None else square.to(dtype)[None]
        result = functional.scaled_dot_product_attention(turned(q), turned(k), v, attn_mask=mask)
        return result.transpose(1, 2).reshape(sizes.tokens, sizes.heads, size)

    return Case(
        "varlen_attention",
        f"{texts} texts of {length}, {sizes.heads} heads of {size}" + (f", {kind}" if kind else ""),
        "varlen_attention",
        {
            "embedkit": lambda: varlen_attention(
                query, key, value, bounds, length, bias=bias, rotary=rotary, tile_map=tiles
            ),
            # Equal lengths: nothing is padded, which flatters it.
            **rivals("torch sdpa", lambda: sdpa(packed.dtype)),
            **({} if kind else _packed_attention(query, key, value, bounds, length)),
        },
        lambda: sdpa(torch.float64),
        _size(packed, bias, *(rotary or ())) + _size(query),
        4 * sizes.tokens * length * sizes.heads * size,
        sizes.dtype,
        tuned,
    )


def _rows(sizes: Sizes, rivals: Rivals) -> Iterator[Case]:
    make = Operands(sizes)
    hidden, tokens = sizes.hidden, sizes.tokens
    weight, bias, added = (make.normal(hidden) for _ in range(3))

    def norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (hidden,), weight.to(x.dtype), bias.to(x.dtype), 1e-12)

    word, position, kinds = make.normal(30522, hidden), make.normal(512, hidden), make.normal(2, hidden)
    ids, places = make.ids(tokens, 30522), make.ids(tokens, sizes.length)

    def embedded(dtype: torch.dtype) -> Tensor:
        return norm(word[ids].to(dtype) + position[places].to(dtype) + kinds[0].to(dtype))

    result = tokens * hidden * word.element_size()
    yield Case(
        "embed_layernorm",
        f"{tokens} x {hidden}",
        "layernorm",
        {
            "embedkit": lambda: embed_layernorm(
                ids, places, None, word, position, kinds, weight, bias, 1e-12
            ),
            **rivals("torch", lambda: embedded(word.dtype)),
        },
        lambda: embedded(torch.float64),
        _size(ids, places) + 2 * result,  # a row of the vocabulary for each token; the other tables stay near
    )
    x, residual = make.normal(tokens, hidden), make.normal(tokens, hidden)
    yield Case(
        "residual_layernorm",
        f"{tokens} x {hidden}",
        "layernorm",
        {
            "embedkit": lambda: residual_layernorm(x, residual, weight, bias, 1e-12, added),
            **rivals("torch", lambda: norm(x + added + residual)),
        },
        lambda: norm(x.double() + added.double() + residual.double()),
        3 * result,
    )
    inner = make.normal(tokens, sizes.inner)
    inner_bias = make.normal(sizes.inner)
    yield Case(
        "bias_gelu",
        f"{tokens} x {sizes.inner}",
        "bias_gelu",
        {
            "embedkit": lambda: bias_gelu(inner, inner_bias),
            **rivals("torch", lambda: functional.gelu(inner + inner_bias)),
        },
        lambda: functional.gelu(inner.double() + inner_bias.double()),
        2 * _size(inner),
    )
    matrix = make.normal(sizes.inner, hidden, scale=hidden**-0.5)
    yield Case(
        "linear_gelu",
        f"{tokens} x {hidden} -> {sizes.inner}",
        "bias_gelu",
        {
            "embedkit": lambda: linear_gelu(x, matrix, inner_bias),
            **rivals("torch", lambda: functional.gelu(functional.linear(x, matrix, inner_bias))),
        },
        lambda: functional.gelu(functional.linear(x.double(), matrix.double(), inner_bias.double())),
        _size(x, matrix, inner),
        2 * tokens * hidden * sizes.inner,
        sizes.dtype,
        tuned=False,
    )


def _products(sizes: Sizes, rivals: Rivals, kind: Any) -> Iterator[Case]:
    make = Operands(sizes)
    tokens, hidden, inner = sizes.tokens, sizes.hidden, sizes.inner
    x = make.normal(tokens, hidden)
    ones, zeros = torch.ones_like(x[0]), torch.zeros_like(x[0])
    rows = QuantizedRows.empty(tokens, hidden, kind, x.device)
    x = residual_layernorm(x, torch.zeros_like(x), ones, zeros, 1e-12, quantized=rows)

    for outputs, grouped in ((3 * hidden, False), (inner, True)):
        matrix = make.normal(outputs, hidden, scale=hidden**-0.5)
        bias = make.normal(outputs)
        weight = quantize_weight(matrix, kind)
        yield Case(
            "quantized_linear",
            f"{kind}, {tokens} x {hidden} -> {outputs}" + (", GELU, to 8 bits" if grouped else ""),
            "quantized_linear",
            {
                "embedkit": lambda w=weight, b=bias, g=grouped: (
                    quantized_linear_groups(rows, w, b, activation="gelu")
                    if g
                    else quantized_linear(rows, w, b, dtype=x.dtype)
                ),
                **rivals(
                    f"torch {sizes.dtype}",
                    lambda m=matrix, b=bias, g=grouped: (
                        functional.gelu(functional.linear(x, m, b)) if g else functional.linear(x, m, b)
                    ),
                ),
                **_library_product(rows, weight, bias, kind, activation=grouped),
            },
            lambda m=matrix, b=bias, g=grouped: (
                functional.gelu(functional.linear(x.double(), m.double(), b.double()))
                if g
                else functional.linear(x.double(), m.double(), b.double())
            ),
            _size(rows.values, rows.scale, weight.values)
            + tokens * outputs * (1 if grouped else x.element_size()),
            2 * tokens * hidden * outputs,
            kind,
            tuned=not grouped,
        )
    matrix = make.normal(hidden, inner, scale=inner**-0.5)
    groups = quantized_linear_groups(rows, quantize_weight(matrix.T.contiguous(), kind), activation="gelu")
    plain = functional.gelu(functional.linear(x, matrix.T))
    weight = quantize_weight(matrix, kind)
    yield Case(
        "quantized_linear",
        f"{kind}, {tokens} x {inner} in groups -> {hidden}",
        "quantized_linear",
        {
            "embedkit": lambda: quantized_linear(groups, weight, dtype=x.dtype),
            **rivals(f"torch {sizes.dtype}", lambda: functional.linear(plain, matrix)),
        },
        lambda: functional.linear(plain.double(), matrix.double()),
        _size(groups.values, groups.scale, weight.values) + tokens * hidden * x.element_size(),
        2 * tokens * hidden * inner,
        kind,
        tuned=False,
    )


def _library_product(
    rows: QuantizedRows, weight: Any, bias: Tensor, kind: str, *, activation: bool
) -> dict[str, Callable[[], Any]]:
    """torch's own 8-bit product of the same rows, if it has one; without zero points, so less accurate."""
    if not rows.values.is_cuda or activation:
        return {}
    if kind == "fp8":
        scale, scales = rows.scale[:, None], weight.scale[None]
        return {
            "torch._scaled_mm": lambda: torch._scaled_mm(
                rows.values, weight.values.T, scale, scales, bias=bias, out_dtype=bias.dtype,
                use_fast_accum=False,
            )
        }  # fmt: skip
    return {"torch._int_mm, sums only": lambda: torch._int_mm(rows.values, weight.values.T)}


def error(result: Any, expected: Tensor) -> float:
    """‖result − expected‖ / ‖expected‖."""
    if isinstance(result, QuantizedRows):
        scale = result.scale.repeat_interleave(128, dim=1)[:, : result.values.shape[1]]
        result = result.values.float() * scale
    return float((result.double() - expected).norm() / expected.norm())


def tune(case: Case) -> list[tuple[float, dict[str, int]]]:
    """Seconds of embedkit's form with each of the grid's block sizes that the GPU can run, fastest first.

    The first entry of what comes back is the best; blocks that do not fit the GPU are left out.
    """
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources

    grid = GRIDS[case.table]
    found = []
    for values in itertools.product(*grid.values()):
        choice = dict(zip(grid, values, strict=True))
        with override(case.table, choice):
            try:
                found.append((seconds(case.forms["embedkit"], rounds=5), choice))
            except (OutOfResources, CompilationError):
                continue
    return sorted(found, key=lambda one: one[0])


def rates(case: Case, taken: float, ceiling: dict[str, float]) -> dict[str, Any]:
    """GB/s, TFLOP/s, and the share of the roofline."""
    floor = case.bytes / ceiling["copy"] if ceiling else math.nan
    bound = "memory"
    if ceiling and case.flops and case.flops / ceiling[case.unit] > floor:
        floor, bound = case.flops / ceiling[case.unit], f"{case.unit} products"
    return {
        "us": round(taken * 1e6, 2),
        "bytes": case.bytes,
        "flops": case.flops,
        "gb_per_s": round(case.bytes / taken / 1e9, 1),
        "tflop_per_s": round(case.flops / taken / 1e12, 2),
        "bound": bound if ceiling else None,
        "share_of_roofline": round(floor / taken, 4) if ceiling else None,
    }
