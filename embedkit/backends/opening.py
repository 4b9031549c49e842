"""Which engine runs a model folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..arguments import check_backend, check_devices, check_precision, check_threads
from ..model_folder.folder import ModelFolder, open_folder
from .core_engine import CoreEngine
from .engine import EncodingEngine, Engine

if TYPE_CHECKING:
    from .onnx_engine import OnnxOptions
    from .onnx_session import Provider

__all__ = ["OpenOptions", "open_engine"]


@dataclass(frozen=True)
class OpenOptions:
    """How a model folder is opened; checked as far as possible without the folder, and picklable.

    Attributes:
        threads: for encoding on a CPU, for tokenization on other devices; None for as many as the process may use.
        devices: ``("cpu",)``, or the names of CUDA devices.
        precision: a precision of the device, or ``"auto"``.
        onnx: how to run an ONNX graph; None for embedkit's own backends.
    """

    threads: int | None
    devices: tuple[str, ...] = ("cpu",)
    precision: str = "auto"
    onnx: OnnxOptions | None = None

    @classmethod
    def checked(
        cls,
        *,
        device: str | Sequence[str] | None,
        precision: str,
        threads: int | None,
        backend: str,
        providers: Sequence[Provider] | None,
        onnx_file: str | None,
    ) -> OpenOptions:
        """Check the arguments of `Encoder`.

        Raises:
            ImportError: a package that the device or the backend needs is not installed.
            TypeError: an argument has the wrong type.
            ValueError: an argument is unknown or unavailable on this machine.
        """
        threads = None if threads is None else check_threads(threads)
        if check_backend(backend, providers=providers, onnx_file=onnx_file) == "onnx":
            from .onnx_engine import OnnxOptions

            onnx, name = OnnxOptions.checked(device, precision, providers, onnx_file)
            return cls(threads, (name,), precision, onnx)
        devices = check_devices("auto" if device is None else device)
        if devices != ("cpu",):
            from .cuda_engine import check_cuda

            devices = check_cuda(devices)
        return cls(threads, devices, precision)

    @property
    def thread_count(self) -> int:
        """The number of threads that was given, or the default of this process."""
        return default_threads(self.threads)

    @property
    def graph(self) -> str | None:
        """The ONNX file that a download must include; None where no graph is run."""
        return None if self.onnx is None else self.onnx.onnx_file or "model.onnx"


def default_threads(threads: Any) -> int:
    """The number of threads, by default what the CPU affinity and quota of the process allow."""
    return _core.default_threads() if threads is None else check_threads(threads)


def open_engine(path: Path, options: OpenOptions) -> Engine:
    """Load the tokenizer and the weights of a model folder.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: a file is broken, or the folder does not have the precision.
    """
    if options.onnx is not None:
        from .onnx_engine import OnnxEngine

        return OnnxEngine(path, options.onnx, options.thread_count)
    folder = open_folder(path)
    precision = check_precision(options.precision, folder, options.devices[0])

    def engine(route: ModelFolder) -> EncodingEngine:
        if options.devices == ("cpu",):
            return CoreEngine(route, precision)
        if folder.routes and route.static is not None:  # a CPU reads its table faster than a GPU would get it
            return CoreEngine(route, route.precision)
        from .cuda_engine import CudaEngine

        return CudaEngine(route, options.devices, precision)

    if not folder.routes:
        return engine(folder)
    from .router_engine import RouterEngine

    return RouterEngine(folder, {name: engine(route) for name, route in folder.routes.items()})
