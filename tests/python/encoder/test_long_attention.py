"""Attention over more keys than a sum of 32 bits can hold."""

from __future__ import annotations

import numpy as np

from embedkit import _core

_HIDDEN, _INNER, _VOCAB = 4, 16, 50
_KEYS = 1 << 17  # probabilities of 2^14 at most


def test_int8_attention_of_more_keys_than_fit_32_bits() -> None:
    """Queries of 0 attend to all tokens alike, so equal tokens far apart have almost equal vectors."""
    config = _core.EncoderConfig(
        hidden_size=_HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=_INNER,
        vocab_size=_VOCAB,
        max_position_embeddings=200_000,
        layer_norm_eps=1e-12,
        hidden_act="gelu",
        rotary_base=10_000.0,
        causal=True,
    )
    options = _core.EncodeOptions(
        threads=1, prefix_ids=[], suffix_ids=[], max_length=200_000, token_embeddings=True
    )
    encoder = _core.Encoder(config, _tensors(), ["mean"], [], "int8")
    length = _KEYS + 2 * _VOCAB
    (vectors,), _ = encoder.encode_ids([[at % _VOCAB for at in range(length)]], options)
    before = _KEYS - _VOCAB - _KEYS % _VOCAB
    np.testing.assert_allclose(vectors[before + 2 * _VOCAB], vectors[before], atol=1e-3)


def _tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    layer = "encoder.layer.0."
    found: dict[str, np.ndarray] = {}

    def linear(name: str, rows: int, columns: int, factor: float = 1.0) -> None:
        weights = factor * rng.normal(size=(rows, columns)).astype(np.float32)
        scale = np.abs(weights).max(1) / 127
        found[f"{name}.weight"] = np.rint(weights / np.maximum(scale, 1e-9)[:, None]).astype(np.int8)
        found[f"{name}.weight_scale"] = scale.astype(np.float32)
        found[f"{name}.bias"] = np.zeros(rows, np.float32)

    linear("embeddings.word_embeddings", _VOCAB, _HIDDEN)
    del found["embeddings.word_embeddings.bias"]
    linear(f"{layer}attention.self.query", _HIDDEN, _HIDDEN, 0.0)
    for name in ("attention.self.key", "attention.self.value", "attention.output.dense"):
        linear(f"{layer}{name}", _HIDDEN, _HIDDEN)
    linear(f"{layer}intermediate.dense", _INNER, _HIDDEN)
    linear(f"{layer}output.dense", _HIDDEN, _INNER)
    norms = ("embeddings.", f"{layer}attention.output.", f"{layer}output.")
    for prefix in norms:
        found[f"{prefix}LayerNorm.weight"] = np.ones(_HIDDEN, np.float32)
        found[f"{prefix}LayerNorm.bias"] = np.zeros(_HIDDEN, np.float32)
    return found
