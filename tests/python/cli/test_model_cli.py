"""``embedkit-model``: conversions in both directions, and the list of known models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file

from embedkit import Encoder, list_models
from embedkit.cli.model import main
from embedkit.model_folder.catalog import list_needs, multilingual
from embedkit.model_folder.folder import BUILTIN

Make = Callable[..., Path]
pytestmark = pytest.mark.filterwarnings("ignore:.*longer than max_length")


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_a_full_disk_is_one_line(
    make_model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    source = str(make_model())
    capsys.readouterr()
    monkeypatch.setattr("safetensors.numpy.save_file", full)
    assert main(["convert", source, str(tmp_path / "new"), "--precision", "int8"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("embedkit-model: [Errno 28] No space left on device: '") and told.count("\n") == 1
    assert "model.int8.safetensors" in told
    assert not (tmp_path / "new").exists()


def test_there_and_back(
    make_model: Make, tmp_path: Path, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    transformer = pytest.importorskip("sentence_transformers").SentenceTransformer
    source = make_model(dense=((16, "Tanh", True),), normalize=True, prompts={"query": "q: "})
    small, back, again = (str(tmp_path / name) for name in ("int8", "fp32", "int8-again"))
    assert main(["convert", str(source), small, "--precision", "int8"]) == 0
    assert main(["convert", small, back, "--precision", "fp32"]) == 0
    assert main(["convert", back, again, "--precision", "int8"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(": ", 1)[1].split(",")[0] for line in printed] == ["int8", "fp32", "int8"]

    # sentence-transformers computes the vectors of the dequantized weights.
    integers = load_file(Path(small) / "model.int8.safetensors")
    floats = load_file(Path(back) / "model.safetensors")
    for name, tensor in integers.items():
        if tensor.dtype == np.int8:
            np.testing.assert_allclose(
                floats[name], tensor.astype(np.float64) * integers[f"{name}_scale"][:, None], rtol=1e-6
            )
        elif not name.endswith("_scale"):
            np.testing.assert_array_equal(floats[name], tensor)
    encoder, theirs = Encoder(back), transformer(back, device="cpu")
    np.testing.assert_allclose(encoder.encode(texts), theirs.encode(texts), atol=2e-6)
    assert cosines(encoder.encode(texts), Encoder(small).encode(texts)).mean() >= 0.998
    assert encoder.prompts["query"] == theirs.prompts["query"] == "q: "

    # A different model than the source; the int8 folder counts as the source model.
    assert Encoder(small).fingerprint == Encoder(source).fingerprint != encoder.fingerprint
    assert encoder.verify() == Encoder(again).verify() == encoder.fingerprint
    repeated = load_file(Path(again) / "model.int8.safetensors")
    assert all(
        np.array_equal(tensor, integers[name]) for name, tensor in repeated.items() if tensor.dtype == np.int8
    )


def test_the_built_in_model_loads_in_sentence_transformers(tmp_path: Path) -> None:
    transformer = pytest.importorskip("sentence_transformers").SentenceTransformer
    folder = str(tmp_path / "minilm")
    assert main(["convert", str(BUILTIN), folder, "--precision", "fp32"]) == 0
    sentences = ["The sky is blue.", "How do I cook lentils?", "Mein Rechner startet nicht."]
    theirs = transformer(folder, device="cpu").encode(sentences)
    assert cosines(theirs, Encoder().encode(sentences)).min() >= 0.998


def test_errors_name_the_problem(
    make_model: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    source = str(make_model())
    assert main(["convert", source, str(tmp_path / "full"), "--precision", "int8"]) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "none"), str(tmp_path / "out"), "--precision", "int8"]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["convert", source, str(tmp_path / "out")]) == 2
    assert "--precision" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_home_folder_and_a_place_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["convert", str(BUILTIN), "~/small", "--precision", "int8"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{tmp_path / 'small'}: int8, ") and ", 0.0 MB" not in printed
    monkeypatch.chdir(tmp_path)
    for command in (["convert", "--precision", "int8"], ["export", "--format", "onnx"]):
        assert (
            main([command[0], "no model", "small", *command[1:]]) == 2
        )  # told before the model is looked for
        assert "small exists and is not empty" in capsys.readouterr().err
    assert main(["convert", str(BUILTIN), "~nobody1/x", "--precision", "int8"]) == 2
    assert "no such home folder" in capsys.readouterr().err


def test_a_cross_encoder_is_not_converted(
    make_model: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(make_model(), tmp_path / "classifier"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "architectures": ["BertForSequenceClassification"]})
    )
    out = str(tmp_path / "out")
    assert (
        main(["convert", str(folder), out, "--precision", "int8"]) == 0
    )  # with modules.json: a sentence encoder
    (folder / "modules.json").unlink()
    out = str(tmp_path / "other")
    for command in (["convert", "--precision", "int8"], ["export", "--format", "onnx"]):
        assert main([command[0], str(folder), out, *command[1:]]) == 2
        message = capsys.readouterr().err
        assert "holds a cross-encoder (BertForSequenceClassification)" in message
        assert 'open it with CrossEncoder(..., precision="int8")' in message
    assert not Path(out).exists()


def test_saving_int8_as_fp32_is_explicit(make_model: Make, tmp_path: Path) -> None:
    Encoder(make_model()).save(tmp_path / "int8", precision="int8")
    with pytest.raises(ValueError, match="save with dequantize=True"):
        Encoder(tmp_path / "int8").save(tmp_path / "out", precision="fp32")


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    needs, _, models = capsys.readouterr().out.partition("\n\n")
    assert len(needs.splitlines()) == 1 + len(list_needs())
    assert "Many languages" in needs and multilingual() in needs
    lines = models.splitlines()
    assert len(lines) == 1 + len(list_models())
    assert "embedkit-256-int8" in lines[1]
    assert json.dumps([needs, *lines]).isascii()
