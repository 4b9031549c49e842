"""Folders of the families as the Hub has them: names of tensors, fields of config.json, classifiers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from changed_folder import changed
from test_architectures_vectors import TEXTS, expected
from tiny_families import KINDS, SPECIAL, WORDS, randomize, tiny, write_tokenizer

from embedkit import CrossEncoder, Encoder
from embedkit.export.onnx import export_onnx

SOME = ["", *TEXTS[2::3]]
# nomic-ai/nomic-embed-text-v1.5, without what sets sizes.
NOMIC = {
    "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0, "bos_token_id": None,
    "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None, "fused_bias_fc": True,
    "fused_dropout_add_ln": True, "initializer_range": 0.02, "layer_norm_epsilon": 1e-12,
    "max_position_embeddings": 2048,
    "max_trained_positions": 2048, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert",
    "pad_vocab_size_multiple": 64, "parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False,
    "qkv_proj_bias": False, "reorder_and_upcast_attn": False, "resid_pdrop": 0.0, "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
    "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
    "type_vocab_size": 2, "use_cache": True, "use_flash_attn": True, "use_rms_norm": False, "use_xentropy": True,
}  # fmt: skip
# Alibaba-NLP/gte-base-en-v1.5.
GTE = {
    "architectures": ["NewModel"], "attention_probs_dropout_prob": 0.0, "classifier_dropout": None,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm", "logn_attention_clip1": False, "logn_attention_scale": False,
    "model_type": "new", "pack_qkv": True, "pad_token_id": 0, "position_embedding_type": "rope",
    "rope_scaling": {"factor": 2.0, "type": "ntk"}, "rope_theta": 500, "unpad_inputs": False,
    "use_memory_efficient_attention": False,
}  # fmt: skip


def contents(folder: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.float32]]]:
    """The config and the weights by the names of transformers' class, packed or not."""
    load_file = pytest.importorskip("safetensors.numpy").load_file
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def write(folder: Path, config: dict[str, Any], weights: dict[str, npt.NDArray[np.float32]]) -> Path:
    folder.mkdir(parents=True)
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config))
    pytest.importorskip("safetensors.numpy").save_file(weights, folder / "model.safetensors")
    return folder


def renamed(weights: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The weights by other names; those of query, key and value, and of the halves of a gate, in one."""
    result: dict[str, list[Any]] = {}
    for part in ("", ".q_proj.", ".k_proj.", ".v_proj.", ".up_proj.", ".gate_proj."):
        for name, tensor in weights.items():
            if part == next(
                (p for p in (".q_proj.", ".k_proj.", ".v_proj.", ".up_proj.", ".gate_proj.") if p in name), ""
            ):
                for old, new in names.items():
                    name = name.replace(old, new)
                result.setdefault(name, []).append(tensor)
    return {name: np.concatenate(tensors) for name, tensors in result.items()}


def test_nomic_as_on_the_hub_architectures(tmp_path: Path) -> None:
    native = tiny(tmp_path / "native", "nomic")
    config, weights = contents(native)
    names = {
        "embeddings.LayerNorm": "emb_ln", "layers.": "encoder.layers.", "encoder.encoder.": "encoder.",
        "self_attn.q_proj": "attn.Wqkv", "self_attn.k_proj": "attn.Wqkv", "self_attn.v_proj": "attn.Wqkv",
        "self_attn.o_proj": "attn.out_proj", "mlp.up_proj": "mlp.fc11", "mlp.gate_proj": "mlp.fc12",
        "mlp.down_proj": "mlp.fc2", "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2",
    }  # fmt: skip
    sizes = {
        "n_embd": config["hidden_size"], "n_layer": 4, "n_head": 4, "n_inner": 72, "n_positions": 9000,
        "vocab_size": config["vocab_size"],
    }  # fmt: skip
    hub = write(tmp_path / "hub", {**NOMIC, **sizes}, renamed(weights, names))
    np.testing.assert_array_equal(Encoder(hub).encode(SOME), Encoder(native).encode(SOME))
    stretched = {"rotary_scaling_factor": 2, "max_trained_positions": 180}
    other = write(tmp_path / "ntk", {**NOMIC, **sizes, **stretched}, renamed(weights, names))
    dynamic = tiny(tmp_path / "dynamic", "nomic-ntk")
    opened = [Encoder(folder, max_length=702) for folder in (other, dynamic)]
    np.testing.assert_array_equal(*(encoder.encode(TEXTS) for encoder in opened))
    for key, value in (
        ("prenorm", True),
        ("rotary_emb_interleaved", True),
        ("activation_function", "gelu_x"),
        ("rope_parameters", {"rope_theta": 10000.0}),
        ("rotary_emb_base", 1e-50),
    ):
        (hub / "config.json").write_text(json.dumps({**NOMIC, **sizes, key: value}))
        with pytest.raises(ValueError, match="rope_theta" if key == "rope_parameters" else key):
            Encoder(hub)


def test_gte_as_on_the_hub_architectures(tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0**0.2}
    native = tiny(tmp_path / "native", "gte", rope_parameters=linear)
    config, weights = contents(native)
    names = {
        "layers.": "encoder.layer.", "encoder.layer.encoder.layer.": "encoder.layer.",
        "self_attn.q_proj": "attention.qkv_proj", "self_attn.k_proj": "attention.qkv_proj",
        "self_attn.v_proj": "attention.qkv_proj", "self_attn.o_proj": "attention.o_proj",
        "mlp.up_proj": "mlp.up_gate_proj", "mlp.gate_proj": "mlp.up_gate_proj",
        "post_attention_layernorm": "attn_ln", "post_mlp_layernorm": "mlp_ln",
    }  # fmt: skip
    keys = (
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
    )
    sizes = {key: config[key] for key in (*keys, "vocab_size", "type_vocab_size")}
    hub = write(tmp_path / "hub", {**GTE, **sizes}, renamed(weights, names))
    np.testing.assert_allclose(Encoder(hub).encode(SOME), Encoder(native).encode(SOME), atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "gone", "fields"),
    [
        (
            "modernbert",  # answerdotai/ModernBERT-base
            ("rope_parameters", "layer_types"),
            {
                "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
                "position_embedding_type": "absolute", "gradient_checkpointing": False, "layer_norm_eps": 1e-05,
            },
        ),
        (
            "qwen3",  # Qwen/Qwen3-Embedding-0.6B
            ("rope_parameters", "layer_types"),
            {"rope_scaling": None, "rope_theta": 10000.0, "sliding_window": None, "max_window_layers": 28},
        ),
        (
            "gemma",  # google/embeddinggemma-300m
            ("rope_parameters", "layer_types", "sliding_window_pattern"),
            {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "_sliding_window_pattern": 3},
        ),
    ],
)  # fmt: skip
def test_earlier_configs_of_architectures(
    kind: str, gone: tuple[str, ...], fields: dict[str, Any], tmp_path: Path
) -> None:
    folder = tiny(tmp_path / "now", kind)
    before = Path(shutil.copytree(folder, tmp_path / "before"))
    config = {key: value for key, value in contents(folder)[0].items() if key not in gone}
    (before / "config.json").write_text(json.dumps({**config, **fields}))
    np.testing.assert_array_equal(Encoder(before).encode(SOME), Encoder(folder).encode(SOME))
    kinds = ["full_attention"] * (int(config["num_hidden_layers"]) - 1)
    (before / "config.json").write_text(json.dumps({**contents(folder)[0], "layer_types": [[], *kinds]}))
    with pytest.raises(ValueError, match=r"unknown layer type \[\]"):
        Encoder(before)


def test_a_mistral_whose_layers_are_local_and_not(tmp_path: Path) -> None:
    """transformers computes such a file as Ministral's."""
    kinds = ["sliding_attention", "full_attention"] * 2
    folder = changed(tiny(tmp_path / "model", "mistral"), tmp_path, {"layer_types": kinds})
    vectors = Encoder(folder).encode(SOME, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, expected(folder, SOME), atol=2e-6)


@pytest.mark.parametrize("both", [False, True])
def test_the_window_of_a_modernbert_by_its_other_name(both: bool, tmp_path: Path) -> None:
    folder = changed(tiny(tmp_path / "model", "modernbert"), tmp_path, {"sliding_window": 4})
    if not both:
        config = contents(folder)[0]
        del config["local_attention"]
        (folder / "config.json").write_text(json.dumps(config))
    vectors = Encoder(folder).encode(SOME, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, expected(folder, SOME), atol=2e-6)


@pytest.mark.parametrize("kind", ["nomic-ntk", "llama"])
def test_stretched_positions_are_used_if_asked_for(kind: str, tmp_path: Path) -> None:
    """By default a text is cut at max_position_embeddings, as in sentence-transformers; max_length may be more."""
    stretched = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    folder = tiny(tmp_path / "model", kind, max_position_embeddings=100, rope_parameters=stretched)
    encoder = Encoder(folder)
    assert encoder.max_seq_length == 100
    encoder.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "sentence_bert_config.json").read_text())["max_seq_length"] == 100
    texts = [" ".join(WORDS * 20)]
    vectors = Encoder(folder, max_length=400).encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, expected(folder, texts), atol=2e-6)
    with pytest.raises(ValueError, match="to 400"):
        Encoder(folder, max_length=401)


def jina(weights: dict[str, Any], ids: list[int], heads: int) -> npt.NDArray[np.float64]:
    """Mean of JinaBERT's last hidden states in double precision (Günther et al. 2023; ALiBi to both sides, GEGLU)."""
    erf = np.vectorize(__import__("math").erf)
    w = {name: tensor.astype(np.float64) for name, tensor in weights.items()}

    def norm(x: Any, name: str) -> Any:
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-12)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    e = "embeddings."
    x = norm(w[f"{e}word_embeddings.weight"][ids] + w[f"{e}token_type_embeddings.weight"][0], f"{e}LayerNorm")
    n, width = x.shape[0], x.shape[1] // heads
    distance = np.abs(np.arange(n)[:, None] - np.arange(n)[None])
    assert heads == 6
    slopes = [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    for layer in ("encoder.layer.0.", "encoder.layer.1."):
        q, k, v = (linear(x, f"{layer}attention.self.{part}") for part in ("query", "key", "value"))
        parts = []
        for h in range(heads):
            at = slice(h * width, (h + 1) * width)
            scores = q[:, at] @ k[:, at].T / width**0.5 - slopes[h] * distance
            p = np.exp(scores - scores.max(1, keepdims=True))
            parts.append(p / p.sum(1, keepdims=True) @ v[:, at])
        x = norm(
            x + linear(np.hstack(parts), f"{layer}attention.output.dense"),
            f"{layer}attention.output.LayerNorm",
        )
        a, b = np.split(linear(x, f"{layer}mlp.gated_layers"), 2, axis=1)
        gated = a * (1 + erf(a / 2**0.5)) / 2 * b
        x = norm(x + linear(gated, f"{layer}mlp.wo"), f"{layer}mlp.layernorm")
    return np.asarray(x.mean(0))


def test_jina_v2_architectures(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    hidden, inner, vocabulary = 42, 37, len(SPECIAL) + len(WORDS)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (vocabulary, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
    }
    for layer in ("encoder.layer.0.", "encoder.layer.1."):
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{layer}attention.{part}.weight"] = (hidden, hidden)
        shapes[f"{layer}attention.output.LayerNorm.weight"] = (hidden,)
        shapes[f"{layer}mlp.gated_layers.weight"] = (2 * inner, hidden)
        shapes[f"{layer}mlp.wo.weight"] = (hidden, inner)
        shapes[f"{layer}mlp.layernorm.weight"] = (hidden,)
    weights = {}
    for name, shape in shapes.items():
        spread = 0.3 if len(shape) == 1 else 1.2 / shape[-1] ** 0.5
        weights[name] = random.normal(float("orm" in name), spread, shape).astype(np.float32)
        if (not name.startswith("embeddings.") and "gated" not in name) or "LayerNorm" in name:
            weights[name.replace(".weight", ".bias")] = random.normal(0, 0.3, shape[0]).astype(np.float32)
    config = {
        "architectures": ["JinaBertModel"], "attn_implementation": None, "emb_pooler": "mean",
        "feed_forward_type": "geglu", "hidden_act": "gelu", "hidden_size": hidden, "intermediate_size": inner,
        "layer_norm_eps": 1e-12, "max_position_embeddings": 8192, "model_max_length": 8192, "model_type": "bert",
        "num_attention_heads": 6, "num_hidden_layers": 2, "position_embedding_type": "alibi",
        "type_vocab_size": 2, "vocab_size": vocabulary,
    }  # fmt: skip
    folder = write(tmp_path / "jina", config, weights)
    encoder = Encoder(folder)
    vectors = encoder.encode(SOME)
    for text, vector in zip(SOME, vectors, strict=True):
        ids = [0, *(len(SPECIAL) + WORDS.index(word) for word in text.split()), 2]
        want = jina(weights, ids, 6)
        assert np.abs(vector - want).max() <= 2e-6 * np.abs(want).max() + 1e-6
    assert (Encoder(folder, precision="int8").encode(SOME) * vectors).sum() > 0
    code = {**weights, "encoder.layer.0.attention.self.layer_norm_q.weight": np.ones(hidden, np.float32)}
    with pytest.raises(ValueError, match="layer_norm_q"):
        Encoder(write(tmp_path / "code", config, code))
    for package in ("torch", "transformers", "onnx", "onnxruntime"):
        pytest.importorskip(package)
    with pytest.raises(ValueError, match="cannot be exported to ONNX: BertModel of transformers has no"):
        export_onnx(folder, tmp_path / "onnx")  # whose class is not transformers' own


@pytest.mark.parametrize(
    "kind",
    [
        *(
            "nomic",
            "modernbert",
            "modernbert-mean",
            "modernbert-relu",
            "modernbert-gelu_new",
            "modernbert-silu",
        ),
        *("gte", "camembert", "electra", "albert"),
    ],
)
def test_classifiers_of_architectures(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, _, own = kind.partition("-")
    cls, options = KINDS[kind]
    more = {"classifier_pooling": "mean" if own == "mean" else "cls"} if "modern" in kind else {}
    if own == "silu":
        more["hidden_activation"] = own  # the classifier's stays gelu
    elif own not in ("", "mean"):
        more["classifier_activation"] = own
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    config = getattr(transformers, cls)(
        vocab_size=len(SPECIAL) + len(WORDS), num_labels=3, **{**ids, **options, **more}
    )
    model = randomize(transformers.AutoModelForSequenceClassification.from_config(config))
    model.save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    pairs = [("the weather", "is lovely"), ("a", "b c"), (" ".join(WORDS * 2), "people stay out")]
    typed = "token_type_ids" in tokenizer(*pairs[0])
    with torch.no_grad():
        wanted = [model(**tokenizer(a, b, return_tensors="pt")).logits[0].numpy() for a, b in pairs] if typed else [
            model(input_ids=torch.tensor([tokenizer(a, b)["input_ids"]])).logits[0].numpy() for a, b in pairs
        ]  # fmt: skip
    scores = CrossEncoder(tmp_path / "model").predict(pairs)
    np.testing.assert_allclose(scores, np.stack(wanted), atol=2e-5, rtol=2e-5)
    if kind == "modernbert":
        (tmp_path / "changed").mkdir()
        with pytest.raises(ValueError, match="unknown classifier_activation 'mish'"):
            CrossEncoder(changed(tmp_path / "model", tmp_path / "changed", {"classifier_activation": "mish"}))
