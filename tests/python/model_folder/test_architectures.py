"""Every architecture of the core on a tiny random model of transformers, on every instruction set."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changed_folder import changed

from embedkit import Encoder, _core

# Config class of transformers, and differences from the common shape.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "mpnet": ("MPNetConfig", {"max_position_embeddings": 202}),
    "roformer": ("RoFormerConfig", {"embedding_size": 40}),
    "roformer-projected": ("RoFormerConfig", {"embedding_size": 24, "rotary_value": True}),
    "roformer-odd": ("RoFormerConfig", {"embedding_size": 17, "hidden_size": 36, "num_attention_heads": 6}),
    "roberta": ("RobertaConfig", {"type_vocab_size": 1, "pad_token_id": 1, "max_position_embeddings": 202}),
    "xlm-roberta": (
        "XLMRobertaConfig",
        {"type_vocab_size": 1, "pad_token_id": 1, "max_position_embeddings": 202},
    ),
    "distilbert": (
        "DistilBertConfig",
        {"dim": 40, "n_layers": 2, "n_heads": 4, "hidden_dim": 72, "activation": "gelu"},
    ),
}
SHARED = {
    "hidden_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 72,
    "max_position_embeddings": 200,
}
WORDS = ["the", "weather", "is", "lovely", "today", "and", "people", "stay", "out", "now", "a", "b", "c"]
TEXTS = [
    "",
    "the",
    "the weather is lovely today",
    "people <pad> stay <pad> out",  # a padding token in a text takes no position
    *(" ".join((WORDS * 16)[:n]) for n in (14, 15, 16, 30, 31, 61, 126, 127, 190)),  # ends of buckets
]
SCRIPT = """
import json, sys
import numpy as np
from embedkit import Encoder, active_isa
folders, texts, out = json.loads(sys.argv[1])
assert active_isa() == sys.argv[2]
for name, folder in folders.items():
    for precision in ("fp32", "int8"):
        alone = Encoder(folder, precision=precision, threads=1)
        vectors = alone.encode(texts, normalize_embeddings=True)
        np.save(f"{out}/{name}-{precision}.npy", vectors)
        for threads in (1, 2, 3):
            encoder = Encoder(folder, precision=precision, threads=threads)
            each = [encoder.encode(text, normalize_embeddings=True) for text in texts]
            np.testing.assert_array_equal(np.stack(each), vectors)
            reverse = encoder.encode(texts[::-1], normalize_embeddings=True, batch_size=5)
            np.testing.assert_array_equal(reverse[::-1], vectors)
"""


def tiny(path: Path, kind: str) -> Path:
    """Write a random model of this kind to the new folder ``path``, as sentence-transformers does."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    models = pytest.importorskip("sentence_transformers.models")
    from sentence_transformers import SentenceTransformer
    from tokenizers.implementations import BertWordPieceTokenizer

    torch.manual_seed(len(kind))
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    vocabulary = [*special, *WORDS, *(f"##{letter}" for letter in "etl")]
    cls, changes = KINDS[kind]
    options = {**SHARED, **changes, "vocab_size": len(vocabulary)}
    model = transformers.AutoModel.from_config(getattr(transformers, cls)(**options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue  # RoFormer's sines and cosines
            spread = 0.3 if parameter.ndim == 1 else 2 / parameter.shape[-1] ** 0.5
            around = 1.0 if "norm.weight" in name.lower() else 0.0
            parameter.normal_(around, spread)
    wordpiece = BertWordPieceTokenizer(
        {word: i for i, word in enumerate(vocabulary)}, cls_token="<s>", sep_token="</s>", pad_token="<pad>",
        mask_token="<mask>",
    )  # fmt: skip
    names = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=wordpiece._tokenizer,
        model_max_length=512,
        **dict(zip(names, special, strict=True)),
    )
    model.save_pretrained(path / "raw")
    tokenizer.save_pretrained(path / "raw")
    transformer = models.Transformer(str(path / "raw"))
    pooling = models.Pooling(model.config.hidden_size, pooling_mode="mean")
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save_pretrained(
        str(path / "model"), create_model_card=False
    )
    return path / "model"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: tiny(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.mark.parametrize("isa", _core.available_isas())
def test_vectors(
    isa: str, folders: dict[str, Path], reference: Callable[[Path], Any], tmp_path: Path
) -> None:
    arguments = [{name: str(folder) for name, folder in folders.items()}, TEXTS, str(tmp_path)]
    command = [sys.executable, "-c", SCRIPT, json.dumps(arguments), isa]
    environment = {**os.environ, "EMBEDKIT_ISA": isa}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for name, folder in folders.items():
        expected = reference(folder).encode(TEXTS, normalize_embeddings=True)
        fp32 = np.load(tmp_path / f"{name}-fp32.npy")
        assert np.abs(fp32 - expected).max() <= 2e-6, name
        assert (fp32.astype(np.float64) * expected).sum(axis=1).min() >= 0.999999, name
        int8 = np.load(tmp_path / f"{name}-int8.npy")
        # Random weights are harder on eight bits than trained ones.
        assert (int8 * expected).sum(axis=1).mean() >= 0.99, name


@pytest.mark.parametrize("kind", KINDS)
def test_saved_folders(
    kind: str, folders: dict[str, Path], reference: Callable[[Path], Any], tmp_path: Path
) -> None:
    encoder = Encoder(folders[kind])
    vectors = encoder.encode(TEXTS)
    encoder.save(tmp_path / "fp32")
    encoder.save(tmp_path / "int8", precision="int8")
    whole, small = Encoder(tmp_path / "fp32"), Encoder(tmp_path / "int8")
    assert small.describe()["precision"] == "int8"
    assert encoder.fingerprint == whole.fingerprint == small.fingerprint
    np.testing.assert_array_equal(whole.encode(TEXTS), vectors)
    np.testing.assert_array_equal(small.encode(TEXTS), Encoder(folders[kind], precision="int8").encode(TEXTS))
    expected = reference(folders[kind]).encode(TEXTS)
    np.testing.assert_array_equal(reference(tmp_path / "fp32").encode(TEXTS), expected)


def test_checkpoints_with_the_prefix_of_a_task_head(folders: dict[str, Path], tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    save_file = pytest.importorskip("safetensors.numpy").save_file
    for kind in ("mpnet", "roformer", "distilbert"):
        folder = Path(shutil.copytree(folders[kind], tmp_path / kind))
        weights = load_file(folder / "model.safetensors")
        named = {f"{kind}.{name}": tensor for name, tensor in weights.items()}
        save_file(named, folder / "model.safetensors")
        np.testing.assert_array_equal(Encoder(folder).encode(TEXTS), Encoder(folders[kind]).encode(TEXTS))


@pytest.mark.parametrize("kind", ["mpnet", "roberta", "xlm-roberta"])
def test_positions_before_the_first_are_not_for_texts(kind: str, folders: dict[str, Path]) -> None:
    encoder = Encoder(folders[kind])
    assert encoder.max_seq_length == 200
    with pytest.raises(ValueError, match="200"):
        encoder.max_seq_length = 201


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (2, "padding_idx is 1 and leaves none of 2 positions"),
        (3, "max_position_embeddings in config.json is 3, 2 of them unused by texts"),
    ],
)
def test_too_few_positions(positions: int, message: str, folders: dict[str, Path], tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    save_file = pytest.importorskip("safetensors.numpy").save_file
    folder = Path(shutil.copytree(folders["mpnet"], tmp_path / "copy"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": positions}))
    weights = load_file(folder / "model.safetensors")
    name = "embeddings.position_embeddings.weight"
    save_file({**weights, name: weights[name][:positions].copy()}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        Encoder(folder)


def test_the_tokenizer_that_cuts_chinese_words_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["roformer"], tmp_path / "copy"))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    named = {**settings, "tokenizer_class": "RoFormerTokenizer"}
    unnamed = {name: value for name, value in settings.items() if name != "tokenizer_class"}
    for written in (named, unnamed):  # the class of this type of models
        path.write_text(json.dumps(written))
        with pytest.raises(ValueError, match="RoFormerTokenizer segments Chinese words with jieba"):
            Encoder(folder)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
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
def test_configs_that_cannot_run(
    kind: str, changes: dict[str, Any], message: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        Encoder(changed(folders[kind], tmp_path, changes))


def test_the_epsilon_of_distilbert_is_fixed(
    folders: dict[str, Path], reference: Callable[[Path], Any], tmp_path: Path
) -> None:
    """transformers does not read the key; a contradiction of two other keys is refused."""
    folder = changed(folders["distilbert"], tmp_path, {"layer_norm_eps": 0.1, "num_hidden_layers": 2})
    wanted = reference(folder).encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(Encoder(folder).encode(TEXTS, normalize_embeddings=True), wanted, atol=2e-6)


def test_a_missing_tensor_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    save_file = pytest.importorskip("safetensors.numpy").save_file
    for kind, name in (
        ("mpnet", "encoder.relative_attention_bias.weight"),
        ("roformer-projected", "embeddings_project.bias"),
        ("distilbert", "transformer.layer.1.ffn.lin1.weight"),
    ):
        folder = Path(shutil.copytree(folders[kind], tmp_path / kind))
        weights = load_file(folder / "model.safetensors")
        del weights[name]
        save_file(weights, folder / "model.safetensors")
        with pytest.raises(ValueError, match=f"tensor '{name}' is missing"):
            Encoder(folder)
