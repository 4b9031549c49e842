"""All families but BERT's: tiny random models of transformers' own classes, on every instruction set."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from changed_folder import changed
from safetensors.numpy import load_file, save_file
from tiny_families import KINDS, LLAMA3, WORDS, auto_class, tiny

from embedkit import Encoder, _core

# Ends of vectors, of buckets, of windows and of the trained length.
LENGTHS = (1, 4, 5, 6, 7, 8, 14, 15, 16, 17, 30, 31, 62, 128, 177, 178, 179, 190, 700)
SLOW = ("reference", "amx_emulated")  # the longest text takes them half a minute
TEXTS = [
    "",
    "the <pad> weather <pad> is lovely",  # a padding token in a text takes no position in RoBERTa and MPNet
    *(" ".join((WORDS * (length // 13 + 1))[length % 7 :][:length]) for length in LENGTHS),
]
SCRIPT = """
import json, sys
import numpy as np
from embedkit import Encoder, active_isa
folders, texts, out = json.loads(sys.argv[1])
assert active_isa() == sys.argv[2]
for name, folder in folders.items():
    for precision in ("fp32", "bf16", "int8"):
        alone = Encoder(folder, precision=precision, threads=1, max_length=702)
        vectors = alone.encode(texts, normalize_embeddings=True)
        np.save(f"{out}/{name}-{precision}.npy", vectors)
        threads = 3 if name == "mpnet" else 2
        several = Encoder(folder, precision=precision, threads=threads, max_length=702)
        reverse = several.encode(texts[::-1], normalize_embeddings=True, batch_size=5)
        np.testing.assert_array_equal(reverse[::-1], vectors)
        each = [several.encode(text, normalize_embeddings=True) for text in texts[::4]]
        np.testing.assert_array_equal(np.stack(each), vectors[::4])
"""


def expected(folder: Path, texts: list[str]) -> npt.NDArray[np.float32]:
    """Mean of the last hidden states, normalized; each text alone."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    model = auto_class(kind).from_pretrained(folder, attn_implementation="eager").float().eval()
    # Not AutoTokenizer, which takes the class of the model type for Qwen2, whatever the folder has.
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    rows = []
    with torch.no_grad():
        for text in texts:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            mean = model(input_ids=ids).last_hidden_state[0].mean(0)
            rows.append(torch.nn.functional.normalize(mean, dim=0).numpy())
    return np.stack(rows)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: tiny(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(scope="module")
def references(folders: dict[str, Path]) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
    yield {kind: expected(folder, TEXTS) for kind, folder in folders.items()}


@pytest.mark.parametrize("isa", _core.available_isas())
def test_architectures_give_the_vectors_of_transformers(
    isa: str, folders: dict[str, Path], references: dict[str, Any], tmp_path: Path
) -> None:
    texts = TEXTS[:-1] if isa in SLOW else TEXTS
    arguments = [{name: str(folder) for name, folder in folders.items()}, texts, str(tmp_path)]
    command = [sys.executable, "-c", SCRIPT, json.dumps(arguments), isa]
    environment = {**os.environ, "EMBEDKIT_ISA": isa}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = {}
    for name, every in references.items():
        vectors = every[: len(texts)]
        fp32, bf16, int8 = (np.load(tmp_path / f"{name}-{p}.npy") for p in ("fp32", "bf16", "int8"))
        found[name] = (
            float(np.abs(fp32 - vectors).max()),
            float((bf16 * vectors).sum(axis=1).min()),
            float((int8 * vectors).sum(axis=1).min()),
        )
    wrong = {name: row for name, row in found.items() if row[0] > 2e-6 or row[1] < 0.999 or row[2] < 0.99}
    assert not wrong, found


@pytest.mark.parametrize("kind", KINDS)
def test_saved_folders_of_architectures(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    texts = TEXTS[:12]
    encoder = Encoder(folders[kind])
    vectors = encoder.encode(texts)
    encoder.save(tmp_path / "fp32")
    encoder.save(tmp_path / "int8", precision="int8")
    whole, small = Encoder(tmp_path / "fp32"), Encoder(tmp_path / "int8")
    assert small.describe()["precision"] == "int8"
    assert encoder.fingerprint == whole.fingerprint == small.fingerprint
    np.testing.assert_array_equal(whole.encode(texts), vectors)
    np.testing.assert_array_equal(small.encode(texts), Encoder(folders[kind], precision="int8").encode(texts))
    again = expected(tmp_path / "fp32", texts[:4])
    np.testing.assert_allclose(again, expected(folders[kind], texts[:4]), atol=1e-7)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "mistral"])
def test_a_decoder_that_names_no_activation_has_silu(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folders[kind], tmp_path / "copy"))
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("hidden_act") == "silu"
    (folder / "config.json").write_text(json.dumps(config))
    np.testing.assert_array_equal(Encoder(folder).encode(["a b"]), Encoder(folders[kind]).encode(["a b"]))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("nomic", {"num_experts": 8, "moe_every_n_layers": 2}, "has experts.*v2-moe"),
        ("nomic", {"moe_every_n_layers": "all"}, "has experts"),
        ("nomic", {"hidden_act": "mish"}, "unknown hidden_act 'mish'"),
        ("nomic", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "type 'yarn' is not supported"),
        (
            "gte",
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
        ("gte", {"logn_attention_scale": True}, "logn_attention_scale is True"),
        ("modernbert", {"mlp_bias": True}, "mlp_bias is True"),
        (
            "modernbert",
            {"layer_types": ["full_attention"] * 3 + ["chunked_attention"]},
            "'chunked_attention'",
        ),
        ("modernbert", {"layer_types": ["full_attention"]}, "must name 4 layers"),
        ("modernbert", {"hidden_activation": "relu2"}, "unknown hidden_activation 'relu2'"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window is True"),
        ("qwen3", {"attention_bias": True}, "attention_bias is True"),
        ("qwen3", {"num_key_value_heads": 4}, "num_key_value_heads"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window is True"),
        ("llama", {"mlp_bias": True}, "mlp_bias is True"),
        ("qwen3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("gemma", {"query_pre_attn_scalar": None}, "query_pre_attn_scalar is"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "original_max_position_embeddings must be",
        ),
        ("llama", {"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "must be the smaller"),
        (
            "llama",
            {"rope_scaling": {**LLAMA3, "high_freq_factor": None}},
            "high_freq_factor must be a positive number",
        ),
        (
            "llama",
            {"rope_scaling": {**LLAMA3, "rope_type": "linear"}},
            "has 'high_freq_factor' 4.0, which embedkit",
        ),
        ("mistral", {"sliding_window": 1}, "sliding_window must be an integer from 2"),
        ("gemma", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ("gemma", {"query_pre_attn_scalar": 256}, "query_pre_attn_scalar is 256"),
        *(
            (kind, {"is_causal": True}, "is_causal is True")
            for kind in ("gte", "modernbert", "albert", "electra")
        ),
        ("qwen3", {"is_causal": "no"}, "is_causal must be true or false, not 'no'"),
        ("qwen3", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "type 'yarn' is not supported"),
        ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling is"),
        ("albert", {"inner_group_num": 2}, "inner_group_num is 2"),
        ("electra", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("mpnet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets is 64.*only 32"),
        ("mpnet", {"relative_attention_num_buckets": None}, "relative_attention_num_buckets"),
        ("mpnet", {"max_position_embeddings": 2}, "position_embeddings.weight' has the shape"),
        ("roberta", {"pad_token_id": 0}, "pad_token_id is 0; embedkit supports only 1"),
        ("roberta", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("roformer", {"rotary_value": "yes"}, "rotary_value must be true or false"),
        ("roformer", {"embedding_size": 0}, "embedding_size must be an integer from 1"),
        ("roformer", {"embedding_size": 30}, "embeddings_project|has the shape"),
        ("roformer", {"is_decoder": True}, "is_decoder is True"),
        (
            "roformer",
            {"num_attention_heads": 8},
            r"config\.json: heads of 5 features cannot be rotated in pairs",
        ),
        ("roformer-projected", {"max_position_embeddings": 10**7}, "max_position_embeddings must be"),
        ("distilbert", {"n_heads": 3}, "dim 40 is not a multiple of n_heads 3"),
        ("distilbert", {"hidden_dim": "many"}, "hidden_dim must be an integer"),
        ("distilbert", {"activation": "swish"}, "unknown activation 'swish'"),
        (
            "distilbert",
            {"num_hidden_layers": 1},
            "num_hidden_layers is 1, and n_layers, another name of it, is 2",
        ),
        ("distilbert", {"num_attention_heads": 2}, "num_attention_heads is 2, and n_heads,.* is 4"),
        ("distilbert", {"hidden_size": None}, "hidden_size is None, and dim,.* is 40; remove the wrong one"),
    ],
)
def test_configs_of_architectures_that_cannot_run(
    kind: str, changes: dict[str, Any], message: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        Encoder(changed(folders[kind], tmp_path, changes))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen3", {"is_causal": False}),
        ("qwen2", {"is_causal": False}),
        (
            "qwen2",
            {"is_causal": False, "use_bidirectional_attention": True, "auto_map": {"AutoModel": "own.Model"}},
        ),
        ("mistral", {"is_causal": False}),
        ("mistral", {"sliding_window": None}),
        ("gemma", {"is_causal": False}),
        ("gemma-causal", {"is_causal": False}),
        ("modernbert", {"is_causal": False}),
        ("qwen3", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ],
)
def test_settings_of_architectures_that_old_configs_lack(
    kind: str, changes: dict[str, Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = changed(folders[kind], tmp_path, changes)
    texts = TEXTS[2:17]
    vectors = Encoder(folder).encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, expected(folder, texts), atol=2e-6)


def test_code_of_a_models_own_is_told(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = changed(folders["qwen2"], tmp_path, {"auto_map": {"AutoModel": "modeling.Mine"}})
    with pytest.warns(UserWarning, match=r"'modeling.Mine'.* for 'qwen2'.*set is_causal to false"):
        vectors = Encoder(folder).encode(["a b"])
    np.testing.assert_array_equal(vectors, Encoder(folders["qwen2"]).encode(["a b"]))


def test_architectures_refuse_a_layer_with_more_tensors(folders: dict[str, Path], tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    save_file = pytest.importorskip("safetensors.numpy").save_file
    folder = Path(shutil.copytree(folders["qwen3"], tmp_path / "copy"))
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "layers.1.self_attn.sinks": np.zeros(6, np.float32)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"layers\.1\.self_attn\.sinks.*qwen3"):
        Encoder(folder)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_local_attention_of_architectures_costs_its_window(precision: str, tmp_path: Path) -> None:
    layers = {"layer_types": ["sliding_attention"] * 2, "num_hidden_layers": 2, "num_attention_heads": 1}
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "local_attention": 128,
        "max_position_embeddings": 33000,
    }
    encoder = Encoder(
        tiny(tmp_path / "local", "modernbert", **layers, **sizes), precision=precision, threads=1
    )
    encoder.max_seq_length = 32_768
    seconds = []
    for words in (8_000, 32_000):
        text = " ".join((WORDS * (words // len(WORDS) + 1))[:words])
        encoder.encode(text)
        taken = []
        for _ in range(3):
            begin = time.process_time()
            encoder.encode(text)
            taken.append(time.process_time() - begin)
        seconds.append(min(taken))
    assert seconds[1] < 8 * seconds[0], seconds  # 4 times as long; all keys would cost 16 times


def test_models_that_are_refused_by_name(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'deberta' has the attention of DeBERTa's first version"):
        Encoder(changed(folders["deberta"], tmp_path / "deberta", {"model_type": "deberta"}))
    with pytest.raises(ValueError, match="'umt5' has a bias by distance in every layer"):
        Encoder(changed(folders["mt5"], tmp_path / "umt5", {"model_type": "umt5"}))


@pytest.mark.parametrize(
    "change,message",
    [
        ({"relative_attention_max_distance": 64}, "relative_attention_max_distance is 64.*only 128"),
        ({"relative_attention_num_buckets": 16}, "relative_attention_num_buckets is 16.*only 32"),
        ({"feed_forward_proj": "gelu"}, "unknown feed_forward_proj 'gelu'; expected one of relu$"),
        ({"feed_forward_proj": "gated-relu"}, "expected one of gated-gelu, gated-silu$"),
        ({"dense_act_fn": "silu"}, "dense_act_fn is 'silu'.*only 'relu'"),
        ({"d_kv": 0}, "d_kv must be an integer from 1"),
        ({"d_model": None}, "d_model must be an integer"),
        ({"feed_forward_proj": "gated-gelu"}, "dense_act_fn is 'relu'.*only 'gelu_new'"),
    ],
)
def test_fields_of_t5_that_change_the_result(
    change: dict[str, Any], message: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        Encoder(changed(folders["t5"], tmp_path / "model", change))


@pytest.mark.parametrize(
    "change,message",
    [
        ({"share_att_key": False}, "share_att_key is False.*only True"),
        ({"relative_attention": False}, "relative_attention is False"),
        ({"position_biased_input": True}, "position_biased_input is True"),
        ({"conv_kernel_size": 3}, "conv_kernel_size is 3"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd is 'none'"),
        ({"pos_att_type": "c2p"}, "pos_att_type is 'c2p'.*only 'p2c|c2p'"),
        ({"pos_att_type": 3}, "pos_att_type is 3"),
        ({"position_buckets": -1}, "position_buckets must be an integer from 2"),
        ({"max_relative_positions": -2}, "max_relative_positions must be an integer from -1"),
        ({"embedding_size": 20}, "embedding_size is 20"),
    ],
)
def test_fields_of_deberta_that_change_the_result(
    change: dict[str, Any], message: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        Encoder(changed(folders["deberta"], tmp_path / "model", change))


@pytest.mark.parametrize(
    "key", ["relative_attention", "share_att_key", "norm_rel_ebd", "position_biased_input", "pos_att_type"]
)
def test_what_transformers_takes_for_fields_of_deberta_that_are_missing(
    key: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = changed(folders["deberta"], tmp_path / "model", {})
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config[key]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"{key} is"):
        Encoder(folder)


def test_deberta_beyond_the_lengths_of_its_training(folders: dict[str, Path], tmp_path: Path) -> None:
    """By default a text is cut at max_position_embeddings, as in sentence-transformers; max_length may be more."""
    texts = [" ".join(WORDS * 90)]
    assert Encoder(folders["deberta"]).max_seq_length == 800
    vectors = Encoder(folders["deberta"], max_length=1200).encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, expected(folders["deberta"], texts), atol=2e-6)
    few = tiny(tmp_path / "few", "deberta", position_buckets=256, max_position_embeddings=64)  # all exact
    assert Encoder(few).max_seq_length == 64
    texts = [" ".join(WORDS * 5)[: 5 * n] for n in (3, 50)]
    vectors = Encoder(few).encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, expected(few, texts), atol=2e-6)


def test_deberta_with_the_older_names_of_norms(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = changed(folders["deberta"], tmp_path / "model", {})
    tensors = load_file(folder / "model.safetensors")
    older = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in tensors.items()}
    older = {name.replace("LayerNorm.bias", "LayerNorm.beta"): value for name, value in older.items()}
    save_file(older, folder / "model.safetensors")
    np.testing.assert_array_equal(Encoder(folder).encode(TEXTS), Encoder(folders["deberta"]).encode(TEXTS))


def test_t5_has_no_longest_text_of_512_tokens(folders: dict[str, Path]) -> None:
    encoder = Encoder(folders["t5"], max_length=2000)
    texts = [" ".join(WORDS * 140)]
    np.testing.assert_allclose(
        encoder.encode(texts, normalize_embeddings=True), expected(folders["t5"], texts), atol=2e-6
    )


def test_a_llama_that_attends_to_both_sides(folders: dict[str, Path], tmp_path: Path) -> None:
    """NVIDIA's type: EuroBERT's layers under Llama's names."""
    folder = changed(
        folders["eurobert"], tmp_path / "model", {"model_type": "llama_bidirec", "pooling": "avg"}
    )
    np.testing.assert_array_equal(Encoder(folder).encode(TEXTS), Encoder(folders["eurobert"]).encode(TEXTS))


@pytest.mark.parametrize("kind", ["nomic", "modernbert", "qwen3"])
def test_architectures_on_long_texts(kind: str, folders: dict[str, Path]) -> None:
    text = " ".join(WORDS * 700)
    texts = [text[: 4000 * 5], text]
    encoder = Encoder(folders[kind])
    encoder.max_seq_length = 8192
    short = Encoder(folders[kind])
    vectors = encoder.encode(texts[:1], normalize_embeddings=True)
    # Angles of thousands are rounded in steps of 2^-12 or so: transformers and the core a bit apart.
    np.testing.assert_allclose(vectors, expected(folders[kind], texts[:1]), atol=2e-5)
    assert short.encode(texts[1:], normalize_embeddings=True).shape == (1, vectors.shape[1])


def test_keys_with_a_large_bias_stay_fine_in_int8(tmp_path: Path) -> None:
    folder = tiny(
        tmp_path, "qwen2", hidden_size=128, head_dim=64, num_attention_heads=2, num_key_value_heads=1
    )
    tensors = {name: value.copy() for name, value in load_file(folder / "model.safetensors").items()}
    for name, value in tensors.items():  # as Qwen2's own: large in the features that positions turn slowly
        if name.endswith("k_proj.bias"):
            value[[28, 30, 61, 62]] += 200
            value[[29, 31, 60, 63]] -= 200
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    texts = [" ".join(WORDS * (length // len(WORDS) + 1))[: 5 * length] for length in (5, 12, 30, 60, 120)]
    fp32, int8 = (Encoder(folder, precision=name).encode(texts) for name in ("fp32", "int8"))
    assert (fp32 * int8).sum(axis=1).min() > 0.995
