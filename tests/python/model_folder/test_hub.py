"""Finding models by name, without a network."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from embedkit import CrossEncoder
from embedkit.model_folder.hub import HubOptions, resolve


def test_local_folders_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name") == Path("org/name")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/org") == tmp_path / "org"


@pytest.mark.parametrize("name", ["./missing", "/missing/x", "a/b/c", "", "a b", Path("missing")])
def test_what_cannot_be_a_name_is_a_missing_folder(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist; give a folder, or a name"):
        resolve(name)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="pip install huggingface-hub"):
        resolve("org/name")


def test_package_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=None))
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", ModuleType("huggingface_hub.errors"))
    with pytest.raises(ImportError, match=r"needs huggingface-hub 0.25 or later; the one that is installed"):
        resolve("org/name")


def test_home_folder_that_does_not_exist() -> None:
    with pytest.raises(FileNotFoundError, match="'~nobody-of-this-name/x': no such home folder"):
        resolve("~nobody-of-this-name/x")


def test_model_that_is_not_cached(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    options = HubOptions(cache_folder=tmp_path, local_files_only=True)
    with pytest.raises(FileNotFoundError, match=r"'org/name' is not in the cache, and local_files_only=True"):
        resolve("org/name", options)


def test_network_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def unreachable(*args: Any, **options: Any) -> str:
        raise hub.errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(hub, "snapshot_download", unreachable)
    with pytest.raises(FileNotFoundError, match="the Hub cannot be reached; connect once, or copy"):
        resolve("org/name")


@pytest.mark.parametrize(("base", "module"), [(Exception, "httpx"), (OSError, "requests.exceptions")])
def test_network_that_fails_meanwhile(
    base: type[Exception], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    error = type("ReadError", (base,), {"__module__": module})

    def broken(*args: Any, **options: Any) -> str:
        raise error("connection reset by peer")

    monkeypatch.setattr(hub, "snapshot_download", broken)
    message = r"download of 'org/name' was interrupted \(ReadError: connection reset by peer\); run it again to resume$"
    with pytest.raises(OSError, match=message):
        resolve("org/name")


@pytest.mark.parametrize(
    "error", [ImportError("no socksio"), AttributeError("x"), PermissionError("disk"), ValueError("name")]
)
def test_errors_that_are_not_of_the_network(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def failing(*args: Any, **options: Any) -> str:
        raise error

    monkeypatch.setattr(hub, "snapshot_download", failing)
    with pytest.raises(type(error)) as raised:
        resolve("org/name")
    assert raised.value is error


def test_revision_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    class NotFound(hub.errors.RevisionNotFoundError):  # of other arguments in every few versions
        def __init__(self) -> None:
            pass

    def missing(*args: Any, **options: Any) -> str:
        raise NotFound

    monkeypatch.setattr(hub, "snapshot_download", missing)
    with pytest.raises(
        FileNotFoundError, match=r"'org/name' on .* has no revision 'typo'; give revision= a branch"
    ):
        resolve("org/name", HubOptions(revision="typo"))


def test_cached_model_is_found_offline(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    commit = "0" * 40
    repository = tmp_path / "models--sentence-transformers--tiny"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    options = HubOptions(cache_folder=tmp_path, local_files_only=True)
    assert resolve("sentence-transformers/tiny", options) == snapshot
    assert resolve("tiny", options) == snapshot  # as sentence-transformers completes bare names


def test_only_data_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    from huggingface_hub.utils import filter_repo_objects

    asked: dict[str, Any] = {}

    def download(repository: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)
    for name, organization, repository in (
        ("a", "sentence-transformers", "sentence-transformers/a"),
        ("a", "cross-encoder", "cross-encoder/a"),
        ("roberta-base", "sentence-transformers", "roberta-base"),
    ):
        assert resolve(name, organization=organization) == tmp_path
        assert asked["repository"] == repository
    with pytest.raises(FileNotFoundError, match="not a complete model folder"):
        CrossEncoder("ms-marco-MiniLM-L6-v2")
    assert asked["repository"] == "cross-encoder/ms-marco-MiniLM-L6-v2"
    assert resolve("org/name", HubOptions(revision="v1", token="t")) == tmp_path
    assert asked["repository"] == "org/name" and asked["revision"] == "v1" and asked["token"] == "t"
    monkeypatch.setenv("HOME", str(tmp_path))
    resolve("org/name", HubOptions(cache_folder="~/models"))
    assert asked["cache_dir"] == str(tmp_path / "models")
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", "~/others")
    resolve("org/name")
    assert asked["cache_dir"] == str(tmp_path / "others")
    wanted = """
        config.json modules.json config_sentence_transformers.json sentence_bert_config.json tokenizer.json
        tokenizer_config.json vocab.txt special_tokens_map.json model.safetensors embedkit.json README.md
        model-00001-of-00002.safetensors model.safetensors.index.json model.int8.safetensors
        1_Pooling/config.json 2_Dense/config.json 2_Dense/model.safetensors
        0_Transformer/config.json 0_Transformer/sentence_bert_config.json 0_Transformer/tokenizer.json
        0_Transformer/tokenizer_config.json 0_Transformer/vocab.txt 0_Transformer/special_tokens_map.json
        0_Transformer/added_tokens.json 0_Transformer/vocab.json 0_Transformer/merges.txt
        0_Transformer/model.safetensors 0_Transformer/model.int8.safetensors
        0_Transformer/model-00001-of-00002.safetensors 0_Transformer/model.safetensors.index.json
        chat_template.jinja 0_Transformer/chat_template.jinja additional_chat_templates/default.jinja
    """.split()  # noqa: SIM905
    unwanted = """
        pytorch_model.bin 2_Dense/pytorch_model.bin 0_Transformer/pytorch_model.bin
        0_Transformer/vocab.pkl onnx/model.safetensors checkpoint-100/model.safetensors
        checkpoint-100/tokenizer.json tf_model.h5 rust_model.ot model.pkl onnx/model.onnx
        onnx/config.json openvino/openvino_model.bin modeling.py train.py
    """.split()  # noqa: SIM905
    kept = filter_repo_objects(
        [*wanted, *unwanted],
        allow_patterns=asked["allow_patterns"],
        ignore_patterns=asked["ignore_patterns"],
    )
    assert list(kept) == wanted


@pytest.mark.parametrize("name", ["model_O3.onnx", "onnx/model_O3.onnx"])
def test_a_graph_instead_of_the_weights(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface-hub is not installed")
    from huggingface_hub.utils import filter_repo_objects

    asked: dict[str, Any] = {}

    def snapshot(repository: str, **options: Any) -> str:
        asked.update(options)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    resolve("org/name", graph=name)
    wanted = """
        config.json modules.json tokenizer.json 1_Pooling/config.json 2_Dense/config.json
        2_Dense/model.safetensors onnx/model_O3.onnx onnx/model_O3.onnx_data onnx/model_O3.embedkit.json
    """.split()  # noqa: SIM905
    unwanted = """
        model.safetensors onnx/model.onnx onnx/model.onnx_data onnx/model_O4.onnx pytorch_model.bin
        openvino/openvino_model.bin modeling.py
    """.split()  # noqa: SIM905
    kept = filter_repo_objects(
        [*wanted, *unwanted],
        allow_patterns=asked["allow_patterns"],
        ignore_patterns=asked["ignore_patterns"],
    )
    assert list(kept) == wanted
