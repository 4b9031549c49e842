"""Triton kernels for GPU encoders, installed as ``embedkit.kernels``.

Each module checks arguments and launches; the kernels and their formulas are in ``NAME_triton``.

* `attention_tiles`: the tokens of each program of `varlen_attention` (numpy only).
* `bias_gelu`: y = gelu(x + b).
* `blocks`: block sizes of each kernel, by GPU.
* `forward`: the complete encoder of a model folder, on packed batches.
* `layernorm`: `embed_layernorm` and `residual_layernorm`, a sum fused with its layer norm.
* `pool_project_normalize`: pooling, projection, normalization and quantization, with gradients.
* `quantize`: activations and weights in 8 bits.
* `quantized_linear`: their products, with bias and activation.
* `varlen_attention`: attention over packed sequences, with relative position bias and rotary positions.

Modules are imported on first use, so importing this package needs neither torch nor triton.
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
