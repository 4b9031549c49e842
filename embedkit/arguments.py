"""Checks of arguments: each error names the argument, the value given and the values expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .model_folder.folder import SIMILARITIES, ModelFolder
from .output import DTYPES, checked_ranges

__all__ = [
    "CUDA_PRECISIONS",
    "check_backend",
    "check_device",
    "check_devices",
    "check_dtype",
    "check_fp32",
    "check_max_length",
    "check_overflow",
    "check_positive",
    "check_precision",
    "check_prompts",
    "check_ranges",
    "check_same_device",
    "check_similarity",
    "check_threads",
    "check_truncate_dim",
    "check_unsupported",
    "either",
]

MAX_THREADS = 1024
OVERFLOWS = ("truncate", "error", "window")
PRECISIONS = ("auto", "fp32", "bf16", "int8")
CUDA_PRECISIONS = ("auto", "fp32", "fp16", "bf16", "fp8", "int8")

_FOLDER_ONLY = "embedkit uses a model folder as it is"
_SCORING = {
    "prompt_name": "embedkit does not support prompts for cross-encoders",
    "prompt": "embedkit does not support prompts for cross-encoders; prepend it to the texts",
    "pool": "embedkit scores in one process; set CrossEncoder(threads=...)",
    "chunk_size": "it is for a pool of processes",
    "num_workers": "set CrossEncoder(threads=...) instead",
    "activation_fct": "its name is activation_fn",
}
_OPENING = {
    "trust_remote_code": "embedkit never runs code of a model folder",
    "model_kwargs": _FOLDER_ONLY,
    "processor_kwargs": _FOLDER_ONLY,
    "tokenizer_kwargs": _FOLDER_ONLY,
    "config_kwargs": _FOLDER_ONLY,
    "model_card_data": "embedkit keeps the README.md of the folder",
}
# Arguments of sentence-transformers that are not supported, and why.
_UNSUPPORTED = {
    "Encoder": {
        **_OPENING,
        "modules": "give a folder that SentenceTransformer.save_pretrained wrote",
        "use_auth_token": "use token instead",
    },
    "CrossEncoder": {
        **_OPENING,
        "automodel_args": _FOLDER_ONLY,
        "tokenizer_args": _FOLDER_ONLY,
        "config_args": _FOLDER_ONLY,
        "backend": "cross-encoders run on the compiled core only",
        "modules": "give a folder that CrossEncoder.save_pretrained wrote",
        "prompts": "embedkit does not support prompts for cross-encoders; prepend them to the texts",
        "default_prompt_name": "embedkit does not support prompts for cross-encoders",
    },
    "predict": _SCORING,
    "rank": {
        **_SCORING,
        "apply_softmax": "rank is for one class",
        "convert_to_tensor": "rank returns a list",
    },
    "encode": {
        "pool": "embedkit encodes in one process; set Encoder(threads=...)",
        "chunk_size": "it is for a pool of processes; encode_iter(block_size=...) streams",
        "processing_kwargs": "set Encoder(max_length=...) instead",
    },
}


def _one_of(name: str, value: Any, known: tuple[str, ...], where: str = "") -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"unknown {name}={value!r}{where}; expected one of {', '.join(map(repr, known))}")
    return value


def check_positive(name: str, value: Any, most: int = 2**31 - 1, *, least: int = 1) -> int:
    """An integer, possibly of numpy, from ``least`` (1 or 0) to ``most``."""
    kind = "a positive integer" if least else "0 or a positive integer"
    try:
        number = value.__index__()
    except AttributeError:
        raise TypeError(f"{name} must be {kind}, not {value!r}") from None
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{name} must be {kind}, not {value!r}")
    if number > most:
        raise ValueError(f"{name} must be at most {most}, not {number}")
    return int(number)


def check_threads(value: Any) -> int:
    """The number of threads; more than `MAX_THREADS` is a mistake, and the system may refuse to start them."""
    return check_positive("threads", value, MAX_THREADS)


def either(what: str, **values: Any) -> Any:
    """The value of an argument that has two names; None if neither is given.

    Raises:
        TypeError: both are given.
    """
    given = [value for value in values.values() if value is not None]
    if len(given) > 1:
        raise TypeError(f"{' and '.join(values)} are two names for {what}; give one of them")
    return given[0] if given else None


def check_device(device: Any) -> str:
    """``"cpu"``, the only device of cross-encoders."""
    if isinstance(device, list | tuple):
        raise ValueError(
            f"device={device!r}: a CrossEncoder runs on the CPU only; set CrossEncoder(threads=...)"
        )
    name = check_devices(device)[0]
    if name != "cpu":
        raise ValueError(
            f"device={device!r}: a CrossEncoder runs on the CPU only; use device='cpu' or 'auto'"
        )
    return name


def check_devices(device: Any) -> tuple[str, ...]:
    """``("cpu",)``, or the names of CUDA devices, without checking that they exist."""
    if isinstance(device, list | tuple):
        names = tuple(str(item) for item in device)
        if not names:
            raise ValueError("device=[] is empty; expected 'cpu', or CUDA devices such as ['cuda:0']")
        if any(name.partition(":")[0] != "cuda" for name in names):
            raise ValueError(
                f"device={device!r}: a list is for CUDA devices, such as ['cuda:0', 'cuda:1']; to use several "
                "CPU cores, give Encoder(threads=...)"
            )
    else:
        names = (str(device),)
    if names[0] in ("auto", "cpu"):
        return ("cpu",)
    for name in names:
        kind, colon, number = name.partition(":")
        if kind != "cuda" or (colon and not (number.isascii() and number.isdigit())):
            raise ValueError(f"unknown device={name!r}; expected one of 'auto', 'cpu', 'cuda', 'cuda:0', …")
    return names


def check_same_device(device: Any, own: tuple[str, ...]) -> None:
    """Refuse a device other than that of the encoder."""
    if check_devices(device) not in (own, tuple(name.partition(":")[0] for name in own)):
        raise ValueError(
            f"device={device!r}: this encoder is on {', '.join(map(repr, own))}; open another one there with "
            "Encoder(device=...)"
        )


def check_backend(backend: Any, **onnx_only: Any) -> str:
    """``"auto"`` for embedkit's own backends, or ``"onnx"``, which alone takes the arguments ``onnx_only``."""
    if backend in ("torch", "openvino"):
        raise ValueError(
            f"backend={backend!r} is not supported; embedkit runs models itself (backend='auto') "
            "or on ONNX Runtime (backend='onnx')"
        )
    if _one_of("backend", "auto" if backend is None else backend, ("auto", "onnx")) == "auto":
        for name, value in onnx_only.items():
            if value is not None:
                raise ValueError(f"{name}={value!r:.80} is for backend='onnx'")
        return "auto"
    return "onnx"


def check_precision(precision: Any, folder: ModelFolder, device: str = "cpu") -> str:
    """The precision to run in; "auto" means the folder's own on a CPU, and is left to the backend elsewhere."""
    if device != "cpu":
        return _one_of("precision", precision, CUDA_PRECISIONS, f" on {device!r}")
    if isinstance(precision, str) and precision in CUDA_PRECISIONS and precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is for CUDA devices; a CPU has 'fp32', 'bf16' and 'int8'")
    _one_of("precision", precision, PRECISIONS)
    if precision == "auto":
        return folder.precision
    if precision in ("fp32", "bf16") and folder.precision == "int8":
        raise ValueError(
            f"precision={precision!r}: {folder.path} holds int8 weights and no fp32 weights; "
            "use precision='auto', or the fp32 model it was made from "
            "(embedkit-model convert --precision fp32 dequantizes the weights)"
        )
    return str(precision)


def check_fp32(folder: ModelFolder, use: str) -> None:
    """Refuse int8 weights where only fp32 ones are of ``use``: an imperative, such as "export"."""
    if folder.precision == "int8":
        path = folder.path
        raise ValueError(
            f"{path} holds int8 weights; {use} the fp32 model it was made from, or multiply its weights out first: "
            f"embedkit-model convert {path} {path.name}-fp32 --precision fp32"
        )


def check_overflow(on_overflow: Any) -> str:
    """What to do with texts longer than ``max_length``."""
    return _one_of("on_overflow", on_overflow, OVERFLOWS)


def check_prompts(prompts: Any) -> dict[str, str]:
    """Prompts by name; the text None means an empty prompt, as in sentence-transformers."""
    if not isinstance(prompts, Mapping):
        raise TypeError(f"prompts must be a dict of names and texts, not {type(prompts).__name__}")
    for name, text in prompts.items():
        if not isinstance(text, str | None):
            raise TypeError(f"prompts[{name!r}] must be a str, not {type(text).__name__}")
    return {name: text or "" for name, text in prompts.items()}


def check_similarity(name: Any) -> str:
    """The name of a similarity function, also from the enum of sentence-transformers; None means cosine."""
    name = getattr(name, "value", name)
    return "cosine" if name is None else _one_of("similarity_fn_name", name, SIMILARITIES)


def check_dtype(output_dtype: Any, precision: Any) -> str:
    """The output type by either of its two names; float32 if neither is given."""
    if output_dtype is not None and precision is not None and output_dtype != precision:
        raise ValueError(
            f"output_dtype={output_dtype!r} and precision={precision!r} differ; give one of them"
        )
    value = precision if output_dtype is None else output_dtype
    return "float32" if value is None else _one_of("output_dtype", value, DTYPES)


def check_unsupported(function: str, options: Mapping[str, Any]) -> None:
    """Refuse arguments of sentence-transformers that embedkit does not support, unless None, False, 0 or empty."""
    reasons = _UNSUPPORTED[function]
    for name, value in options.items():
        if name not in reasons:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        if value is not None and not (
            isinstance(value, bool | int | str | dict | list | tuple) and not value
        ):
            raise ValueError(f"{function}({name}=...) is not supported: {reasons[name]}")


def check_max_length(value: Any, special_tokens: int, positions: int) -> int:
    """The maximum tokens of a text, special tokens included; at least one token of the text must fit."""
    length = check_positive("max_length", value)
    if not special_tokens < length <= positions:
        raise ValueError(
            f"max_length must be from {special_tokens + 1} ({special_tokens} special tokens and one token of text) "
            f"to {positions} (the positions of this model), not {length}"
        )
    return length


def check_truncate_dim(value: Any, dimension: int) -> int:
    """The number of dimensions to keep."""
    kept = check_positive("truncate_dim", value)
    if kept > dimension:
        raise ValueError(f"truncate_dim={kept} is larger than the model's dimension {dimension}")
    return kept


def check_ranges(
    dtype: str, ranges: npt.ArrayLike | None, folder: ModelFolder, width: int, *, normalize: bool
) -> npt.NDArray[np.float32] | None:
    """The ranges (2, width) for int8 and uint8, those given or those saved in the folder; None for other types.

    Saved ranges are valid only for embeddings as the folder's modules produce them.
    """
    if dtype not in ("int8", "uint8"):
        return None
    if ranges is not None:
        return checked_ranges(ranges, width)
    changed = normalize and not (folder.normalizes and width == folder.dimension)
    saved = folder.ranges(width)
    if saved is not None and not changed:
        return checked_ranges(saved, width)
    why = "none are saved in the model folder"
    if folder.stamp.ranges is not None:
        why = "those saved in the model folder are for embeddings truncated or normalized differently"
    raise ValueError(
        f"{dtype} embeddings need the range of each dimension, and {why}; give ranges=, e.g. "
        "numpy.stack([v.min(axis=0), v.max(axis=0)]) of the float embeddings v of typical texts, "
        "or save them once with save(folder, ranges=...)"
    )
