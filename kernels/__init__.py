"""Triton kernels for GPU encoders, installed as ``embedkit.kernels``.

Each module holds the functions of its name; its arithmetic stands in ``NAME_triton``, below the formula.

* `attention_tiles`: which tokens one program of `varlen_attention` takes (numpy only).
* `bias_gelu`: y = gelu(x + b).
* `blocks`: how much one program of each kernel takes, by GPU.
* `forward`: the whole encoder of a model folder from these kernels, on packed batches.
* `layernorm`: `embed_layernorm` and `residual_layernorm`, what stands before a layer norm and the norm.
* `pool_project_normalize`: pooling, projection, length 1 and quantization, with gradients.
* `quantize`: rows and matrices in 8 bits.
* `quantized_linear`: their products, with bias and activation.
* `varlen_attention`: attention of packed sequences, with relative position bias and rotary positions.

A module is imported when it is first used: torch and triton are not needed to import this package.
"""

from importlib import import_module
from types import ModuleType

__all__ = [
    "attention_tiles",
    "bias_gelu",
    "blocks",
    "forward",
    "layernorm",
    "pool_project_normalize",
    "quantize",
    "quantized_linear",
    "varlen_attention",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
