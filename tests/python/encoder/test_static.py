"""Static models: vectors against model2vec and sentence-transformers, every layout and type, saved and converted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from embedkit import Encoder
from embedkit.cli.model import main as model_command

WORDS = [
    "the",
    "weather",
    "is",
    "lovely",
    "today",
    "and",
    "people",
    "stay",
    "out",
    "now",
    "##s",
    "##ing",
    ".",
    "q",
]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
TEXTS = [
    "the weather is lovely today.",
    "people and people",
    "unknown words stay out",
    "zzz",
    "",
    "the the the stays staying now " * 40,
]
DIMENSION = 37
pytestmark = pytest.mark.filterwarnings("ignore:.* of the first 6 texts")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WordPiece tokenizer.json."""
    implementations = pytest.importorskip("tokenizers.implementations")
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    wordpiece = implementations.BertWordPieceTokenizer({word: i for i, word in enumerate(VOCABULARY)})
    wordpiece.save(str(path))
    return path


def write(
    folder: Path,
    tokenizer: Path,
    tensors: dict[str, npt.NDArray[Any]],
    *,
    config: dict[str, Any] | None = None,
) -> Path:
    """A folder of a static model: Model2Vec's with a ``config``, else that of sentence-transformers."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    folder.mkdir()
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    save_file(tensors, folder / "model.safetensors")
    modules = ["StaticEmbedding"]
    if config is None:
        (folder / "config_sentence_transformers.json").write_text("{}")
    else:
        modules += ["Normalize"] * bool(config.get("normalize"))
        config = {"model_type": "model2vec", "architectures": ["StaticModel"], **config}
        (folder / "config.json").write_text(json.dumps(config))
    entries = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{name}" if i else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


def table(rows: int = len(VOCABULARY)) -> npt.NDArray[np.float32]:
    return np.random.default_rng(rows).standard_normal((rows, DIMENSION)).astype(np.float32)


def cases() -> dict[str, dict[str, Any]]:
    """Tensors and configs of Model2Vec's folders, by kind."""
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.1, 1, len(VOCABULARY))
    mapping = rng.integers(0, 7, len(VOCABULARY))
    integers = np.rint(table() * 30).astype(np.int8)
    return {
        "plain": {"tensors": {"embeddings": table()}, "config": {"normalize": False}},
        "normalized": {"tensors": {"embeddings": table()}, "config": {"normalize": True, "max_length": None}},
        "short": {"tensors": {"embeddings": table()}, "config": {"normalize": True, "max_length": 20}},
        "int8": {
            "tensors": {"embeddings": integers},
            "config": {"normalize": False, "embedding_dtype": "int8"},
        },
        "weights": {"tensors": {"embeddings": table(), "weights": weights}, "config": {"normalize": True}},
        "mapping": {
            "tensors": {"embeddings": table(7), "mapping": mapping, "weights": weights.astype(np.float32)},
            "config": {"normalize": True, "vocabulary_quantization": 7},
        },
    }


@pytest.mark.parametrize("kind", list(cases()))
def test_static_model2vec(kind: str, tokenizer: Path, tmp_path: Path) -> None:
    model2vec = pytest.importorskip("model2vec")
    folder = write(tmp_path / kind, tokenizer, **cases()[kind])
    expected = model2vec.StaticModel.from_pretrained(folder).encode(TEXTS)
    encoder = Encoder(folder, threads=1)
    vectors = encoder.encode(TEXTS)
    assert encoder.describe()["truncated"] == (kind == "short")
    np.testing.assert_allclose(vectors, expected, atol=2e-6 * max(1, np.abs(expected).max()))
    assert not vectors[TEXTS.index("zzz")].any()  # nothing but an unknown token
    assert np.array_equal(Encoder(folder, threads=2).encode(TEXTS[::-1], batch_size=1)[::-1], vectors)
    assert np.array_equal(np.stack([encoder.encode(text) for text in TEXTS]), vectors)
    for precision in ("fp32", "int8"):
        saved = tmp_path / f"saved-{precision}"
        encoder.save(saved, precision)
        again = Encoder(saved)
        assert again.verify() == encoder.fingerprint
        if precision == "fp32":
            np.testing.assert_array_equal(again.encode(TEXTS), vectors)
            written = model2vec.StaticModel.from_pretrained(saved).encode(TEXTS)
            np.testing.assert_allclose(written, expected, atol=2e-6)  # factors of 64 bits became floats
        else:
            assert np.array_equal(again.encode(TEXTS), Encoder(folder, precision="int8").encode(TEXTS))
            np.testing.assert_allclose(again.encode(TEXTS), vectors, atol=0.02 * np.abs(vectors).max())


@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16"])
def test_static_sentence_transformers(kind: str, tokenizer: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    st = pytest.importorskip("sentence_transformers")
    folder = write(tmp_path / "model", tokenizer, {"embedding.weight": table()})
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[kind]
    values = torch.from_numpy(table()).to(dtype)
    pytest.importorskip("safetensors.torch").save_file(
        {"embedding.weight": values}, folder / "model.safetensors"
    )
    reference = st.SentenceTransformer(str(folder), device="cpu").to(torch.float32)
    encoder = Encoder(folder)
    np.testing.assert_allclose(encoder.encode(TEXTS), reference.encode(TEXTS), atol=2e-6)
    assert encoder.encode("zzz").any()  # the row of the unknown token
    short = encoder.encode(TEXTS, prompt="the ", truncate_dim=16, normalize_embeddings=True)
    wanted = reference.encode(TEXTS, prompt="the ", truncate_dim=16, normalize_embeddings=True)
    np.testing.assert_allclose(short, wanted, atol=1e-6)
    encoder.save(tmp_path / "saved")
    written = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu").to(torch.float32)
    np.testing.assert_allclose(written.encode(TEXTS), encoder.encode(TEXTS), atol=2e-6)
    assert Encoder(tmp_path / "saved").verify() == encoder.fingerprint


def test_static_old_model2vec_without_modules(tokenizer: Path, tmp_path: Path) -> None:
    case = cases()["normalized"]
    folder = write(tmp_path / "model", tokenizer, **case)
    vectors = Encoder(folder).encode(TEXTS)
    (folder / "modules.json").unlink()
    assert np.array_equal(Encoder(folder).encode(TEXTS), vectors)
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    assert np.linalg.norm(Encoder(folder).encode(TEXTS[0])) != pytest.approx(1)


@pytest.mark.filterwarnings("ignore:the first of the texts is in a script")
def test_static_windows_have_the_mean_of_the_whole(tokenizer: Path, tmp_path: Path) -> None:
    """Model2Vec leaves unknown tokens out of the mean: a window weighs as many tokens as it has others."""
    folder = write(tmp_path / "m", tokenizer, **cases()["plain"])
    text = "the the" + " zzz" * 6 + " weather is lovely stays staying now" + " zzz" * 30 + " people"
    windows = Encoder(folder, max_length=8, on_overflow="window").encode(text)
    np.testing.assert_allclose(windows, Encoder(folder).encode(text), atol=1e-6)


def test_static_convert_and_back(tokenizer: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", tokenizer, {"embedding.weight": table()})
    assert model_command(["convert", str(folder), str(tmp_path / "int8"), "--precision", "int8"]) == 0
    assert (
        model_command(["convert", str(tmp_path / "int8"), str(tmp_path / "fp32"), "--precision", "fp32"]) == 0
    )
    small, wide = Encoder(tmp_path / "int8"), Encoder(tmp_path / "fp32")
    assert small.describe()["precision"] == "int8"
    np.testing.assert_allclose(small.encode(TEXTS), wide.encode(TEXTS), atol=1e-6)


def test_static_models_have_no_onnx(tokenizer: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = write(tmp_path / "model", tokenizer, {"embedding.weight": table()})
    with pytest.raises(ValueError, match="starts with a StaticEmbedding"):
        Encoder(folder, backend="onnx")


def test_static_describe_and_refusals(tokenizer: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", tokenizer, {"embedding.weight": table()})
    encoder = Encoder(folder)
    assert encoder.describe()["dimension"] == DIMENSION
    assert encoder.tokenize(["the zzz"]) == {"input_ids": [[4, 1]]}
    with pytest.raises(ValueError, match="static model has no token embeddings"):
        encoder.encode(TEXTS, output_value="token_embeddings")
    short = Encoder(folder, max_length=2, on_overflow="error")
    with pytest.raises(ValueError, match="more than max_length 2"):
        short.encode(TEXTS)
    for text in [*TEXTS, "zzz zzz", "the zzz the"]:
        tokens, most = short._document_tokens(text)
        if tokens <= most:
            short.encode_document([text])
        else:
            with pytest.raises(ValueError, match=f"has {tokens} tokens, more than max_length {most}"):
                short.encode_document([text])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"vectors": table()}, "holds neither 'embedding.weight' nor 'embeddings'"),
        ({"embeddings": table()[:5]}, "the tokenizer has 18 tokens, vocab_size"),
        ({"embeddings": table().astype(np.float64)}, "is F64"),
        ({"embeddings": table()[0]}, "expected \\(tokens, dimension\\)"),
        ({"embeddings": table() * np.float32(np.inf)}, "not finite"),
        (
            {
                "embeddings": table().astype(np.int8),
                "embeddings_scale": np.full(18, np.nan, np.float32),
            },
            "'embeddings_scale' holds values that are not finite",
        ),
        ({"embeddings": table(5), "mapping": np.full(18, 5)}, "integers from 0 to 4"),
        ({"embeddings": table(), "weights": np.ones(3)}, "'weights' has 3 entries for 18 tokens"),
    ],
)
def test_static_files_that_are_refused(
    tensors: dict[str, Any], message: str, tokenizer: Path, tmp_path: Path
) -> None:
    folder = write(tmp_path / "model", tokenizer, tensors, config={})
    with pytest.raises(ValueError, match=message):
        Encoder(folder)
