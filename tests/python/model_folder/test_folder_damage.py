"""Folders damaged by accident or on purpose: refused with the file's name, never wrong vectors."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedkit import Encoder


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file, which may be new."""
    value = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**value, **changes}))


OPTIONAL_FILES = [
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "embedkit.json",
    "3_Normalize/config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
]
NEEDED_FILES = ["config.json", "1_Pooling/config.json", "2_Dense/model.safetensors", "model.safetensors"]


@pytest.mark.parametrize(
    ("put", "problem"),
    [
        (lambda path: path.symlink_to("nowhere"), "is a symbolic link to nothing"),
        (lambda path: path.symlink_to(path.name), "cannot be opened"),
        (lambda path: path.mkdir(), "is not a regular file"),
        (lambda path: os.mkfifo(path), "is not a regular file"),
    ],
    ids=["dangling", "loop", "directory", "fifo"],
)
@pytest.mark.parametrize("name", OPTIONAL_FILES + NEEDED_FILES)
def test_a_non_file_does_not_count_as_absent(
    folder: Path, name: str, put: Callable[[Path], None], problem: str
) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    put(path)
    with pytest.raises(ValueError, match=f"{problem}.*: the model folder is damaged") as caught:
        Encoder(folder)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("sentence_roberta_config.json", "sentence_bert_config.json"),
        ("vocab.txt", "tokenizer.json"),
        ("model.safetensors.index.json", "model.safetensors"),
    ],
)
def test_a_dangling_link_in_the_second_place(folder: Path, name: str, before: str) -> None:
    (folder / before).unlink()
    (folder / name).symlink_to("nowhere")
    with pytest.raises(ValueError, match=f"{name} is a symbolic link to nothing"):
        Encoder(folder)


def test_links_to_files_are_files(folder: Path, tmp_path: Path) -> None:
    expected = Encoder(folder).encode("hello world")
    for name in [name for name in OPTIONAL_FILES + NEEDED_FILES if (folder / name).exists()]:
        blob = tmp_path / name.replace("/", "-")
        (folder / name).rename(blob)
        (folder / name).symlink_to(blob)
    assert (Encoder(folder).encode("hello world") == expected).all()


@pytest.mark.parametrize("name", ["1_Pooling", "2_Dense", "3_Normalize"])
def test_a_file_instead_of_a_module_folder(folder: Path, name: str) -> None:
    shutil.rmtree(folder / name)
    (folder / name).write_text("")
    with pytest.raises(ValueError, match=f"{name} is not a folder: the model folder is damaged"):
        Encoder(folder)


DENSE = "2_Dense/config.json"
POOLING = "1_Pooling/config.json"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("config.json", {"hidden_act": ["gelu"]}, r"unknown hidden_act \['gelu'\]; expected one of gelu"),
        ("config.json", {"hidden_act": {}}, r"unknown hidden_act {}"),
        (DENSE, {"activation_function": ["x"]}, r"unknown activation_function \['x'\]; expected one of"),
        (POOLING, {"pooling_mode": ["mean"] * 100_000}, "pooling_mode names a mode twice. Name each once"),
        (POOLING, {"pooling_mode": ["mean", "max", "mean"]}, "pooling_mode names a mode twice"),
        (
            POOLING,
            {"pooling_mode": None, "pooling_mode_cls_token": "false"},
            "pooling_mode_cls_token must be true or false, not 'false'",
        ),
        ("sentence_bert_config.json", {"do_lower_case": "false"}, "do_lower_case must be true or false"),
        (
            "embedkit.json",
            {
                "format": 1,
                "precision": "fp32",
                **dict.fromkeys(("fingerprint", "source_weights", "stored_weights"), "0" * 64),
                "embedding_ranges": [[0], [10**400]],
            },
            "embedding_ranges must be two lists of numbers",
        ),
        (
            "tokenizer.json",
            {"post_processor": {"type": "BertProcessing", "cls": ["a", float("inf")], "sep": ["b", 1]}},
            "the post-processor BertProcessing is incomplete",
        ),
        (
            "tokenizer.json",
            {"post_processor": {"type": "TemplateProcessing", "single": ["Sequence"], "special_tokens": {}}},
            "the post-processor TemplateProcessing is incomplete",
        ),
        (
            "tokenizer.json",
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
            "Cannot parse precompiled_charsmap.* Fetch the model again",  # a panic of the tokenizers package
        ),
    ],
)
def test_hostile_values(folder: Path, name: str, changes: dict[str, Any], message: str) -> None:
    edit(folder / name, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        Encoder(folder)
    assert str(folder / name) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_interrupts_of_the_tokenizers_package_pass(
    folder: Path, interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tokenizers

    class Interrupted:
        @staticmethod
        def from_str(content: str) -> None:
            raise interrupt

    edit(folder / "tokenizer.json", normalizer={"type": "NFC"})
    monkeypatch.setattr(tokenizers, "Tokenizer", Interrupted)
    with pytest.raises(interrupt):
        Encoder(folder)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("x" * 5000, r"the path 'xxx.*… is too long"),
        ("x" * 300, r"cannot be opened \(File name too long\)"),
        ("\ud800", "cannot be opened .*surrogates not allowed"),
    ],
)
def test_module_paths_that_no_file_has(folder: Path, path: str, message: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match=message) as caught:
        Encoder(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("shard", ["a\0b.safetensors", "\ud800.safetensors"])
def test_shard_names_that_no_file_has(folder: Path, shard: str) -> None:
    (folder / "model.safetensors").unlink()
    edit(folder / "model.safetensors.index.json", weight_map={"a": shard})
    with pytest.raises(ValueError, match=r"safetensors cannot be opened") as caught:
        Encoder(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "sentence_bert_config.json",
            {"max_seq_length": 1},
            "max_seq_length is 1, and 2 special tokens leave no room for a text; set it from 3 to 64, or",
        ),
        ("sentence_bert_config.json", {"max_seq_length": 2}, "max_seq_length is 2, and 2 special tokens"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "zz"},
            "default_prompt_name is 'zz', but the prompts are 'query', 'document'; correct the file, or give "
            "prompts={'zz': ...} or another default_prompt_name",
        ),
        (
            "config_sentence_transformers.json",
            {"truncate_dim": 1000},
            "truncate_dim is 1000, the model has 24 dimensions; correct or remove it",
        ),
        (
            "tokenizer.json",
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A"}}],
                    "special_tokens": {"a": {"id": "a", "ids": [1] * 1001, "tokens": ["a"] * 1001}},
                }
            },
            "adds 1001 special tokens to each text, max_position_embeddings in config.json is 64",
        ),
    ],
)
def test_settings_that_do_not_fit_name_their_file(
    folder: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    edit(folder / name, **changes)
    with pytest.raises(ValueError, match=re.escape(f"{folder / name}: ") + ".*" + re.escape(message)):
        Encoder(folder)


def test_too_short_model_max_length_names_the_tokenizer_config(folder: Path) -> None:
    (folder / "sentence_bert_config.json").unlink()
    edit(folder / "tokenizer_config.json", model_max_length=2)
    with pytest.raises(
        ValueError, match=r"tokenizer_config\.json: model_max_length is 2, and 2 special tokens"
    ):
        Encoder(folder)


def test_the_caller_can_correct_the_default_prompt(folder: Path) -> None:
    expected = Encoder(folder).encode("query: hello world")
    edit(folder / "config_sentence_transformers.json", default_prompt_name="zz")
    for encoder in (
        Encoder(folder, prompts={"zz": "query: "}),
        Encoder(folder, default_prompt_name="query"),
    ):
        assert (encoder.encode("hello world") == expected).all()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads the maps of Linux")
@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", "float32"), ("int8", "float32"), ("fp32", "bfloat16"), (None, "float32")],
)
def test_an_open_model_does_not_depend_on_its_files(
    make_model: Callable[..., Path], tmp_path: Path, precision: str | None, dtype: str
) -> None:
    folder = tmp_path / "model"
    source = make_model(dense=((24, "Tanh", True),), dtype=dtype)
    if precision is None:
        Encoder(source).save(folder, precision="int8")
    else:
        shutil.copytree(source, folder)
    encoder = Encoder(folder, precision=precision or "auto", threads=1)
    expected = encoder.encode(["hello world", "a lovely day"])
    assert str(folder) not in Path("/proc/self/maps").read_text()  # otherwise the rest may kill the process
    for path in folder.rglob("*.safetensors"):
        with path.open("r+b") as file:  # in place, as rsync --inplace and cp do
            file.write(b"\x55" * path.stat().st_size)
    assert (encoder.encode(["hello world", "a lovely day"]) == expected).all()
    for path in folder.rglob("*.safetensors"):
        os.truncate(path, 1000)
    assert (encoder.encode(["hello world", "a lovely day"]) == expected).all()
