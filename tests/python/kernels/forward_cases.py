"""Cases of `forward`, run by test_arithmetic.py in a separate process."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from embedkit.kernels.forward import PackedEncoder
from embedkit.kernels.modern_forward import ModernEncoder
from embedkit.kernels.pool_project_normalize import pool_project_normalize
from packed_texts import LENGTHS, check_alone, check_pooled, expected, of_fixed_size
from packed_texts import texts as random_texts
from safetensors.numpy import load_file, save_file
from tiny_families import tiny as tiny_family
from torch.nn.functional import cosine_similarity
from triton_harness import DEVICE, WHOLE, round_to_fp8

from embedkit.model_folder.folder import open_folder

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {"hidden_act": "gelu_new"}),
    "mpnet": ("MPNetConfig", {}),
    "roberta-relu": ("RobertaConfig", {"hidden_act": "relu", "pad_token_id": 1}),
    "roformer": ("RoFormerConfig", {"embedding_size": 40}),
    "roformer-projected": ("RoFormerConfig", {"embedding_size": 24, "rotary_value": True}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {kind: tiny(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


def tiny(path: Path, kind: str) -> tuple[Path, Any]:
    """A random model of this kind, and the folder that it is written to."""
    torch.manual_seed(len(kind))
    name, options = KINDS[kind]
    config = getattr(transformers, name)(
        **{
            "vocab_size": 50, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 72, "max_position_embeddings": 128, "pad_token_id": 0, **options,
        }
    )  # fmt: skip
    model = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "embed_positions" in parameter_name:
                continue  # RoFormer's sines: no weight, but a parameter
            spread = 0.3 if parameter.ndim == 1 else 2 / parameter.shape[-1] ** 0.5
            parameter.normal_(1.0 if "LayerNorm.weight" in parameter_name else 0.0, spread)
    model.save_pretrained(path)
    return path, model


def texts() -> list[Any]:
    rows = random_texts()
    rows[3][4] = 1  # takes no position in RoBERTa and MPNet
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_against_transformers(kind: str, models: dict[str, Any]) -> None:
    path, model = models[kind]
    encoder = PackedEncoder(open_folder(path), device=DEVICE)
    rows = texts()
    batch, hidden = of_fixed_size(encoder, rows)
    torch.testing.assert_close(hidden[: sum(LENGTHS)].cpu(), expected(model, rows), rtol=0, atol=2e-5)
    vectors = pool_project_normalize(hidden, batch.cu_seqlens, normalize=True)
    assert vectors.shape == (10, 40)
    assert not vectors[[1, 6, 7, 8, 9]].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("kind", ["mpnet", "roformer-projected"] if WHOLE else ["roformer-projected"])
def test_half_precision(kind: str, dtype: torch.dtype, models: dict[str, Any]) -> None:
    path, model = models[kind]
    encoder = PackedEncoder(open_folder(path), dtype=dtype, device=DEVICE)
    # The interpreter cuts the bits that bfloat16 lacks; a GPU rounds to the nearest.
    check_pooled(encoder, model, texts(), 0.9999 if dtype == torch.float16 else 0.998)


def test_a_text_alone_and_no_texts(models: dict[str, Any]) -> None:
    path, _ = models["bert"]
    check_alone(PackedEncoder(open_folder(path), device=DEVICE), texts(), 2e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": [[50]]}, "the vocabulary has 0 to 49"),
        ({"texts": [[-1]]}, "token ids from -1"),
        ({"texts": [[1] * 129]}, "longer than the model's 128 positions"),
        ({"texts": [[1, 2]], "tokens": 1}, "1 texts of 2 tokens do not fit 1 sequences of 1 tokens"),
        ({"texts": [[1], [2]], "sequences": 1}, "do not fit"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, Any], message: str, models: dict[str, Any]) -> None:
    encoder = PackedEncoder(open_folder(models["bert"][0]), device=DEVICE)
    with pytest.raises(ValueError, match=message):
        encoder.pack(**arguments)


@pytest.mark.parametrize(
    ("encoder", "kind", "message"),
    [
        (PackedEncoder, "modernbert", "modernbert models have another .*modern_forward.ModernEncoder"),
        (PackedEncoder, "t5", "t5 models have another forward pass"),
        (PackedEncoder, "deberta", "deberta-v2 models run on the CPU"),
        (ModernEncoder, "deberta", "deberta-v2 models run on the CPU"),
    ],
)
def test_other_families_are_refused(encoder: Any, kind: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        encoder(open_folder(tiny_family(tmp_path, kind)), device=DEVICE)


def test_types(models: dict[str, Any]) -> None:
    folder = open_folder(models["bert"][0])
    with pytest.raises(ValueError, match="dtype must be"):
        PackedEncoder(folder, dtype=torch.float64, device=DEVICE)


def test_an_int8_folder_is_multiplied_out(models: dict[str, Any], tmp_path: Path) -> None:
    """Against transformers with the same weights."""
    path, model = models["bert"]
    shutil.copy(path / "config.json", tmp_path)
    hashes = dict.fromkeys(("fingerprint", "source_weights", "stored_weights"), "0" * 64)
    (tmp_path / "embedkit.json").write_text(json.dumps({"format": 1, "precision": "int8", **hashes}))
    stored, weights = {}, {}
    specs = open_folder(tmp_path).architecture.tensor_specs(open_folder(tmp_path).config)
    for name, array in load_file(path / "model.safetensors").items():
        if name in specs and specs[name].quantized:
            scale = np.abs(array).max(axis=1) / np.float32(127)
            stored[name] = np.rint(array / scale[:, None]).astype(np.int8)
            stored[f"{name}_scale"] = scale
            weights[name] = torch.tensor(stored[name] * scale[:, None])
        else:
            stored[name] = array
    save_file(stored, tmp_path / "model.int8.safetensors")
    quantized = copy.deepcopy(model)
    assert not quantized.load_state_dict(weights, strict=False).unexpected_keys
    encoder = PackedEncoder(open_folder(tmp_path), device=DEVICE)
    hidden = encoder(encoder.pack(texts()))
    torch.testing.assert_close(hidden.cpu(), expected(quantized, texts()), rtol=0, atol=2e-5)


# Odd sizes throughout, so that no group of 128 columns is whole.
@pytest.mark.parametrize("products", ["int8", "fp8"])
@pytest.mark.parametrize(
    "kind", ["bert", "mpnet", "roformer-projected"] if WHOLE else ["bert", "roformer-projected"]
)
def test_products_in_8_bits(
    kind: str, products: Any, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    round_to_fp8(monkeypatch)
    if DEVICE == "cuda" and torch.cuda.get_device_capability() < (8, 9) and products == "fp8":
        pytest.skip("fp8 needs compute capability 8.9")
    path, model = models[kind]
    encoder = PackedEncoder(open_folder(path), products=products, device=DEVICE)
    _, hidden = of_fixed_size(encoder, texts())
    wanted = expected(model, texts()).to(DEVICE)
    cosine = cosine_similarity(hidden[: len(wanted)], wanted)
    # Random weights are harder on 8 bits than trained ones.
    assert cosine.mean() > (0.995 if products == "int8" else 0.98)
