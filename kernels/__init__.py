"""Triton kernels for GPU encoders, installed as ``embedkit.kernels``.

Each module checks arguments and launches; the kernels and their formulas are in ``NAME_triton``.

* `add_norm`: a residual stream's sum and its norm, for layers that normalize before their parts.
* `attention_tiles`: the tokens of each program of `varlen_attention` (numpy only).
* `bias_gelu`: y = gelu(x + b).
* `blocks`: block sizes of each kernel, by GPU.
* `forward`: the complete encoder of a model folder, on packed batches.
* `gated`: y = f(a) · b, of gated feed-forward layers.
* `layernorm`: `embed_layernorm` and `residual_layernorm`, a sum fused with its layer norm.
* `modern_forward`: the complete encoder of the families since BERT's.
* `qk_norm_rope`: head norms and rotary positions of half a head.
* `pool_project_normalize`: pooling, projection, normalization and quantization, with gradients.
* `quantize`: activations and weights in 8 bits.
* `quantized_linear`: their products, with bias and activation.
* `reference`: the kernels of the families since BERT's in plain torch.
* `varlen_attention`: attention over packed sequences, with relative position bias, rotary positions, windows and shared
  keys.

Modules are imported on first use, so importing this package needs neither torch nor triton.
"""

from importlib import import_module
from types import ModuleType

__all__ = [
    "add_norm",
    "attention_tiles",
    "bias_gelu",
    "blocks",
    "forward",
    "gated",
    "layernorm",
    "modern_forward",
    "pool_project_normalize",
    "qk_norm_rope",
    "quantize",
    "quantized_linear",
    "reference",
    "varlen_attention",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
