"""Opens a model folder on CUDA devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import _core
from ..model_folder.folder import ModelFolder
from ..model_folder.tokenizer import Tokenizer
from .cuda_device import CudaDevice, Device, find_devices, out_of_memory
from .many import ManyStages
from .packed_model import PackedModel
from .packed_stage import BatchModel, PackedStage
from .stage import Request, Stage

__all__ = ["check_products", "choose_precision", "open_stage"]

# Several lengths and alphabets; the content does not matter.
_SAMPLE = (
    "The weather is lovely today.",
    "How do I reset my password?",
    "A man is playing a guitar on the stage while the crowd sings along.",
    "3,141.59 km² of steppe burned in 2019, according to the report (p. 42).",
    "Der Zug nach München fährt um acht Uhr ab; у меня нет билета.",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of Light.",
)


def open_stage(
    folder: ModelFolder, tokenizer: Tokenizer, devices: Sequence[str], precision: str, max_length: int
) -> Stage:
    """The encode stage for ``devices``.

    Args:
        folder: the model; int8 weights are multiplied out.
        tokenizer: the folder's.
        devices: names such as "cuda:0".
        precision: one of `packed_model.DTYPES`, or "auto": fp32 below compute capability 8.0, otherwise
            `choose_precision` on the first device.
        max_length: maximum tokens of the texts that "auto" compares.

    Raises:
        ValueError: a device does not exist, or torch is set to compute fp32 products in TF32.
    """
    opened = [CudaDevice(name) for name in find_devices(devices)]

    def load(precision: str, device: Device) -> BatchModel:
        with device.running():  # in order before the first batch
            return PackedModel(folder, precision, device.device)

    if precision == "fp32":
        check_products()
    if precision == "auto":
        precision = "fp32"
        if opened[0].has_fast_halves:
            precision = choose_precision(folder, tokenizer, opened[0], load, max_length)
    stages = [
        PackedStage(
            folder,
            load(precision, device),
            device,
            precision=precision,
            wider=partial(load, "bf16", device) if precision == "fp16" else None,
            check=check_products if precision == "fp32" else None,
            target=opened[0].device,
        )
        for device in opened
    ]
    return stages[0] if len(stages) == 1 else ManyStages(stages)


def check_products() -> None:
    """Refuse to compute float32 products in fewer bits, which is a setting of the whole process."""
    import torch

    # torch from 2.9 on has this setting, and the other cannot be read once this one or one like it was made.
    name, mode = (
        "backends.cuda.matmul.fp32_precision",
        getattr(torch.backends.cuda.matmul, "fp32_precision", None),
    )
    full = "ieee"
    if mode is None:
        name, mode, full = "get_float32_matmul_precision()", torch.get_float32_matmul_precision(), "highest"
    if mode not in (full, "none"):
        raise ValueError(
            f"torch.{name} of this process is {mode!r}, which computes fp32 products in TF32, with 10 mantissa bits "
            f"instead of 23; set it to {full!r}, or open the Encoder with precision='bf16'"
        )


def choose_precision(
    folder: ModelFolder,
    tokenizer: Tokenizer,
    device: Device,
    load: Callable[[str, Device], BatchModel],
    max_length: int,
) -> str:
    """The 16-bit precision whose embeddings of a few texts are closest to those of fp32.

    Without memory for fp32 it is bf16.

    fp16 has three more mantissa bits than bf16 but overflows beyond 65504; a model whose weights or activations do so
    runs in bf16.
    """
    options = _core.EncodeOptions(
        threads=1,
        prefix_ids=list(tokenizer.prefix_ids),
        suffix_ids=list(tokenizer.suffix_ids),
        max_length=max_length,
    )
    window = _core.tokenize_window_ids(tokenizer.encode_batch(list(_SAMPLE)), options)
    request = Request(width=folder.dimension, normalize=True)

    def vectors(precision: str) -> Any:
        stage = PackedStage(
            folder, load(precision, device), device, precision=precision, budget=window.tokens
        )
        out = stage.empty(window.texts, request)
        batch = stage.submit(window, np.arange(window.texts), request)
        batch.wait()
        batch.deliver(out, np.arange(window.texts))
        return out

    try:
        reference = vectors("fp32")
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or out_of_memory(error)):
            raise
        return "bf16"  # the model may fit in 16 bits; those of bf16 never overflow
    try:
        half = vectors("fp16")
    except ValueError:  # the weights overflow
        return "bf16"
    cosines = [np.einsum("nd,nd->n", reference, other).min() for other in (half, vectors("bf16"))]
    return "fp16" if np.isfinite(half).all() and cosines[0] >= cosines[1] else "bf16"
