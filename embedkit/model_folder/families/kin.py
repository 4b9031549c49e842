"""BERT's kin: ELECTRA, ERNIE, ALBERT, JinaBERT v2."""

from __future__ import annotations

from dataclasses import replace

from ..architectures import (
    ARCHITECTURES,
    INTEGERS,
    LAYER_TENSORS,
    NO_DECODER,
    TOKEN_TYPES,
    Architecture,
    CoreConfig,
    layer_norm,
    linear,
)
from .fields import Config, flag, integer, refuse

__all__ = ["ALBERT", "ELECTRA", "ERNIE", "JINA"]

_ROFORMER = ARCHITECTURES["roformer"]
ELECTRA = replace(
    _ROFORMER,
    family="electra",
    prefix="electra.",
    fixed={"position_embedding_type": "absolute", **NO_DECODER},
    tensors={
        **_ROFORMER.tensors,
        "embeddings.position_embeddings.weight": (("max_position_embeddings", "embedding_size"), True),
    },
    classifier=("classifier.dense", "gelu", "classifier.out_proj"),
    constants={},
    flags=(),
)


def _read_ernie(raw: Config, config: CoreConfig, where: str) -> None:
    tasks = integer(raw, "task_type_vocab_size", where, 1, 3)
    config["task_type_vocab_size"] = tasks if flag(raw, "use_task_id", where, False) else 0


_BERT = ARCHITECTURES["bert"]
ERNIE = replace(
    _BERT,
    prefix="ernie.",
    tensors={
        **_BERT.tensors,
        "embeddings.task_type_embeddings.weight": (("task_type_vocab_size", "hidden_size"), False),
    },
    read=_read_ernie,
)

_ALBERT_GROUP = "encoder.albert_layer_groups.{}.albert_layers.0"
_ALBERT_NAMES = {
    "encoder.embedding_hidden_mapping_in.": "embeddings_project.",
    ".albert_layers.0.attention.LayerNorm.": ".attention.output.LayerNorm.",
    ".albert_layers.0.attention.dense.": ".attention.output.dense.",
    ".albert_layers.0.attention.": ".attention.self.",
    ".attention.self.output.": ".attention.output.",
    ".albert_layers.0.full_layer_layer_norm.": ".output.LayerNorm.",
    ".albert_layers.0.ffn_output.": ".output.dense.",
    ".albert_layers.0.ffn.": ".intermediate.dense.",
    "encoder.albert_layer_groups.": "encoder.layer.",
}


def _read_albert(raw: Config, config: CoreConfig, where: str) -> None:
    refuse(raw, where, {"inner_group_num": (1,), "position_embedding_type": ("absolute",)})
    layers, groups = int(config["num_hidden_layers"]), int(config["num_hidden_groups"])
    if layers % groups:
        raise ValueError(
            f"{where}: num_hidden_layers {layers} is not a multiple of num_hidden_groups {groups}"
        )
    if config["embedding_size"] == config["hidden_size"]:
        raise ValueError(
            f"{where}: embedding_size is hidden_size; embedkit runs ALBERT with smaller embeddings"
        )


ALBERT = Architecture(
    family="albert",
    prefix="albert.",
    integers=(*INTEGERS, "type_vocab_size", "embedding_size", "num_hidden_groups"),
    fixed={},
    layers="encoder.albert_layer_groups.",
    layer_count="num_hidden_groups",
    tensors={
        "embeddings.word_embeddings.weight": (("vocab_size", "embedding_size"), True),
        "embeddings.position_embeddings.weight": (("max_position_embeddings", "embedding_size"), True),
        "embeddings.token_type_embeddings.weight": (("type_vocab_size", "embedding_size"), False),
        **layer_norm("embeddings.LayerNorm", "embedding_size"),
        "encoder.embedding_hidden_mapping_in.weight": (("hidden_size", "embedding_size"), False),
        "encoder.embedding_hidden_mapping_in.bias": (("hidden_size",), False),
        **{
            key: value
            for name in ("query", "key", "value", "dense")
            for key, value in linear(
                f"{_ALBERT_GROUP}.attention.{name}", "hidden_size", "hidden_size"
            ).items()
        },
        **layer_norm(f"{_ALBERT_GROUP}.attention.LayerNorm"),
        **linear(f"{_ALBERT_GROUP}.ffn", "intermediate_size", "hidden_size"),
        **linear(f"{_ALBERT_GROUP}.ffn_output", "hidden_size", "intermediate_size"),
        **layer_norm(f"{_ALBERT_GROUP}.full_layer_layer_norm"),
    },
    classifier=("pooler", "tanh", "classifier"),
    names=_ALBERT_NAMES,
    activation="gelu_new",
    read=_read_albert,
)

_JINA_NAMES = {
    ".mlp.gated_layers.": ".intermediate.dense.",
    ".mlp.wo.": ".output.dense.",
    ".mlp.layernorm.": ".output.LayerNorm.",
}
_JINA_ACTIVATIONS = {"geglu": "gelu", "reglu": "relu"}
JINA = Architecture(
    family="jina_bert",
    prefix="bert.",
    integers=(*INTEGERS, "type_vocab_size"),
    fixed={"position_embedding_type": "alibi", **NO_DECODER},
    layers="encoder.layer.",
    tensors={
        "embeddings.word_embeddings.weight": (("vocab_size", "hidden_size"), True),
        **TOKEN_TYPES,
        **layer_norm("embeddings.LayerNorm"),
        **{
            name: entry
            for name, entry in LAYER_TENSORS.items()
            if ".attention." in name
        },
        **linear("encoder.layer.{}.mlp.gated_layers", "2*intermediate_size", "hidden_size", bias=False),
        **linear("encoder.layer.{}.mlp.wo", "hidden_size", "intermediate_size"),
        **layer_norm("encoder.layer.{}.mlp.layernorm"),
    },
    classifier=("pooler.dense", "tanh", "classifier"),
    constants={"gate": "first", "biases": False, "alibi": True},
    names=_JINA_NAMES,
    keys={"hidden_act": "feed_forward_type"},
    activations=_JINA_ACTIVATIONS,
)  # fmt: skip
