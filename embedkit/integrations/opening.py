"""How the adapters open their encoder."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from ..encoder import Encoder

__all__ = ["check_options", "open_encoder"]

_open: WeakValueDictionary[str, Encoder] = WeakValueDictionary()
_lock = threading.Lock()


def check_options(model: Any, options: Mapping[str, Any]) -> str | None:
    """The model and options of an adapter that its host writes down and reads back as JSON.

    Returns:
        The model as a str, or None for the built-in one.

    Raises:
        TypeError: the model is not a name or a folder, or an option is nothing that JSON holds.
    """
    if isinstance(model, os.PathLike):
        model = os.fspath(model)
    if not isinstance(model, str | None):
        raise TypeError(
            f"model must be a name or a folder, not {type(model).__name__}: it is written down by the host, "
            "which opens the model again from there"
        )
    for name, value in options.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise TypeError(
                f"{name}={value!r} cannot be written down as JSON, which the host does with it; "
                "give text, numbers, or lists and dicts of them"
            ) from None
    return model


def open_encoder(model: str | None, options: Mapping[str, Any]) -> Encoder:
    """The encoder of a model; one and the same while an encoder of these arguments is in use.

    Hosts make many copies of a component, each of which would hold the weights. An encoder may be used from
    several threads at once, so that copies can share it.

    Args:
        model: name or folder; None for the built-in model.
        options: further arguments of `Encoder`, that `check_options` accepts.
    """
    key = json.dumps([model, dict(options)], sort_keys=True)
    with _lock:
        encoder = _open.get(key)
        if encoder is None:
            encoder = Encoder(model, **options)
            _open[key] = encoder
        return encoder
