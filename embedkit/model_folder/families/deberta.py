"""DeBERTa v2 and v3: attention to positions apart from contents (He et al. 2021)."""

from __future__ import annotations

from ..architectures import (
    INTEGERS,
    LAYER_TENSORS,
    TOKEN_TYPES,
    Architecture,
    CoreConfig,
    layer_norm,
    stored_names,
)
from .fields import Config, head_size, integer, refuse

__all__ = ["DEBERTA"]

_NAMES = {
    ".attention.self.query_proj.": ".attention.self.query.",
    ".attention.self.key_proj.": ".attention.self.key.",
    ".attention.self.value_proj.": ".attention.self.value.",
    "encoder.LayerNorm.": "encoder.rel_embeddings.LayerNorm.",
}
_DEFAULTS = {
    "relative_attention": False, "share_att_key": False, "norm_rel_ebd": "none", "position_biased_input": True,
}  # fmt: skip
"""What transformers takes for keys that are not there."""
_LONGEST = 8192
"""Tokens of a text: the memory for its scores grows with their square."""


def _read_deberta(raw: Config, config: CoreConfig, where: str) -> None:
    refuse(
        {**_DEFAULTS, **raw},
        where,
        {
            "relative_attention": (True,),
            "share_att_key": (True,),
            "norm_rel_ebd": ("layer_norm",),
            "position_biased_input": (False,),
            "conv_kernel_size": (0, None),
            "embedding_size": (config["hidden_size"], None),
            "attention_head_size": (head_size(config), None),
        },
    )
    kinds = raw.get("pos_att_type")
    names = kinds.split("|") if isinstance(kinds, str) else kinds
    if not isinstance(names, list) or sorted(map(str, names)) != ["c2p", "p2c"]:
        raise ValueError(
            f"{where}: pos_att_type is {kinds!r:.80}; embedkit supports only 'p2c|c2p' for this model"
        )
    config["type_vocab_size"] = integer(raw, "type_vocab_size", where, 0, 0)
    config["position_buckets"] = integer(raw, "position_buckets", where, 2)
    farthest = integer(raw, "max_relative_positions", where, -1, -1)
    config["max_relative_positions"] = farthest if farthest > 0 else config["max_position_embeddings"]
    # Without a table of positions a text may be longer, unless the buckets end before their logarithmic part.
    near = int(config["position_buckets"]) // 2 + 1
    config["max_position_embeddings"] = _LONGEST if int(config["max_relative_positions"]) > near else near


DEBERTA = Architecture(
    family="deberta-v2",
    prefix="deberta.",
    integers=INTEGERS,
    fixed={},
    layers="encoder.layer.",
    tensors={
        "embeddings.word_embeddings.weight": (("vocab_size", "hidden_size"), True),
        **TOKEN_TYPES,
        **layer_norm("embeddings.LayerNorm"),
        "encoder.rel_embeddings.weight": (("2*position_buckets", "hidden_size"), False),
        **layer_norm("encoder.LayerNorm"),
        **stored_names(LAYER_TENSORS, _NAMES),
    },
    classifier=("pooler.dense", "gelu", "classifier"),
    constants={"position_table": False, "score_terms": 3},
    names=_NAMES,
    epsilon=1e-7,
    read=_read_deberta,
)
