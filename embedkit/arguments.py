"""Checks of the arguments of `Encoder`: each error names the argument, what was given and what to give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .model_folder.folder import SIMILARITIES, ModelFolder
from .output import DTYPES

__all__ = [
    "check_backend",
    "check_device",
    "check_devices",
    "check_dtype",
    "check_max_length",
    "check_overflow",
    "check_positive",
    "check_precision",
    "check_prompts",
    "check_similarity",
    "check_threads",
    "check_truncate_dim",
    "check_unsupported",
]

MAX_THREADS = 1024
OVERFLOWS = ("truncate", "error", "window")
PRECISIONS = ("auto", "fp32", "bf16", "int8")
CUDA_PRECISIONS = ("auto", "fp32", "fp16", "bf16", "fp8", "int8")

_FOLDER_ONLY = "embedkit takes a model folder as it is"
# Arguments of sentence-transformers, and why each is refused.
_UNSUPPORTED = {
    "Encoder": {
        "modules": "give a folder that SentenceTransformer.save_pretrained wrote",
        "trust_remote_code": "embedkit never runs code of a model folder",
        "use_auth_token": "its name is token",
        "model_kwargs": _FOLDER_ONLY,
        "processor_kwargs": _FOLDER_ONLY,
        "tokenizer_kwargs": _FOLDER_ONLY,
        "config_kwargs": _FOLDER_ONLY,
        "model_card_data": "embedkit keeps the README.md of the folder",
    },
    "CrossEncoder": {
        "trust_remote_code": "embedkit never runs code of a model folder",
        "automodel_args": _FOLDER_ONLY,
        "tokenizer_args": _FOLDER_ONLY,
        "config_args": _FOLDER_ONLY,
        "model_kwargs": _FOLDER_ONLY,
        "processor_kwargs": _FOLDER_ONLY,
        "tokenizer_kwargs": _FOLDER_ONLY,
        "config_kwargs": _FOLDER_ONLY,
        "model_card_data": "embedkit keeps the README.md of the folder",
        "backend": "embedkit has one, its own",
        "modules": "give a folder that CrossEncoder.save_pretrained wrote",
        "prompts": "a cross-encoder of embedkit reads the two texts alone; put a prompt before them",
        "default_prompt_name": "a cross-encoder of embedkit has no prompts",
    },
    "predict": {
        "prompt_name": "a cross-encoder of embedkit has no prompts",
        "prompt": "a cross-encoder of embedkit reads the two texts alone; put the prompt before them",
        "pool": "embedkit scores in one process, on CrossEncoder(threads=...)",
        "chunk_size": "it is for a pool of processes",
        "device": "give CrossEncoder(device=...) instead",
        "num_workers": "embedkit scores on CrossEncoder(threads=...)",
    },
    "encode": {
        "pool": "embedkit encodes in one process, on Encoder(threads=...)",
        "chunk_size": "it is for a pool of processes; encode_iter(block_size=...) streams",
        "task": "no model here has routes for tasks; encode_query and encode_document set prompts",
        "processing_kwargs": "give Encoder(max_length=...) instead",
    },
}


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}={value!r} is not known; known are {', '.join(map(repr, known))}")
    return value


def check_positive(name: str, value: Any, most: int = 2**31 - 1) -> int:
    """An int (numpy's too) from 1 to ``most``."""
    try:
        number = value.__index__()
    except AttributeError:
        raise TypeError(f"{name} must be a positive integer, not {value!r}") from None
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name} must be a positive integer, not {value!r}")
    if number > most:
        raise ValueError(f"{name} must be at most {most}, not {number}")
    return int(number)


def check_threads(value: Any) -> int:
    """How many threads to start; more than `MAX_THREADS` is a mistake, and the system may refuse them."""
    return check_positive("threads", value, MAX_THREADS)


def check_device(device: Any) -> str:
    """``"cpu"``, for what runs nowhere else."""
    name = check_devices(device)[0]
    if name != "cpu":
        raise ValueError(
            f"device={device!r}: a CrossEncoder runs on the CPU only; use device='cpu' or 'auto'"
        )
    return name


def check_devices(device: Any) -> tuple[str, ...]:
    """``("cpu",)``, or the names of CUDA devices; whether they are there is not looked at."""
    if isinstance(device, list | tuple):
        names = tuple(str(item) for item in device)
        if not names:
            raise ValueError("device=[] names no device; give 'cpu', or CUDA devices such as ['cuda:0']")
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
            raise ValueError(f"device={name!r} is not known; known are 'auto', 'cpu', 'cuda', 'cuda:0', …")
    return names


def check_backend(backend: Any, **onnx_only: Any) -> str:
    """What runs the forward pass: ``"auto"`` for embedkit itself, or ``"onnx"``, which has arguments of its own."""
    if backend in ("torch", "openvino"):
        raise ValueError(
            f"backend={backend!r} is one of sentence-transformers; embedkit runs models itself (backend='auto') "
            "or on ONNX Runtime (backend='onnx')"
        )
    if _one_of("backend", "auto" if backend is None else backend, ("auto", "onnx")) == "auto":
        for name, value in onnx_only.items():
            if value is not None:
                raise ValueError(f"{name}={value!r:.80} is for backend='onnx'")
        return "auto"
    return "onnx"


def check_precision(precision: Any, folder: ModelFolder, device: str = "cpu") -> str:
    """The precision to run at; "auto" is the folder's own on a CPU, and left to the backend elsewhere."""
    if device != "cpu":
        return _one_of(f"on {device!r}, precision", precision, CUDA_PRECISIONS)
    if isinstance(precision, str) and precision in CUDA_PRECISIONS and precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is for CUDA devices; a CPU has 'fp32', 'bf16' and 'int8'")
    _one_of("precision", precision, PRECISIONS)
    if precision == "auto":
        return folder.precision
    if precision in ("fp32", "bf16") and folder.precision == "int8":
        raise ValueError(
            f"precision={precision!r}: {folder.path} holds int8 weights, the fp32 ones are not in it; "
            "use precision='auto', or the fp32 model it was made from "
            "(embedkit-model convert --precision fp32 writes what the int8 weights stand for)"
        )
    return str(precision)


def check_overflow(on_overflow: Any) -> str:
    """What happens to texts longer than ``max_length``."""
    return _one_of("on_overflow", on_overflow, OVERFLOWS)


def check_prompts(prompts: Any) -> dict[str, str]:
    """Prompts by name; None as a text means none, as in sentence-transformers."""
    if not isinstance(prompts, Mapping):
        raise TypeError(f"prompts must be a dict of names and texts, not {type(prompts).__name__}")
    for name, text in prompts.items():
        if not isinstance(text, str | None):
            raise TypeError(f"prompts[{name!r}] must be a str, not {type(text).__name__}")
    return {name: text or "" for name, text in prompts.items()}


def check_similarity(name: Any) -> str:
    """The name of a similarity function; also from the enum of sentence-transformers. None is cosine."""
    name = getattr(name, "value", name)
    return "cosine" if name is None else _one_of("similarity_fn_name", name, SIMILARITIES)


def check_dtype(output_dtype: Any, precision: Any) -> str:
    """The type of the output from its two names; float32 when neither is given."""
    if output_dtype is not None and precision is not None and output_dtype != precision:
        raise ValueError(
            f"output_dtype={output_dtype!r} and precision={precision!r} differ; give one of them"
        )
    value = precision if output_dtype is None else output_dtype
    return "float32" if value is None else _one_of("output_dtype", value, DTYPES)


def check_unsupported(function: str, options: Mapping[str, Any]) -> None:
    """Refuse arguments of sentence-transformers that embedkit has no use for, unless None or False."""
    reasons = _UNSUPPORTED[function]
    for name, value in options.items():
        if name not in reasons:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        if value is not None and value is not False:
            raise ValueError(f"{function}({name}=...) is not supported: {reasons[name]}")


def check_max_length(value: Any, special_tokens: int, positions: int) -> int:
    """Tokens a text may have, special tokens counted; at least one token of the text must fit."""
    length = check_positive("max_length", value)
    if not special_tokens < length <= positions:
        raise ValueError(
            f"max_length must be from {special_tokens + 1} ({special_tokens} special tokens and one more) "
            f"to {positions} (the positions of this model), not {length}"
        )
    return length


def check_truncate_dim(value: Any, dimension: int) -> int:
    """How many dimensions to keep."""
    kept = check_positive("truncate_dim", value)
    if kept > dimension:
        raise ValueError(f"truncate_dim={kept} is larger than the model's dimension {dimension}")
    return kept
