"""Folders damaged by accident or on purpose: refused with the file's name, never run to wrong vectors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedkit import Encoder


@pytest.fixture
def folder(make_model: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy to damage: Transformer, Pooling, Dense, Normalize."""
    source = make_model(dense=((24, "Tanh", True),), normalize=True, prompts={"query": "query: "})
    return Path(shutil.copytree(source, tmp_path / "copy"))


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
def test_what_is_no_file_does_not_count_as_absent(
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
def test_a_file_in_the_place_of_a_module(folder: Path, name: str) -> None:
    shutil.rmtree(folder / name)
    (folder / name).write_text("")
    with pytest.raises(ValueError, match=f"{name} is not a folder: the model folder is damaged"):
        Encoder(folder)
