"""Writes a model folder that embedkit and, in fp32, sentence-transformers load."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .fingerprint import fingerprint, hash_tensors, source_weights_hash
from .folder import FORMAT, METADATA_FILE, SETTINGS_FILE, ModelFolder, Settings, open_folder
from .json_file import present, read_json
from .modules import POOLING_FLAGS, Dense
from .weights import WEIGHTS_FILES, core_head, core_tensors, stored_tensors

__all__ = ["check_source", "copy_files", "new_folder", "write_folder", "write_json", "write_settings"]

_DOCUMENTS = ("README*", "LICENSE*", "NOTICE*")
_TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt")


def write_folder(
    folder: ModelFolder,
    target: Path,
    *,
    precision: str,
    settings: Settings,
    similarity_fn_name: str | None,
    ranges: np.ndarray[Any, Any] | None,
) -> None:
    """Write ``folder`` at ``precision`` with the settings given into the new folder ``target``.

    The folder appears whole or not at all: it is written beside ``target`` and renamed.

    Raises:
        FileExistsError: ``target`` is a file, or a folder that is not empty.
        FileNotFoundError: ``folder`` or one of its files is gone; names it.
        ValueError: the settings in ``folder`` are not those that were opened.
    """
    check_source(folder)
    with new_folder(target) as work:
        copy_files(folder, work)
        write_settings(folder, work, settings, similarity_fn_name)
        _write_weights(folder, work, precision, settings, ranges)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill beside ``target``, which takes its name when the block ends without an error.

    Raises:
        FileExistsError: ``target`` is a file, or a folder that is not empty.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} exists and is not empty; remove it or save to another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.parent / f".{target.name}.{secrets.token_hex(8)}"
    work.mkdir()
    try:
        yield work
        if target.exists():
            target.rmdir()
        work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def check_source(folder: ModelFolder) -> None:
    """Weights and tokenizer are read again from where the model was opened: they must still be there."""
    advice = f"saving reads {folder.path} again; put the model back there, or open it anew from where it is"
    names = ("tokenizer.json", "vocab.txt")
    try:
        now = open_folder(folder.path)
        if not any(present(folder.transformer / name) for name in names):
            raise FileNotFoundError(f"{folder.transformer} holds neither {' nor '.join(names)}")
        next(stored_tensors(folder))  # opens the weights; the first tensor is small
        core_head(folder)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} ({advice})") from None
    if now != folder:
        raise ValueError(f"{folder.path} has changed since the model was opened: {advice}")


def copy_files(folder: ModelFolder, work: Path) -> None:
    """Copy what does not depend on the precision, as it is."""
    inner = work / folder.transformer.relative_to(folder.path)
    inner.mkdir(parents=True, exist_ok=True)
    for pattern in _DOCUMENTS:
        for path in folder.path.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, work / path.name)
    names = [*_TOKENIZER_FILES, "tokenizer.json"]
    if not present(folder.transformer / "tokenizer.json"):
        names += _VOCABULARIES  # tokenizer.json holds them too
    for name in ("config.json", *names):
        if present(folder.transformer / name):
            shutil.copyfile(folder.transformer / name, inner / name)
    config = read_json(inner / "config.json")
    for key in ("dtype", "torch_dtype"):
        if key in config:  # the type that transformers computes in: that of the tensors written
            config[key] = "float32"
            write_json(inner / "config.json", config)
    for module in folder.head:
        if isinstance(module, Dense):
            destination = work / module.folder.relative_to(folder.path)
            destination.mkdir(parents=True, exist_ok=True)
            for name in ("config.json", WEIGHTS_FILES["fp32"]):
                shutil.copyfile(module.folder / name, destination / name)


def write_settings(
    folder: ModelFolder, work: Path, settings: Settings, similarity_fn_name: str | None
) -> None:
    """Write the sentence-transformers side of the folder, in the form that every version of it reads."""
    modules = [("Transformer", folder.transformer.relative_to(folder.path).as_posix())]
    modules.append(("Pooling", "1_Pooling"))
    for module in folder.head:
        if isinstance(module, Dense):
            modules.append(("Dense", module.folder.relative_to(folder.path).as_posix()))
        else:
            modules.append(("Normalize", f"{len(modules)}_Normalize"))  # holds no file
    write_json(
        work / "modules.json",
        [
            {
                "idx": number,
                "name": str(number),
                "path": "" if path == "." else path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, (kind, path) in enumerate(modules)
        ],
    )
    write_json(work / "1_Pooling" / "config.json", _pooling_config(folder))
    inner = work / folder.transformer.relative_to(folder.path)
    write_json(
        inner / "sentence_bert_config.json",
        {"max_seq_length": settings.max_length, "do_lower_case": folder.do_lower_case},
    )
    path = folder.path / SETTINGS_FILE
    config = read_json(path) if present(path) else {}
    config["prompts"] = dict(settings.prompts)
    config["default_prompt_name"] = settings.default_prompt_name
    config["similarity_fn_name"] = similarity_fn_name
    if settings.truncate_dim is not None:
        config["truncate_dim"] = settings.truncate_dim
    else:
        config.pop("truncate_dim", None)
    write_json(work / path.name, config)


def _pooling_config(folder: ModelFolder) -> dict[str, Any]:
    modes = folder.pooling.modes
    config: dict[str, Any] = {}
    if tuple(mode for mode in POOLING_FLAGS.values() if mode in modes) == modes:
        config["word_embedding_dimension"] = folder.hidden_size
        config.update({flag: mode in modes for flag, mode in POOLING_FLAGS.items()})
    else:  # an order that only the form of sentence-transformers 6 can say
        config["embedding_dimension"] = folder.hidden_size
        config["pooling_mode"] = [m + "_tokens" if m == "mean_sqrt_len" else m for m in modes]
    return {**config, "include_prompt": folder.pooling.include_prompt}


def _write_weights(
    folder: ModelFolder,
    work: Path,
    precision: str,
    settings: Settings,
    ranges: np.ndarray[Any, Any] | None,
) -> None:
    from safetensors.numpy import save_file

    tensors = core_tensors(folder, precision)
    inner = work / folder.transformer.relative_to(folder.path)
    path = inner / WEIGHTS_FILES[precision]
    save_file(tensors, path, metadata={"format": "pt"})
    shutil.copymode(inner / "config.json", path)  # save_file makes files that only their owner can read
    stored = hash_tensors(tensors.items())
    # fp32 weights out of int8 ones are not those that the int8 ones were made from.
    dequantized = folder.precision == "int8" and precision == "fp32"
    source = stored if dequantized else source_weights_hash(folder)
    metadata: dict[str, Any] = {
        "format": FORMAT,
        "precision": precision,
        "fingerprint": fingerprint(folder, source, settings),
        "source_weights": source,
        "stored_weights": stored,
    }
    if ranges is not None:
        metadata["embedding_ranges"] = [[float(value) for value in row] for row in ranges]
    write_json(work / METADATA_FILE, metadata)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file for people to read, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
