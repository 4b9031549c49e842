"""embedkit's own ONNX export, against transformers and the core."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_families import tiny

from embedkit import Encoder
from embedkit.backends.onnx_files import file_hash
from embedkit.cli import model as model_cli
from embedkit.export import onnx as export
from embedkit.export.onnx import export_onnx

for package in ("torch", "transformers", "onnx", "onnxruntime"):
    pytest.importorskip(package)

MODES = ("weightedmean", "cls", "max", "mean", "mean_sqrt_len_tokens", "lasttoken")
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "mpnet": ("MPNetConfig", {"max_position_embeddings": 202}),
    "roformer": ("RoFormerConfig", {"embedding_size": 17, "rotary_value": True}),
    "xlm-roberta": ("XLMRobertaConfig", {"type_vocab_size": 1, "max_position_embeddings": 202}),
    "distilbert": ("DistilBertConfig", {"dim": 36, "n_layers": 2, "n_heads": 6, "hidden_dim": 50}),
}
LENGTHS = (0, 1, 6, 40, 130, 300)


@pytest.fixture(scope="module")
def all_in_one(
    make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A model with every pooling, excluded prompts, Dense and Normalize; and its export."""
    source = make_model(
        hidden=36, heads=3, intermediate=50, pooling=MODES, include_prompt=False, prompts={"query": "query : "},
        dense=((24, "GELU", True), (10, "Sigmoid", False)), normalize=True, truncate_dim=9,
    )  # fmt: skip
    target = tmp_path_factory.mktemp("exported") / "model"
    fidelity = export_onnx(source, target)
    assert fidelity.least >= 0.999999 and fidelity.texts > 10
    with pytest.raises(ValueError, match="runs a graph already; open its folder without backend='onnx'"):
        export_onnx(Encoder(target, backend="onnx"), target.with_name("again"))
    return source, target


def other_kind(path: Path, kind: str, tokenizer_of: Path) -> Path:
    """A random model of another architecture with the tokenizer of a BERT."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_of)
    name, changes = KINDS[kind]
    options: dict[str, Any] = {
        "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 50,
        "max_position_embeddings": 200, "vocab_size": len(tokenizer), "pad_token_id": 1,
    }  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(getattr(transformers, name)(**{**options, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.ndim > 1:
                parameter.normal_(0, 2 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_architectures(
    kind: str, tmp_path: Path, make_model: Callable[..., Path], reference: Callable[[Path], Any]
) -> None:
    source = other_kind(tmp_path / kind, kind, make_model())
    fidelity = export_onnx(source, tmp_path / "out")
    assert fidelity.least >= 0.999999
    texts = [" ".join(["the weather is lovely today ."] * 60)[: 5 * n] for n in LENGTHS]
    with Encoder(tmp_path / "out", backend="onnx", max_length=190) as encoder:
        vectors = encoder.encode(texts, normalize_embeddings=True)
    expected = Encoder(source, max_length=190).encode(texts, normalize_embeddings=True)
    assert np.abs(vectors - expected).max() <= 5e-6
    model = reference(source)
    model.max_seq_length = 190
    assert np.abs(vectors - model.encode(texts, normalize_embeddings=True)).max() <= 5e-6


@pytest.mark.parametrize(
    "kind",
    [
        "nomic",
        "nomic-odd",
        "gte",
        "gemma",
        "modernbert",
        "qwen3",
        "qwen2",
        "mistral",
        "t5",
        "deberta",
        "ernie-tasks",
    ],
)
def test_families_whose_tensors_transformers_names_otherwise(kind: str, tmp_path: Path) -> None:
    source = tiny(tmp_path / kind, kind)
    assert export_onnx(source, tmp_path / "out").least >= 0.999999
    texts = ["the weather is lovely today", "a"] * 3
    with Encoder(tmp_path / "out", backend="onnx") as encoder:
        vectors = encoder.encode(texts, normalize_embeddings=True)
    expected = Encoder(source).encode(texts, normalize_embeddings=True)
    assert np.abs(vectors - expected).max() <= 5e-6


def test_every_module(
    all_in_one: tuple[Path, Path], reference: Callable[[Path], Any], texts: list[str]
) -> None:
    source, target = all_in_one
    encoder = Encoder(target, backend="onnx", threads=1)
    assert encoder.get_embedding_dimension() == 9  # the folder's own
    for name in (None, "query"):
        expected = reference(source).encode(texts, prompt_name=name, truncate_dim=10)
        assert np.abs(encoder.encode(texts, prompt_name=name, truncate_dim=10) - expected).max() <= 5e-6
    core = Encoder(source)
    mine, other = (e.encode(texts[:9], output_value="token_embeddings") for e in (encoder, core))
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_the_folder(all_in_one: tuple[Path, Path], tmp_path: Path) -> None:
    source, target = all_in_one
    files = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert files >= {
        "config.json", "modules.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json",
        "2_Dense/model.safetensors", "onnx/model.onnx", "onnx/model.embedkit.json",
    }  # fmt: skip
    assert not any("traced" in name or "fused" in name for name in files) and "model.safetensors" not in files
    about = json.loads((target / "onnx" / "model.embedkit.json").read_text())
    assert about["format"] == 1 and about["precision"] == "fp32" and about["cosine"]["least"] > 0.999999
    for name in files - {"onnx/model.embedkit.json"}:
        assert about["sha256"][name] == file_hash(target / name)
    encoder = Encoder(target, backend="onnx")
    assert encoder.fingerprint == encoder.verify() == Encoder(source).fingerprint
    damaged = Path(shutil.copytree(target, tmp_path / "damaged"))
    pooling = damaged / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text() + " ")
    with pytest.raises(ValueError, match=r"1_Pooling.config\.json is not the file that was exported"):
        Encoder(damaged, backend="onnx").verify()


def test_other_runtimes_use_its_token_embeddings(
    all_in_one: tuple[Path, Path], tmp_path: Path, texts: list[str]
) -> None:
    # Without the description the graph is treated as another tool's: the folder's modules follow the token embeddings.
    source, target = all_in_one
    other = Path(shutil.copytree(target, tmp_path / "other"))
    (other / "onnx" / "model.embedkit.json").unlink()
    vectors = Encoder(other, backend="onnx").encode(texts[:50])
    assert np.abs(vectors - Encoder(source).encode(texts[:50])).max() <= 5e-6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "unknown format 2"),
        ({"precision": "int4"}, "unknown precision 'int4'"),
        ({"fingerprint": "x"}, "fingerprint must be a SHA-256"),
        ({"sha256": {"../x": "0" * 64}}, "sha256 must give"),
        ({"sha256": []}, "sha256 must give"),
    ],
)
def test_damaged_descriptions(
    all_in_one: tuple[Path, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = Path(shutil.copytree(all_in_one[1], tmp_path / "model"))
    path = folder / "onnx" / "model.embedkit.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ValueError, match=message) as caught:
        Encoder(folder, backend="onnx")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("precision", "least"), [("fp16", 0.9999), ("int8", 0.98)])
def test_other_precisions(
    precision: str,
    least: float,
    make_model: Callable[..., Path],
    tmp_path: Path,
    texts: list[str],
) -> None:
    source = make_model(hidden=64, intermediate=256, normalize=True)
    fidelity = export_onnx(source, tmp_path / "out", precision)
    assert fidelity.mean >= least
    encoder = Encoder(tmp_path / "out", backend="onnx")
    assert encoder.describe()["precision"] == precision
    cosines = (encoder.encode(texts) * Encoder(source).encode(texts)).sum(axis=1)
    assert cosines.mean() >= least
    size = (tmp_path / "out" / "onnx" / "model.onnx").stat().st_size
    assert size <= 0.75 * (source / "model.safetensors").stat().st_size
    with pytest.raises(ValueError, match="precision='fp32'"):
        Encoder(tmp_path / "out", backend="onnx", precision="fp32")


def test_wrong_vectors_are_refused(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedkit.export import sentence_graph

    right = sentence_graph._pool
    monkeypatch.setattr(sentence_graph, "_pool", lambda mode, *rest: right("max", *rest))
    with pytest.raises(ValueError, match="the embeddings of the fp32 graph differ from those of the core"):
        export_onnx(make_model(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model()
    with pytest.raises(ValueError, match="unknown precision='bf16'"):
        export_onnx(source, tmp_path / "out", "bf16")
    Encoder(source).save(tmp_path / "int8", precision="int8")
    remedy = "embedkit-model convert .*int8 int8-fp32 --precision fp32"
    with pytest.raises(ValueError, match=f"holds int8 weights; .*{remedy}"):
        export_onnx(tmp_path / "int8", tmp_path / "out")
    for precision in ("int8", "bf16"):
        with pytest.raises(ValueError, match=f"computes in {precision}; open it with precision='fp32'"):
            export_onnx(Encoder(source, precision=precision), tmp_path / "out")
    with pytest.raises(FileExistsError, match="is not empty"):
        export_onnx(source, tmp_path)
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnx" else 1)
    with pytest.raises(ImportError, match=r'needs onnx: pip install "embedkit\[onnx\]"'):
        export_onnx(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_settings_of_an_encoder(make_model: Callable[..., Path], tmp_path: Path) -> None:
    source = Encoder(
        make_model(), max_length=20, prompts={"query": "q: "}, truncate_dim=8, on_overflow="error"
    )
    export_onnx(source, tmp_path / "out")
    encoder = Encoder(tmp_path / "out", backend="onnx")
    assert encoder.max_seq_length == 20 and encoder.get_embedding_dimension() == 8
    assert encoder.prompts["query"] == "q: "
    assert source.describe()["texts"] == 0  # the check's texts are not counted


def test_saved_ranges_are_those_of_the_graph(make_model: Callable[..., Path], tmp_path: Path) -> None:
    source = Encoder(make_model())
    vectors = source.encode(["the weather", "people stay", "a day"])
    source.save(tmp_path / "model", ranges=np.stack([vectors.min(0), vectors.max(0)]))
    export_onnx(tmp_path / "model", tmp_path / "out")
    own, exported = Encoder(tmp_path / "model"), Encoder(tmp_path / "out", backend="onnx")
    found = [one.encode(["people", "day"], output_dtype="int8").astype(int) for one in (own, exported)]
    assert np.abs(found[0] - found[1]).max() <= 1


def test_the_check_is_of_some_thousand_tokens(
    make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of the graph's attention grows with the square of the length."""
    monkeypatch.setattr(export, "_COMPARED_TOKENS", 10)
    few = export_onnx(make_model(), tmp_path / "few").texts
    monkeypatch.undo()
    assert few < export_onnx(make_model(), tmp_path / "all").texts


def test_command_line(
    make_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert model_cli.main(["export", str(make_model()), str(out), "--format", "onnx"]) == 0
    printed = capsys.readouterr()
    assert "fp32" in printed.out and "minimum 1.000000, mean 1.000000" in printed.out
    assert printed.err == ""
    assert model_cli.main(["export", str(make_model()), str(out), "--format", "onnx"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert model_cli.main(["export", str(tmp_path / "nothing"), str(out), "--format", "onnx"]) == 2
    assert model_cli.main(["export", str(make_model()), str(out), "--format", "tflite"]) == 2


def test_only_the_converters_are_quiet(make_model: Callable[..., Path], tmp_path: Path) -> None:
    """What other threads said during a conversion was lost, and later logs too."""
    script = """
import logging, sys, threading, warnings
from embedkit.export import onnx_graph
from embedkit.export.onnx import export_onnx
def tell():
    print("printed")
    logging.getLogger("mine").warning("logged")
    warnings.warn("warned")
def convert(*arguments, convert=onnx_graph._convert, **options):
    logging.getLogger("transformers").warning("hidden, though this logger has its own handler")
    convert(*arguments, **options)
    thread = threading.Thread(target=tell)
    thread.start()
    thread.join()
onnx_graph._convert = convert
export_onnx(sys.argv[1], sys.argv[2], "int8")
logging.getLogger("mine").warning("logged later")
print(logging.root.handlers)
"""
    arguments = [str(make_model()), str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["printed", "[]"], done.stderr
    assert done.stderr.splitlines() == ["logged", "<string>:8: UserWarning: warned", "logged later"]


def test_it_runs_without_torch(all_in_one: tuple[Path, Path], texts: list[str], tmp_path: Path) -> None:
    script = (
        "import sys, json; sys.modules.update(torch=None, transformers=None, onnx=None)\n"
        "import numpy; from embedkit import Encoder\n"
        "numpy.save(sys.argv[2], Encoder(sys.argv[1], backend='onnx').encode(json.loads(sys.argv[3])))"
    )
    arguments = [str(all_in_one[1]), str(tmp_path / "v.npy"), json.dumps(texts[2:20])]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stderr == done.stdout == "", done.stderr
    expected = Encoder(all_in_one[0]).encode(texts[2:20])
    assert np.abs(np.load(tmp_path / "v.npy") - expected).max() <= 5e-6


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_weights_too_large_for_one_file(
    precision: str, make_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedkit.export import onnx_graph

    monkeypatch.setattr(onnx_graph, "_LARGEST", 0)
    fidelity = export_onnx(make_model(), tmp_path / "out", precision)
    assert fidelity.mean >= 0.98
    files = {path.name for path in (tmp_path / "out" / "onnx").iterdir()}
    assert len(files) == 3 and all(name.startswith("model.") for name in files)
    encoder = Encoder(tmp_path / "out", backend="onnx")
    assert encoder.verify() == Encoder(make_model()).fingerprint
