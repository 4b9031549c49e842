"""The precision of training that a device is made for."""

from __future__ import annotations

import logging
import os

import torch

__all__ = ["check_launcher", "multiplies_bf16", "precision_for"]

_LOG = logging.getLogger("embedkit")


def multiplies_bf16(device: torch.device) -> bool:
    """Whether ``device`` has instructions for bf16; without them torch's products are several times slower than in
    fp32 (ten times on a Zen 2)."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        if not hasattr(torch.cpu, "get_capabilities"):  # an earlier torch
            return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())
        found = torch.cpu.get_capabilities()
        return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return False


def check_launcher() -> None:
    """Refuse the mixed precision of ``accelerate launch``, which would also be that of heads and losses.

    Raises:
        ValueError: it has one.
    """
    launched = (os.environ.get("ACCELERATE_MIXED_PRECISION") or "no").lower()
    if launched != "no":
        raise ValueError(
            f"accelerate's mixed precision is {launched} (ACCELERATE_MIXED_PRECISION), but training.precision says in "
            "what is trained: set that, and give accelerate launch --mixed_precision no"
        )


def precision_for(device: torch.device, precision: str) -> str:
    """``precision``, with ``auto`` replaced by ``bf16`` where the device has instructions for it, else by ``fp32``."""
    if precision == "auto":
        return "bf16" if multiplies_bf16(device) else "fp32"
    if precision == "bf16" and device.type in ("cpu", "cuda") and not multiplies_bf16(device):
        _LOG.warning(
            "training.precision is bf16, but this %s has no instruction for it and may be several times slower than "
            "in fp32; use fp32, or auto for what the device is made for",
            "processor" if device.type == "cpu" else "GPU",
        )
    return precision
