"""The fingerprint of a model, which identifies it in any precision.

It is the SHA-256 of a JSON object with sorted keys and no spaces:

* ``scheme``: ``"embedkit-1"``;
* ``architecture``: the core's config (sizes, activation, layer-norm epsilon);
* ``weights``: the SHA-256 of the transformer's fp32 weights: for each tensor by sorted name the line
  ``name dtype shape``, then its bytes (little-endian, C order). A model stored in fp16 or bf16 and the same
  values in fp32 have the same hash. An int8 folder keeps the hash of the weights it was made from;
* ``tokenizer``: the SHA-256 of ``tokenizer.json`` without truncation and padding (``max_length`` decides), and
  under ``"changes"`` of what the settings beside it make otherwise, if they do; or of ``vocab.txt`` and these, and
  under ``"tokens"`` of the special and added tokens, if further files change them;
* ``pooling``, ``include_prompt``, ``head`` (each Dense with the hash of its weights), ``do_lower_case``;
* for a model with a Router instead: ``weights``, ``routes`` (each route's fingerprint without weights),
  ``default_route`` and ``route_mappings``;
* ``prompts`` that are not empty, ``default_prompt_name``, ``max_length`` and ``truncate_dim``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .folder import ModelFolder, Settings
from .json_file import present, read_json
from .modules import Dense
from .tokenizer import changes_beside, vocabulary_tokens
from .tokenizer_files import TokenizerSettings
from .weights import core_head, stored_tensors

__all__ = ["fingerprint", "hash_stored_weights", "hash_tensors", "source_weights_hash"]

_TOKENIZER_SETTINGS = (
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "unk_token",
    "cls_token",
    "sep_token",
    "pad_token",
    "mask_token",
    "added_tokens_decoder",
    "truncation_side",
)


def hash_tensors(tensors: Iterable[tuple[str, npt.NDArray[Any]]]) -> str:
    """SHA-256 of named tensors in the given order."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype.name} {list(tensor.shape)}\n".encode())
        little = tensor.astype(tensor.dtype.newbyteorder("<"), copy=False)
        digest.update(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def hash_stored_weights(folder: ModelFolder) -> str:
    """SHA-256 of the stored tensors, of all routes if there are some; reads all of them."""
    if folder.routes:
        return _digest({name: hash_stored_weights(route) for name, route in folder.routes.items()})
    return hash_tensors(stored_tensors(folder))


def source_weights_hash(folder: ModelFolder) -> str:
    """SHA-256 of the fp32 weights of a folder: from its stamp, or computed if it has none."""
    return folder.stamp.source_weights or hash_stored_weights(folder)


def fingerprint(folder: ModelFolder, source_weights: str, settings: Settings) -> str:
    """The fingerprint in 64 hexadecimal digits; reads the tokenizer and the head, no other weights."""
    if folder.routing is not None:
        mappings = {str(key): route for key, route in folder.routing.mappings.items()}
        lengths = {name: route.max_seq_length or settings.max_length for name, route in folder.routes.items()}
        lengths[folder.routing.first] = settings.max_length
        return _digest(
            {
                "scheme": "embedkit-1",
                "weights": source_weights,
                "routes": {
                    name: fingerprint(route, "", replace(settings, max_length=lengths[name]))
                    for name, route in folder.routes.items()
                },
                "default_route": folder.routing.default,
                "route_mappings": mappings,
            }
        )
    head: list[Any] = []
    for module, core in zip(folder.head, core_head(folder), strict=True):
        if isinstance(module, Dense):
            tensors = [(key, core[key]) for key in ("weight", "bias") if core[key] is not None]
            head.append({"dense": hash_tensors(tensors), "activation": module.activation})
        else:
            head.append("normalize")
    content = {
        "scheme": "embedkit-1",
        "architecture": folder.config,
        "weights": source_weights,
        "tokenizer": _tokenizer_hash(folder),
        "pooling": list(folder.pooling.modes),
        "include_prompt": folder.pooling.include_prompt,
        "head": head,
        "do_lower_case": folder.do_lower_case,
        "prompts": {name: text for name, text in settings.prompts.items() if text},
        "default_prompt_name": settings.default_prompt_name,
        "max_length": settings.max_length,
        "truncate_dim": settings.truncate_dim,
    }
    return _digest(content)


def _digest(content: Any) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _tokenizer_hash(model: ModelFolder) -> str:
    folder = model.transformer
    path = folder / "tokenizer.json"
    if present(path):
        tokenizer = read_json(path)
        content: dict[str, Any] = {k: v for k, v in tokenizer.items() if k not in ("truncation", "padding")}
        if model.static is None and (changes := changes_beside(folder)):
            content["changes"] = changes
    else:
        settings = TokenizerSettings(folder)
        content = {key: settings.values.get(key) for key in _TOKENIZER_SETTINGS}
        kind = settings.class_of_transformers
        if kind not in ("", "BertTokenizer"):
            content["class"] = kind
        file = (folder / "vocab.txt").read_bytes()
        vocabulary = frozenset(file.decode("utf-8-sig", "replace").split("\n"))
        used = vocabulary_tokens(settings, vocabulary)
        hashed = (*_TOKENIZER_SETTINGS, "tokenizer_class")
        settings.values = {key: value for key, value in settings.values.items() if key in hashed}
        settings.special = settings.added = {}
        # Other settings and files mostly say the same.
        if used != vocabulary_tokens(settings, vocabulary):
            content["tokens"] = used
        content["vocab"] = hashlib.sha256(file).hexdigest()
    return hashlib.sha256(_canonical(content)).hexdigest()
