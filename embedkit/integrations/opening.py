"""How adapters open their encoder."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from ..backends.engine import Engine
from ..encoder import Encoder
from ..files import expanded
from ..forking import fork_lock

__all__ = ["check_options", "encode_rows", "encoder_of", "open_encoder"]

_engines: WeakValueDictionary[str, Engine] = WeakValueDictionary()
_settings: WeakKeyDictionary[Engine, Encoder] = WeakKeyDictionary()
"""Closed encoders, which hold no weights: as each engine's was when it was opened."""
_lock = fork_lock()


def encoder_of(model: str | os.PathLike[str] | Encoder | None, options: Mapping[str, Any]) -> Encoder:
    """``model`` itself if it is an `Encoder`, else an encoder of that model with ``options``.

    Raises:
        ValueError: ``options`` are given for an `Encoder` that is open already.
    """
    if not isinstance(model, Encoder):
        return Encoder(model, **options)
    if options:
        raise ValueError(f"{next(iter(options))} cannot be set here: model is an Encoder; set it there")
    return model


def encode_rows(encode: Callable[..., Any], texts: list[str], **options: Any) -> Any:
    """``encode(texts, **options)``, of the shape (0, dim) where there are no texts, for which it would be (0,)."""
    vectors = encode(texts or [""], **options)
    return vectors if texts else vectors[:0]


def check_options(model: Any, options: Any, *, saved: bool = True) -> tuple[str | None, dict[str, Any]]:
    """Check the model and options of an adapter that its host sends as JSON and, if ``saved``, keeps.

    Returns:
        The model as a str, a folder by its whole path, which leads there from other folders, too; None for the
        built-in one. And the options.

    Raises:
        TypeError: the model is not a name or a folder, the options are not a dict, or one of them cannot be saved as
            JSON, is a secret, or names the model.
    """
    options = {} if options is None else options
    if not isinstance(options, Mapping):
        raise TypeError(f"options must be a dict, e.g. {{'precision': 'int8'}}, not {type(options).__name__}")
    if isinstance(model, os.PathLike):
        model = os.fspath(model)
    if not isinstance(model, str | None):
        raise TypeError(
            f"model must be a name or a folder, not {type(model).__name__}: the host library saves it, and "
            "loads the model from there again"
        )
    if saved and isinstance(options.get("token"), str):
        raise TypeError(
            "token would be saved by the host library, for all to read; set HF_TOKEN in its place"
        )
    if "model_name_or_path" in options:
        raise TypeError("model_name_or_path: give the model as the first argument")
    for name, value in options.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise TypeError(
                f"{name}={value!r} cannot be saved as JSON, as the host library does; "
                "use strings, numbers, or lists and dicts of them"
            ) from None
    if model and (folder := expanded(model)).is_dir():
        model = os.path.abspath(folder)
    return model, dict(options)


def open_encoder(model: str | None, options: Mapping[str, Any]) -> Encoder:
    """An encoder of ``model``, which shares its weights with those of other callers with the same arguments.

    Hosts make many components of one model, and each would hold the weights otherwise. The settings, and whether it is
    closed, are each caller's own. A folder whose files have changed since is opened again.

    Args:
        model: name or folder; None for the built-in model.
        options: further arguments of `Encoder` that passed `check_options`.
    """
    key = json.dumps([_identity(model), dict(options)], sort_keys=True)
    with _lock:
        engine = _engines.get(key)
        if engine is None:
            encoder = Encoder(model, **options)
            engine = _engines[key] = encoder._engine
            _settings[engine] = copy.copy(encoder)
            _settings[engine].close()
        else:
            encoder = copy.copy(_settings[engine])
            encoder._loaded = engine
        return encoder


def _identity(model: str | None) -> list[Any]:
    """What changes when ``model`` means other weights: a folder's real path and its files; a name stays itself."""
    folder = expanded(model or "")
    if not model or not folder.is_dir():
        return [model]
    files = [(path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [
        os.path.realpath(folder),
        *([str(path.relative_to(folder)), at.st_mtime_ns, at.st_size, at.st_ino] for path, at in files),
    ]
