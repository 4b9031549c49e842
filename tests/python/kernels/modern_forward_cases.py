"""Cases of `modern_forward`, run by test_arithmetic.py in a separate process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packed_texts import LENGTHS, check_alone, check_pooled, expected, of_fixed_size, texts
from tiny_families import auto_class, randomize
from triton_harness import DEVICE, WHOLE

from embedkit.backends.packed_model import encoder_class
from embedkit.model_folder.folder import open_folder

SHAPE = {
    "vocab_size": 50, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 36,
    "max_position_embeddings": 400, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
DECODER = {**SHAPE, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 14}
T5 = {"vocab_size": 50, "d_model": 40, "num_layers": 2, "num_heads": 2, "d_ff": 36, "d_kv": 14}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}
GEMMA = {**DECODER, "query_pre_attn_scalar": 14, "num_key_value_heads": 1, "sliding_window_pattern": 2}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "nomic": ("NomicBertConfig", SHAPE),
    "nomic-ntk": ("NomicBertConfig", {**SHAPE, "max_position_embeddings": 66, "rope_parameters": DYNAMIC}),
    "modernbert": ("ModernBertConfig", {**SHAPE, "local_attention": 14, "num_hidden_layers": 3}),
    "gte": ("GteConfig", SHAPE),
    "gte-linear": (
        "GteConfig",
        {
            **SHAPE,
            "type_vocab_size": 0,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 1.5},
        },
    ),
    "qwen3": ("Qwen3Config", DECODER),
    "qwen2": ("Qwen2Config", DECODER),
    "mistral": ("MistralConfig", {**DECODER, "sliding_window": 9}),
    "gemma": ("Gemma3TextConfig", {**GEMMA, "use_bidirectional_attention": True, "sliding_window": 18}),
    "gemma-causal": ("Gemma3TextConfig", {**GEMMA, "sliding_window": 9}),
    "eurobert": ("EuroBertConfig", DECODER),
    "t5": ("T5Config", T5),
    "t5-gated": ("T5Config", {**T5, "d_kv": 13, "feed_forward_proj": "gated-gelu"}),
    "ernie": ("ErnieConfig", {**SHAPE, "use_task_id": True}),
    "electra": ("ElectraConfig", {**SHAPE, "embedding_size": 24}),
    "albert": ("AlbertConfig", {**SHAPE, "embedding_size": 24, "num_hidden_groups": 1}),
}


def tiny(path: Path, kind: str) -> tuple[Any, Any]:
    """The encoder of a random model of this kind, and the model."""
    name, options = KINDS[kind]
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    config = getattr(transformers, name)(**options)
    model = randomize(auto_class(config.model_type).from_config(config, attn_implementation="eager"))
    model.save_pretrained(path)
    return opened(path), model


def opened(path: Path, **options: Any) -> Any:
    folder = open_folder(path)
    return encoder_class(folder)(folder, device=DEVICE, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_against_transformers(kind: str, tmp_path: Path) -> None:
    encoder, model = tiny(tmp_path, kind)
    _, hidden = of_fixed_size(encoder, texts())
    wanted = expected(model, texts())
    torch.testing.assert_close(
        hidden[: sum(LENGTHS)].cpu(), wanted, rtol=0, atol=2e-5 * max(1.0, wanted.abs().max().item())
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("kind", ["modernbert", "qwen3", "gemma"] if WHOLE else ["gemma"])
def test_half_precision(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    _, model = tiny(tmp_path, kind)
    encoder = opened(tmp_path, dtype=dtype)
    # The interpreter cuts the bits that bfloat16 lacks; a GPU rounds to the nearest.
    check_pooled(encoder, model, texts(), 0.9995 if dtype == torch.float16 else 0.99)


def test_alone_and_no_texts(tmp_path: Path) -> None:
    encoder, _ = tiny(tmp_path, "modernbert")
    check_alone(encoder, texts(), 5e-5)


def test_products_in_8_bits_are_refused(tmp_path: Path) -> None:
    tiny(tmp_path, "qwen3")
    with pytest.raises(
        ValueError, match=r"qwen3 models have no int8 products on a GPU; use precision='bf16'"
    ):
        opened(tmp_path, products="int8")
    with pytest.raises(ValueError, match="dtype must be"):
        opened(tmp_path, dtype=torch.float64)
