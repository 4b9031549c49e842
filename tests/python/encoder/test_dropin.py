"""A program written for sentence-transformers, with the class replaced: what works gives what it gives there."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit import Encoder

torch = pytest.importorskip("torch", reason="torch is not installed")
sentence_transformers = pytest.importorskip(
    "sentence_transformers", reason="sentence-transformers is not installed"
)

TEXTS = ["the weather is lovely today", "a naïve café", "now people made it"]


@pytest.fixture(scope="module")
def folder(make_model: Callable[..., Path]) -> Path:
    return make_model(prompts={"query": "query: "})


def test_a_prompt_of_none_is_the_folders_own(folder: Path) -> None:
    found = Encoder(folder, prompts={"query": None, "other": None}).prompts
    assert found == {"query": "query: ", "document": "", "other": ""}
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(
        str(folder), prompts={"query": None, "other": None}, device="cpu"
    )
    assert theirs.prompts["query"] == found["query"]


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return Encoder(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu")


def test_max_seq_length(encoder: Encoder, reference: Any) -> None:
    assert encoder.get_max_seq_length() == reference.get_max_seq_length()


def test_save_pretrained(encoder: Encoder, reference: Any, tmp_path: Path) -> None:
    encoder.save_pretrained(str(tmp_path / "saved"), model_name="x", create_model_card=False)
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), reference.encode(TEXTS), atol=1e-6)
    with pytest.raises(ValueError, match="safetensors"):
        encoder.save_pretrained(tmp_path / "other", safe_serialization=False)


def test_the_tokenizer_is_that_of_transformers(encoder: Encoder, reference: Any) -> None:
    ids = encoder.tokenizer(TEXTS)["input_ids"]
    assert ids == reference.tokenizer(TEXTS)["input_ids"] == encoder.tokenize(TEXTS)["input_ids"]
    assert encoder.tokenizer is encoder.tokenizer
    for twin in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert twin.tokenizer(TEXTS)["input_ids"] == ids


def test_the_tokenizer_cuts_where_the_model_does(make_model: Callable[..., Path]) -> None:
    encoder = Encoder(make_model(), max_length=9)
    long = ["the weather is lovely today " * 20]
    assert encoder.tokenizer(long, truncation=True)["input_ids"] == encoder.tokenize(long)["input_ids"]


def test_the_tokenizer_of_the_builtin_model() -> None:
    encoder = Encoder()
    assert encoder.tokenizer(TEXTS)["input_ids"] == encoder.tokenize(TEXTS)["input_ids"]


def test_the_tokenizer_of_a_transformer_in_its_own_folder(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(make_model(), tmp_path / "model")
    inner = folder / "0_Transformer"
    inner.mkdir()
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in {"modules.json", "config_sentence_transformers.json"}:
            path.rename(inner / path.name)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    modules[0] |= {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    encoder = Encoder(folder)
    assert encoder.tokenizer(TEXTS)["input_ids"] == encoder.tokenize(TEXTS)["input_ids"]


def test_tokenize_holds_what_the_reference_pads(encoder: Encoder, reference: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        features = reference.tokenize(TEXTS)
    padded = [
        row[mask == 1].tolist()
        for row, mask in zip(features["input_ids"], features["attention_mask"], strict=True)
    ]
    assert encoder.tokenize(TEXTS)["input_ids"] == padded


def test_devices(encoder: Encoder) -> None:
    assert encoder.to("cpu") is encoder.to(torch.device("cpu")) is encoder.to(device="cpu") is encoder.cpu()
    assert encoder.to() is encoder.eval()
    for move in (lambda: encoder.to("cuda"), lambda: encoder.to(torch.device("cuda:1")), encoder.cuda):
        with pytest.raises(ValueError, match=r"is on 'cpu'; open another one there with Encoder\(device="):
            move()
    for change in (lambda: encoder.to(torch.float16), lambda: encoder.to("cpu", torch.float16)):
        with pytest.raises(ValueError, match=r"Encoder\(model, precision="):
            change()


def test_a_pool(encoder: Encoder, reference: Any) -> None:
    pool = encoder.start_multi_process_pool(["cpu", "cpu"])
    try:
        several = encoder.encode_multi_process(
            TEXTS * 3, pool, batch_size=2, chunk_size=3, normalize_embeddings=True
        )
        same = encoder.encode(TEXTS * 3, pool=pool, chunk_size=4, normalize_embeddings=True)
    finally:
        encoder.stop_multi_process_pool(pool)
    np.testing.assert_array_equal(several, same)
    np.testing.assert_allclose(several, reference.encode(TEXTS * 3, normalize_embeddings=True), atol=1e-5)
    queries = encoder.encode_multi_process(TEXTS, pool, "query")
    np.testing.assert_array_equal(queries, encoder.encode_query(TEXTS))
    placed = (TEXTS, pool, None, None, 32, None, False, "binary", True, 8)
    expected = encoder.encode(TEXTS, precision="binary", normalize_embeddings=True, truncate_dim=8)
    np.testing.assert_array_equal(encoder.encode_multi_process(*placed), expected)
    with pytest.raises(ValueError, match="open another one there"):
        encoder.start_multi_process_pool(["cuda:0"])
    with pytest.raises(ValueError, match="is not supported"):
        encoder.encode(TEXTS, pool={"input": None})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["truncate_embeddings", "truncate_sentence_embeddings"])
def test_truncated_embeddings(encoder: Encoder, reference: Any, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with getattr(encoder, name)(truncate_dim=8), getattr(reference, name)(truncate_dim=8):
            found, expected = encoder.encode(TEXTS), reference.encode(TEXTS)
            assert encoder.get_embedding_dimension() == 8
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert encoder.truncate_dim is None and encoder.encode("x").shape == (32,)
    with pytest.raises(ValueError, match="truncate_dim=99 is larger"), getattr(encoder, name)(99):
        pass
    assert encoder.truncate_dim is None


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("half", "precision='bf16'"),
        ("preprocess", "tokenize"),
        ("forward", "encode"),
        ("fit", "embedkit-train"),
        ("parameters", "no torch modules"),
        ("push_to_hub", "upload_folder"),
        ("evaluate", r"evaluator\(encoder\)"),
        ("set_pooling_include_prompt", "config.json"),
        ("get_backend", "describe"),
    ],
)
def test_what_there_is_not_names_what_to_use(
    encoder: Encoder, reference: Any, name: str, instead: str
) -> None:
    assert hasattr(reference, name) and not hasattr(encoder, name)
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; .*{instead}") as error:
        getattr(encoder, name)
    assert "\n" not in str(error.value)
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        encoder.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_modules_by_number(encoder: Encoder, reference: Any) -> None:
    assert reference[0] is not None
    with pytest.raises(TypeError, match=r"no torch modules.*max_seq_length"):
        encoder[0]
    with pytest.raises(TypeError):
        iter(encoder).__next__()  # type: ignore[call-overload]


def test_arguments_come_at_the_same_places(encoder: Encoder, reference: Any) -> None:
    for name in (
        "encode_multi_process",
        "save_pretrained",
        "truncate_embeddings",
        "start_multi_process_pool",
    ):
        own = list(inspect.signature(getattr(encoder, name)).parameters)
        theirs = list(inspect.signature(getattr(reference, name)).parameters)
        shared = [one for one in own if one != "options"]
        assert theirs[: len(shared)] == shared


def test_deliberate_differences(encoder: Encoder, reference: Any) -> None:
    """Those of the list in docs/encode.md."""
    assert encoder.device == "cpu" and isinstance(reference.device, torch.device)
    assert reference.encode(TEXTS, truncate_dim=99).shape == (3, 32)
    with pytest.raises(ValueError, match="truncate_dim=99 is larger"):
        encoder.encode(TEXTS, truncate_dim=99)
