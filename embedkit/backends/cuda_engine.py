"""A model folder on CUDA devices."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from ..model_folder.folder import ModelFolder
from .stage import Stage
from .stage_engine import StageEngine

__all__ = ["CudaEngine", "check_cuda"]


class CudaEngine(StageEngine):
    """A model on the Triton kernels."""

    tensors = True

    def __init__(self, folder: ModelFolder, devices: Sequence[str], precision: str) -> None:
        """Load the tokenizer, and the weights on every device; ``precision`` may be "auto".

        Raises:
            ImportError: PyTorch or Triton is not installed.
            ValueError: a device does not exist, the weights do not fit the precision, or the model is a static one.
        """
        check_cuda(devices)
        if folder.static is not None:
            raise ValueError(
                f"{folder.path} is a static model, a table that a CPU reads faster than it could be uploaded; "
                "use device='cpu'"
            )

        def open_stage() -> Stage:
            from .cuda import open_stage

            return open_stage(folder, self.tokenizer, devices, precision, self.folder_length)

        super().__init__(folder, open_stage)

    @property
    def stored_precision(self) -> str:
        """As `Engine.stored_precision`."""
        return self.folder.precision


def check_cuda(devices: Sequence[str]) -> tuple[str, ...]:
    """The names of the devices with their numbers, after checking that they exist.

    Raises:
        ImportError: PyTorch or Triton is not installed.
        ValueError: a device does not exist.
    """
    for package in ("torch", "triton"):
        if find_spec(package) is None:
            raise ImportError(
                f"device={devices[0]!r} runs on PyTorch and Triton, and {package} is not installed: "
                "pip install 'embedkit[gpu]', or use device='cpu'"
            )
    from .cuda_device import find_devices

    return find_devices(devices)
