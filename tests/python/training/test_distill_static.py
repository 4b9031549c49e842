"""distill-static: the table against transformers and numpy, and the folder in model2vec and sentence-transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from safetensors import SafetensorError

from embedkit import Encoder
from embedkit.model_folder.safetensors_file import SafetensorsFile

pytest.importorskip("sklearn")

from embedkit.training import StaticOptions, distill_static
from embedkit.training.cli import main


def reference(folder: Path, dimension: int, sif: float | None) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Gram matrix of the rows of all tokens but the special ones, by transformers and an SVD of numpy."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    kept = [i for i in range(len(tokenizer)) if i not in tokenizer.all_special_ids]
    ids = [[tokenizer.cls_token_id, i, tokenizer.sep_token_id] for i in kept]
    with torch.inference_mode():
        vectors = model(torch.tensor(ids)).last_hidden_state.mean(dim=1).numpy().astype(np.float64)
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    rows = centred @ directions[:dimension].T
    if sif is not None:
        inverse = 1 / np.arange(2, len(kept) + 2)
        rows *= (sif / (sif + inverse / inverse.sum()))[:, None]
    return rows @ rows.T, kept


@pytest.mark.parametrize(("dimension", "sif"), [(16, 1e-4), (16, None), (24, 0.5)])
def test_table_of_distill_static(dimension: int, sif: float | None, make_model: Any, tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    folder = make_model()
    output = distill_static(folder, tmp_path / "static", StaticOptions(dimension, sif))
    rows = load_file(output / "model.safetensors")["embeddings"].astype(np.float64)
    products, kept = reference(folder, dimension, sif)
    # Principal components have no sign: products of rows do not depend on it.
    np.testing.assert_allclose(rows[kept] @ rows[kept].T, products, atol=2e-4 * np.abs(products).max())
    assert not rows[[i for i in range(len(rows)) if i not in kept]].any()


@pytest.mark.parametrize("lowered_by", ["tokenizer", "settings", "sentence-transformers"])
def test_the_texts_are_lowered_as_the_models_are(make_model: Any, tmp_path: Path, lowered_by: str) -> None:
    """A static model reads tokenizer.json alone, and the settings beside it count for the model it is made of."""
    source = Path(shutil.copytree(make_model(), tmp_path / "model"))
    lowered = {name: lowered_by == name for name in ("tokenizer", "settings", "sentence-transformers")}
    changes: list[tuple[str, dict[str, Any]]] = [
        (
            "tokenizer_config.json",
            {"tokenizer_class": "BertTokenizer", "do_lower_case": not lowered["sentence-transformers"]},
        ),
        (
            "sentence_bert_config.json",
            {"max_seq_length": 64, "do_lower_case": lowered["sentence-transformers"]},
        ),
    ]
    for name, change in changes:
        path = source / name
        content = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps({**content, **change}))
    content = json.loads((source / "tokenizer.json").read_text())
    content["normalizer"]["lowercase"] = lowered["tokenizer"]
    (source / "tokenizer.json").write_text(json.dumps(content))
    static = Encoder(distill_static(source, tmp_path / "static", StaticOptions(8)))
    for encoder in (Encoder(source), static):
        upper, lower = encoder.encode(["The Weather IS Lovely", "the weather is lovely"])
        assert np.linalg.norm(lower) > 0.1
        np.testing.assert_array_equal(upper, lower)


def test_distilled_static_folder(make_model: Any, tmp_path: Path) -> None:
    texts = ["the weather is lovely", "people stay out today", ""]
    output = tmp_path / "static"
    command = [
        "distill-static",
        str(make_model()),
        "-o",
        str(output),
        "--dim",
        "16",
        "--dtype",
        "float16",
        "-q",
    ]
    assert main(command) == 0
    vectors = Encoder(output).encode(texts)
    assert vectors.shape == (3, 16)
    assert "model2vec" in json.loads((output / "config.json").read_text())["model_type"]
    model2vec = pytest.importorskip("model2vec")
    np.testing.assert_allclose(
        model2vec.StaticModel.from_pretrained(output).encode(texts), vectors, atol=2e-3
    )
    st = pytest.importorskip("sentence_transformers")
    model = st.SentenceTransformer(str(output), device="cpu").float()
    np.testing.assert_allclose(model.encode(texts)[:2], vectors[:2], atol=1e-5)
    assert main(command) == 2  # the folder exists


def test_a_full_disk_is_one_line(
    make_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    assert main(["distill-static", str(make_model()), "-o", str(tmp_path / "new"), "--dim", "8", "-q"]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("embedkit-train: [Errno 28] No space left on device: '")
    assert not (tmp_path / "new").exists()


def test_distill_static_refuses(make_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model()
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="at most as many dimensions"):
        patch.setattr(SafetensorsFile, "__getitem__", None)  # before a table of embeddings is read
        distill_static(folder, tmp_path / "a", StaticOptions(4096))
    with pytest.raises(ValueError, match="sif must be between 0 and 1"):
        StaticOptions(sif=2.0)
    with pytest.raises(ValueError, match=r"unused '\[' is no regular expression: unterminated character set"):
        StaticOptions(unused="[")  # before the vocabulary is encoded
    with pytest.raises(ValueError, match="leaves none"):
        distill_static(folder, tmp_path / "b", StaticOptions(8, unused=".*"))
    distill_static(folder, tmp_path / "c", StaticOptions(8))
    with pytest.raises(ValueError, match="static model already"):
        distill_static(tmp_path / "c", tmp_path / "d")
    graph = Path(shutil.copytree(folder, tmp_path / "graph", ignore=shutil.ignore_patterns("*.safetensors")))
    (graph / "model.onnx").touch()
    with pytest.raises(FileNotFoundError, match="give the folder it was exported from"):
        distill_static(graph, tmp_path / "e", StaticOptions(4096))  # before the dimension, which may fit none
