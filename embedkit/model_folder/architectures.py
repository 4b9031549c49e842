"""The encoder architectures the core runs: one table entry each.

An entry defines which keys of ``config.json`` the core needs, which values it does not support, and the name and
shape of every tensor. The names are those of the Hugging Face implementation without the model's prefix;
shapes are given as config keys, so that a checkpoint can be checked before anything is computed. The core
uses BERT's names for keys and tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "ARCHITECTURES",
    "EMBEDDINGS",
    "FOREIGN",
    "INTEGERS",
    "LAYER_TENSORS",
    "NO_DECODER",
    "TOKEN_TYPES",
    "Architecture",
    "CoreConfig",
    "TensorSpec",
    "auto_class",
    "counts_from_padding",
    "graph_config",
    "layer_norm",
    "linear",
    "stored_names",
]

CoreConfig = dict[str, "int | float | str"]

# No real model reaches these bounds; they keep a hostile config from causing endless loops or allocations.
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
    """One tensor of a checkpoint: its shape, and whether int8 folders store it as int8 with one scale per row."""

    shape: tuple[int, ...]
    quantized: bool


@dataclass(frozen=True)
class Architecture:
    """The layout of a ``model_type``.

    Attributes:
        prefix: of tensor names in a checkpoint with a task head (``"bert."``); optional in files.
        integers: keys of ``config.json`` that must be positive integers.
        fixed: keys that, if present, must have this value, the only one the core supports.
        constants: further values of the core's ``EncoderConfig``.
        keys: name of a key in the core -> in ``config.json``, where they differ.
        defaults: a key that may be missing or null -> the key that provides its value.
        flags: keys that must be booleans, false if missing.
        projection: a module that exists only if embedding_size differs from hidden_size.
        names: part of a tensor's name -> its replacement in the core, applied in this order.
        layers: prefix of the layers' tensor names; the number of the layer follows.
        tensors: name -> (shape in config keys, quantized); ``{}`` stands for the layer's number.
        family: the name of a family since BERT's, whose layer is made of parts; "" for the others.
        prefixes: further ones that checkpoints have.
        layer_count: the key that counts the layers with weights of their own.
        absent: tensors of ``tensors`` that there are not.
        alternatives: part of a tensor's name -> its replacement in checkpoints that transformers' own class wrote; the
            rows of several are put together.
        final_norm: a tensor whose name in the core is ``encoder.norm.weight``.
        activation: the default, if the file names none.
        activations: names that this model has beside or in place of the usual ones.
        usual_activations: it has these, too.
        epsilon: the default of the norms.
        read: adds what the file says in a form of its own, and refuses what the core does not compute.
        spans_heads: ``hidden_size`` need not be a multiple of the heads.
        classifier_norm: a norm between the two linear layers of the classifier.
        classifier: the head of ``…ForSequenceClassification`` on the first token: a linear layer to hidden_size,
            its activation (None for the model's own), and the linear layer to the classes; empty names for none.
            A decoder's reads the last token and has no bias.
    """

    prefix: str
    integers: tuple[str, ...]
    fixed: Mapping[str, Any]
    layers: str
    tensors: Mapping[str, tuple[tuple[str, ...], bool]]
    classifier: tuple[str, str | None, str]
    constants: Mapping[str, int | float | str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    projection: str | None = None
    family: str = ""
    prefixes: tuple[str, ...] = ()
    layer_count: str = "num_hidden_layers"
    absent: frozenset[str] = frozenset()
    alternatives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    final_norm: str = ""
    activation: str = "gelu"
    activations: Mapping[str, str] = field(default_factory=dict)
    usual_activations: bool = True
    epsilon: float = 1e-12
    read: Callable[[Mapping[str, Any], CoreConfig, str], None] | None = None
    spans_heads: bool = False
    classifier_norm: str = ""

    @property
    def is_decoder(self) -> bool:
        """Whether it is made of a decoder's layers, whose last token has seen the whole text."""
        return bool(self.constants.get("causal"))

    def core_config(self, config: Mapping[str, Any], where: str) -> CoreConfig:
        """The checked configuration for the core.

        Args:
            config: the parsed ``config.json``.
            where: the file's path, for messages.

        Raises:
            ValueError: a key is missing, of the wrong type or out of range, or a value is not supported.
        """
        for key, value in self.fixed.items():
            if config.get(key, value) != value:
                raise ValueError(
                    f"{where}: {key} is {config[key]!r}; embedkit supports only {value!r}. "
                    "Use another model, or sentence-transformers for this one."
                )
        if config.get("is_causal") and not self.constants.get("causal"):
            raise ValueError(
                f"{where}: is_causal is {config['is_causal']!r:.80}; embedkit runs this model without a causal mask. "
                "Use another model, or sentence-transformers for this one."
            )
        result: CoreConfig = {}
        for key in self.integers:
            stored = self.keys.get(key, key)
            number = config.get(stored)
            if number is None and key in self.defaults:
                number = config.get(self.defaults[key])
            limit = _LIMITS.get(key, _LIMIT)
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= limit:
                raise ValueError(
                    f"{where}: {stored} must be an integer from 1 to {limit}, not {number!r}. "
                    "Fetch the file again."
                )
            result[key] = number
        for key in self.flags:
            flag = config.get(key, False)
            if not isinstance(flag, bool):
                raise ValueError(f"{where}: {key} must be true or false, not {flag!r:.80}")
            result[key] = flag
        sizes = ("hidden_size", "num_attention_heads")
        hidden, heads = (int(result[key]) for key in sizes)
        if hidden % heads and not self.spans_heads:
            size, count = (self.keys.get(key, key) for key in sizes)
            raise ValueError(f"{where}: {size} {hidden} is not a multiple of {count} {heads}")
        key = self.keys.get("layer_norm_eps", "layer_norm_eps")
        epsilon = config.get(key, self.epsilon)
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 <= epsilon < 1:
            raise ValueError(f"{where}: {key} must be a number from 0 to 1, not {epsilon!r}")
        result["layer_norm_eps"] = float(epsilon)
        key = self.keys.get("hidden_act", "hidden_act")
        activation = config.get(key, self.activation)
        known = {**(_ACTIVATIONS if self.usual_activations else {}), **self.activations}
        if not isinstance(activation, str) or activation not in known:
            raise ValueError(f"{where}: unknown {key} {activation!r:.80}; expected one of {', '.join(known)}")
        result["hidden_act"] = known[activation]
        result.update(self.constants)
        if self.read is not None:
            self.read(config, result, where)
        return result

    def core_name(self, name: str) -> str:
        """The core's name of a tensor."""
        if name == self.final_norm:
            return "encoder.norm.weight"
        for part, core in self.names.items():
            name = name.replace(part, core)
        return name

    def other_names(self, name: str) -> Iterator[list[str]]:
        """Other names that a tensor may have in a checkpoint; the rows of several are put together."""
        names = [name]
        for part, replacements in self.alternatives.items():
            names = (
                [one.replace(part, other) for one in names for other in replacements]
                if part in name
                else names
            )
        if names != [name]:
            yield names

    def tensor_specs(self, config: CoreConfig) -> dict[str, TensorSpec]:
        """Name without prefix -> specification of every tensor."""
        specs: dict[str, TensorSpec] = {}
        for name, (dimensions, quantized) in self.tensors.items():
            module = name.partition(".")[0]
            if module == self.projection and config["embedding_size"] == config["hidden_size"]:
                continue
            spec = TensorSpec(tuple(_size(config, key) for key in dimensions), quantized)
            if 0 in spec.shape:
                continue  # a model without token types
            if "{}" in name:
                count = int(config[self.layer_count])
                specs.update({name.format(i): spec for i in range(count)})
            else:
                specs[name] = spec
        return {name: spec for name, spec in specs.items() if name not in self.absent}


def _size(config: CoreConfig, key: str) -> int:
    """A dimension: a key of the config, or a product of keys and numbers."""
    return math.prod(int(part) if part.isdigit() else int(config[part]) for part in key.split("*"))


def linear(
    name: str, rows: str, columns: str, *, bias: bool = True
) -> dict[str, tuple[tuple[str, ...], bool]]:
    """The tensors of a linear layer, as in `Architecture.tensors`."""
    weight = {f"{name}.weight": ((rows, columns), True)}
    return {**weight, f"{name}.bias": ((rows,), False)} if bias else {**weight}


def layer_norm(
    name: str, size: str = "hidden_size", *, bias: bool = True
) -> dict[str, tuple[tuple[str, ...], bool]]:
    """The tensors of a norm, as in `Architecture.tensors`."""
    return {f"{name}.{kind}": ((size,), False) for kind in ("weight", *(("bias",) if bias else ()))}


def stored_names(
    tensors: Mapping[str, tuple[tuple[str, ...], bool]], names: Mapping[str, str]
) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Rename tensors from the core's names to those of a checkpoint; ``names`` as in `Architecture`."""
    result = {}
    for name, entry in tensors.items():
        stored = name
        for part, core in names.items():
            stored = stored.replace(core, part)
        result[stored] = entry
    return result


INTEGERS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
NO_DECODER = {"is_decoder": False, "add_cross_attention": False}

EMBEDDINGS = {
    "embeddings.word_embeddings.weight": (("vocab_size", "hidden_size"), True),
    "embeddings.position_embeddings.weight": (("max_position_embeddings", "hidden_size"), True),
    **layer_norm("embeddings.LayerNorm"),
}
TOKEN_TYPES = {"embeddings.token_type_embeddings.weight": (("type_vocab_size", "hidden_size"), False)}

_LAYERS = "encoder.layer."
_LAYER = _LAYERS + "{}"
LAYER_TENSORS = {
    **linear(f"{_LAYER}.attention.self.query", "hidden_size", "hidden_size"),
    **linear(f"{_LAYER}.attention.self.key", "hidden_size", "hidden_size"),
    **linear(f"{_LAYER}.attention.self.value", "hidden_size", "hidden_size"),
    **linear(f"{_LAYER}.attention.output.dense", "hidden_size", "hidden_size"),
    **layer_norm(f"{_LAYER}.attention.output.LayerNorm"),
    **linear(f"{_LAYER}.intermediate.dense", "intermediate_size", "hidden_size"),
    **linear(f"{_LAYER}.output.dense", "hidden_size", "intermediate_size"),
    **layer_norm(f"{_LAYER}.output.LayerNorm"),
}

_CLASSIFICATION_HEAD = ("classifier.dense", "tanh", "classifier.out_proj")

_BERT = Architecture(
    prefix="bert.",
    integers=(*INTEGERS, "type_vocab_size"),
    fixed={"position_embedding_type": "absolute", **NO_DECODER},
    layers=_LAYERS,
    tensors={**EMBEDDINGS, **TOKEN_TYPES, **LAYER_TENSORS},
    classifier=("pooler.dense", "tanh", "classifier"),
)

_MPNET_NAMES = {
    ".attention.attn.q.": ".attention.self.query.",
    ".attention.attn.k.": ".attention.self.key.",
    ".attention.attn.v.": ".attention.self.value.",
    ".attention.attn.o.": ".attention.output.dense.",
    ".attention.LayerNorm.": ".attention.output.LayerNorm.",
}
# transformers always uses 32 buckets and padding position 1, regardless of config.json.
_MPNET = Architecture(
    prefix="mpnet.",
    integers=(*INTEGERS, "relative_attention_num_buckets"),
    fixed={"relative_attention_num_buckets": 32},
    layers=_LAYERS,
    tensors={
        **EMBEDDINGS,
        "encoder.relative_attention_bias.weight": (
            ("relative_attention_num_buckets", "num_attention_heads"),
            False,
        ),
        **stored_names(LAYER_TENSORS, _MPNET_NAMES),
    },
    classifier=_CLASSIFICATION_HEAD,
    constants={"padding_idx": 1},
    names=_MPNET_NAMES,
)

_ROBERTA = Architecture(
    prefix="roberta.",
    integers=_BERT.integers,
    fixed={"pad_token_id": 1, **_BERT.fixed},
    layers=_LAYERS,
    tensors=_BERT.tensors,
    classifier=_CLASSIFICATION_HEAD,
    constants={"padding_idx": 1},
)

_DISTILBERT_NAMES = {
    "transformer.layer.": "encoder.layer.",
    ".attention.q_lin.": ".attention.self.query.",
    ".attention.k_lin.": ".attention.self.key.",
    ".attention.v_lin.": ".attention.self.value.",
    ".attention.out_lin.": ".attention.output.dense.",
    ".sa_layer_norm.": ".attention.output.LayerNorm.",
    ".ffn.lin1.": ".intermediate.dense.",
    ".ffn.lin2.": ".output.dense.",
    ".output_layer_norm.": ".output.LayerNorm.",
}


def _read_distilbert(raw: Mapping[str, Any], config: CoreConfig, where: str) -> None:
    config["layer_norm_eps"] = _DISTILBERT.epsilon  # transformers always uses it, regardless of config.json
    for alias in ("hidden_size", "num_hidden_layers", "num_attention_heads"):  # which count for more there
        if raw.get(alias, config[alias]) != config[alias]:
            own = _DISTILBERT.keys[alias]
            raise ValueError(
                f"{where}: {alias} is {raw[alias]!r:.80}, and {own}, another name of it, is {config[alias]}; "
                "remove the wrong one"
            )


_DISTILBERT = Architecture(
    prefix="distilbert.",
    integers=INTEGERS,
    fixed={},
    layers="transformer.layer.",
    tensors={**EMBEDDINGS, **stored_names(LAYER_TENSORS, _DISTILBERT_NAMES)},
    classifier=("pre_classifier", "relu", "classifier"),
    names=_DISTILBERT_NAMES,
    keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    },
    read=_read_distilbert,
)

_ROFORMER = Architecture(
    prefix="roformer.",
    integers=(*INTEGERS, "type_vocab_size", "embedding_size"),
    fixed=NO_DECODER,
    layers=_LAYERS,
    tensors={
        "embeddings.word_embeddings.weight": (("vocab_size", "embedding_size"), True),
        "embeddings.token_type_embeddings.weight": (("type_vocab_size", "embedding_size"), False),
        **layer_norm("embeddings.LayerNorm", "embedding_size"),
        "embeddings_project.weight": (("hidden_size", "embedding_size"), False),
        "embeddings_project.bias": (("hidden_size",), False),
        **LAYER_TENSORS,
    },
    classifier=("classifier.dense", None, "classifier.out_proj"),
    constants={"rotary": True},
    defaults={"embedding_size": "hidden_size"},
    flags=("rotary_value",),
    projection="embeddings_project",
)

ARCHITECTURES: dict[str, Architecture] = {
    "bert": _BERT,
    "distilbert": _DISTILBERT,
    "mpnet": _MPNET,
    "roberta": _ROBERTA,
    "roformer": _ROFORMER,
    "xlm-roberta": _ROBERTA,
}
"""``model_type`` of ``config.json`` -> its layout."""

FOREIGN = Architecture(prefix="", integers=(), fixed={}, classifier=("", None, ""), layers="", tensors={})
"""A model that only runs as an ONNX graph, which contains its weights."""

_HIDDEN_SIZES = ("hidden_size", "dim", "d_model", "n_embd")
_POSITIONS = ("max_position_embeddings", "n_positions")
# Model types of transformers that count positions from the padding id on, as fairseq does.
_BEHIND_PADDING = {
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}


def counts_from_padding(model_type: object) -> bool:
    """Whether the first token's position is the padding id plus one (RoBERTa, MPNet), not 0."""
    return isinstance(model_type, str) and model_type in _BEHIND_PADDING


def auto_class(model_type: object) -> str:
    """The auto class of transformers that is the encoder alone."""
    return "AutoModelForTextEncoding" if model_type in ("t5", "mt5") else "AutoModel"


def graph_config(config: Mapping[str, Any], where: str) -> CoreConfig:
    """Sizes and positions of a model whose forward pass is an ONNX graph or torch.

    Args:
        config: the parsed ``config.json`` of any model type.
        where: the file's path, for messages.

    Raises:
        ValueError: a size is missing, of the wrong type or out of range.
    """

    def integer(keys: tuple[str, ...], least: int, most: int, default: int | None = None) -> int:
        key = next((key for key in keys if config.get(key) is not None), keys[0])
        value = config.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(
                f"{where}: {key} must be an integer from {least} to {most}, not {value!r:.80}. "
                "Fetch the file again."
            )
        return value

    result: CoreConfig = {
        "model_type": str(config.get("model_type")),
        "hidden_size": integer(_HIDDEN_SIZES, 1, _LIMIT),
        "vocab_size": integer(("vocab_size",), 1, _LIMITS["vocab_size"]),
        # Models with relative positions have no limit.
        "max_position_embeddings": integer(_POSITIONS, 1, _LIMIT, default=_LIMIT),
    }
    if counts_from_padding(config.get("model_type")):
        result["padding_idx"] = integer(("pad_token_id",), 0, _LIMIT, default=1)
    return result
