"""The encoder architectures the core runs: one table entry each.

An entry says which keys of ``config.json`` the core needs, which values it cannot run, and the name and
shape of every tensor. The names are those of the Hugging Face implementation without the model's prefix;
a shape is written in config keys, so that a checkpoint can be checked before anything is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ARCHITECTURES", "Architecture", "CoreConfig", "TensorSpec"]

CoreConfig = dict[str, "int | float | str"]

# Bounds that no real model reaches: a hostile config must not make us allocate or loop without end.
_LIMITS = {"num_hidden_layers": 1_000, "vocab_size": 10_000_000}
_LIMIT = 1_000_000

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a checkpoint: its shape, and whether int8 folders hold it as int8 with a scale a row."""

    shape: tuple[int, ...]
    quantised: bool


@dataclass(frozen=True)
class Architecture:
    """How a ``model_type`` is laid out.

    Attributes:
        prefix: what the names of a checkpoint with a task head start with (``"bert."``); optional in files.
        integers: the keys of ``config.json`` that the core needs as positive integers.
        fixed: keys that must have this value when they are there, since the core knows no other.
        layers: what the names of the layers' tensors start with; the layer's number follows.
        tensors: name -> (shape in config keys, quantised); ``{}`` stands for the layer's number.
    """

    prefix: str
    integers: tuple[str, ...]
    fixed: Mapping[str, Any]
    layers: str
    tensors: Mapping[str, tuple[tuple[str, ...], bool]]

    def core_config(self, config: Mapping[str, Any], where: str) -> CoreConfig:
        """What the core wants to know, checked.

        Args:
            config: the parsed ``config.json``.
            where: the file's path, for messages.

        Raises:
            ValueError: for a key that is missing, of the wrong type or out of range, or a value that the
                core cannot run.
        """
        for key, value in self.fixed.items():
            if config.get(key, value) != value:
                raise ValueError(
                    f"{where}: {key} is {config[key]!r}; embedkit runs only {value!r}. "
                    "Use a model of that kind, or sentence-transformers for this one."
                )
        result: CoreConfig = {}
        for key in self.integers:
            number = config.get(key)
            limit = _LIMITS.get(key, _LIMIT)
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= limit:
                raise ValueError(
                    f"{where}: {key} must be an integer from 1 to {limit}, not {number!r}. "
                    "Fetch the file again: it does not describe a model."
                )
            result[key] = number
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        if hidden % heads:
            raise ValueError(f"{where}: hidden_size {hidden} is no multiple of num_attention_heads {heads}")
        epsilon = config.get("layer_norm_eps", 1e-12)
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 <= epsilon < 1:
            raise ValueError(f"{where}: layer_norm_eps must be a number from 0 to 1, not {epsilon!r}")
        result["layer_norm_eps"] = float(epsilon)
        activation = config.get("hidden_act", "gelu")
        if not isinstance(activation, str) or activation not in _ACTIVATIONS:
            raise ValueError(
                f"{where}: hidden_act {activation!r:.80} is not known; known are {', '.join(_ACTIVATIONS)}"
            )
        result["hidden_act"] = _ACTIVATIONS[activation]
        return result

    def tensor_specs(self, config: CoreConfig) -> dict[str, TensorSpec]:
        """Every tensor that the core needs, by its name without the prefix."""
        specs: dict[str, TensorSpec] = {}
        for name, (dimensions, quantised) in self.tensors.items():
            spec = TensorSpec(tuple(int(config[key]) for key in dimensions), quantised)
            if "{}" in name:
                specs.update({name.format(i): spec for i in range(int(config["num_hidden_layers"]))})
            else:
                specs[name] = spec
        return specs


def _linear(name: str, rows: str, columns: str) -> dict[str, tuple[tuple[str, ...], bool]]:
    return {f"{name}.weight": ((rows, columns), True), f"{name}.bias": ((rows,), False)}


def _layer_norm(name: str) -> dict[str, tuple[tuple[str, ...], bool]]:
    return {f"{name}.weight": (("hidden_size",), False), f"{name}.bias": (("hidden_size",), False)}


_LAYERS = "encoder.layer."
_LAYER = _LAYERS + "{}"
_BERT = Architecture(
    prefix="bert.",
    integers=(
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
        "type_vocab_size",
    ),
    fixed={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    layers=_LAYERS,
    tensors={
        "embeddings.word_embeddings.weight": (("vocab_size", "hidden_size"), True),
        "embeddings.position_embeddings.weight": (("max_position_embeddings", "hidden_size"), True),
        "embeddings.token_type_embeddings.weight": (("type_vocab_size", "hidden_size"), False),
        **_layer_norm("embeddings.LayerNorm"),
        **_linear(f"{_LAYER}.attention.self.query", "hidden_size", "hidden_size"),
        **_linear(f"{_LAYER}.attention.self.key", "hidden_size", "hidden_size"),
        **_linear(f"{_LAYER}.attention.self.value", "hidden_size", "hidden_size"),
        **_linear(f"{_LAYER}.attention.output.dense", "hidden_size", "hidden_size"),
        **_layer_norm(f"{_LAYER}.attention.output.LayerNorm"),
        **_linear(f"{_LAYER}.intermediate.dense", "intermediate_size", "hidden_size"),
        **_linear(f"{_LAYER}.output.dense", "hidden_size", "intermediate_size"),
        **_layer_norm(f"{_LAYER}.output.LayerNorm"),
    },
)

ARCHITECTURES: dict[str, Architecture] = {"bert": _BERT}
"""``model_type`` of ``config.json`` -> how it is laid out."""
