"""An ONNX Runtime session of a sentence encoder: checked when opened, run on reused buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Provider", "Session", "check_providers", "provider_names"]

Provider = str | tuple[str, Mapping[str, Any]]
"""The name of an execution provider of ONNX Runtime, or the name and its options."""

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
ON_GPU = (
    CUDA,
    *(f"{name}ExecutionProvider" for name in ("Tensorrt", "NvTensorRTRTX", "ROCM", "MIGraphX", "Dml")),
)

_DTYPES: dict[str, type[np.generic]] = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pooling_mask", "position_ids")
_TOKENS = ("token_embeddings", "last_hidden_state")
_SENTENCE = "sentence_embedding"
_FATAL = 4  # a severity of ONNX Runtime: errors are raised, not printed to stderr


def provider_names(providers: Sequence[Provider]) -> list[str]:
    """The names alone."""
    return [provider if isinstance(provider, str) else provider[0] for provider in providers]


def check_providers(providers: Sequence[Provider] | None, device: str) -> list[Provider]:
    """The execution providers to request, all of them available in this ONNX Runtime.

    Args:
        providers: as given by the caller; None for those of the device.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.

    Raises:
        ImportError: onnxruntime is not installed.
        TypeError: ``providers`` is not a list of names, each alone or with a dict of options.
        ValueError: a provider is not available, or does not match the device.
    """
    available = list(_onnxruntime().get_available_providers())
    kind, _, number = device.partition(":")
    if providers is None:
        wanted: list[Provider] = [CPU]
        if kind == "cuda":
            wanted.insert(0, (CUDA, {"device_id": int(number or 0)}))
    else:
        if isinstance(providers, str) or not isinstance(providers, Sequence):
            raise TypeError(f"providers must be a list of names, not {providers!r:.200}")
        wanted = [  # JSON has lists for tuples
            (provider[0], provider[1]) if isinstance(provider, list) and len(provider) == 2 else provider
            for provider in providers
        ]
        for provider in wanted:
            if not (
                isinstance(provider, str)
                or (isinstance(provider, tuple) and len(provider) == 2 and isinstance(provider[1], Mapping))
            ):
                raise TypeError(f"a provider is a name or (name, options), not {provider!r:.200}")
        if not wanted:
            raise ValueError(f"providers is empty; this onnxruntime has {', '.join(available)}")
        if kind == "cuda" and CUDA not in provider_names(wanted):
            raise ValueError(
                f"device={device!r} needs {CUDA}, and providers={provider_names(wanted)} lacks it; "
                "give one of the two arguments"
            )
    for place, provider in enumerate(wanted):
        name, options = (provider, {}) if isinstance(provider, str) else provider
        if number and name in ON_GPU:  # "cuda:1"
            if str(options.get("device_id", int(number))) != str(int(number)):
                raise ValueError(
                    f"device={device!r} and the options of {name} name different GPUs; give one of the two arguments"
                )
            options = {**options, "device_id": int(number)}
        if name == CUDA:  # ONNX Runtime's own default is TF32, ten bits of a float's 23
            options = {"use_tf32": 0, **options}
        wanted[place] = (name, options) if options else name
    for name in provider_names(wanted):
        if name not in available:
            remedy = " (pip install onnxruntime-gpu instead of onnxruntime)" if name == CUDA else ""
            raise ValueError(
                f"this onnxruntime has no {name}{remedy}; it has {', '.join(available)}. "
                "embedkit does not fall back to another one."
            )
    return wanted


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise ImportError(
            'backend="onnx" needs ONNX Runtime: pip install "embedkit[onnx]", or onnxruntime-gpu for CUDA'
        ) from None
    return onnxruntime


class Session:
    """An open graph; thread-safe.

    Attributes:
        path: the graph's file.
        providers: the execution providers in use, in order of preference.
        inputs: the names of the inputs.
        sentence: whether it outputs sentence embeddings (texts, dimension).
        tokens: whether it outputs token embeddings (texts, tokens, hidden_size).
    """

    def __init__(self, path: Path, providers: Sequence[Provider], threads: int) -> None:
        """Open the graph.

        Raises:
            ValueError: ONNX Runtime cannot run the file, its inputs or outputs are not those of a sentence encoder,
                or a requested provider could not be started.
        """
        ort = _onnxruntime()
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL
        # It would keep a memory plan for every shape ever run, and batches have many shapes.
        options.enable_mem_pattern = False
        # Spinning threads would take the processors from tokenization.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = ort.InferenceSession(
                str(path), options, providers=[*providers], enable_fallback=False
            )
        except Exception as error:
            if not _of_onnxruntime(error):
                raise
            raise ValueError(
                f"{path}: ONNX Runtime cannot open this graph ({_short(error)}). Fetch or export the model "
                "again, with the files that hold the graph's weights."
            ) from error
        self.path = path
        self.providers: list[str] = list(self._session.get_providers())
        missing = [name for name in provider_names(providers) if name not in self.providers]
        if missing:  # ONNX Runtime falls back silently, or with a line on stderr
            raise ValueError(
                f"{path}: {', '.join(missing)} could not be started; the CUDA libraries and the driver must match "
                f"this onnxruntime. It would run on {', '.join(self.providers)}."
            )
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = _FATAL
        self._inputs = {item.name: self._input(item) for item in self._session.get_inputs()}
        if "input_ids" not in self._inputs:
            raise ValueError(
                f"{path}: the graph has no input input_ids; its inputs are {', '.join(self._inputs)}"
            )
        self._outputs = {item.name: item for item in self._session.get_outputs()}
        self.inputs = tuple(self._inputs)
        self._tokens = self._find_tokens()
        self.tokens = self._tokens is not None
        self.sentence = _SENTENCE in self._outputs
        if not (self.tokens or self.sentence):
            raise ValueError(
                f"{path}: the outputs of the graph are {', '.join(self._outputs)}, neither token embeddings "
                "(last_hidden_state) nor sentence embeddings (sentence_embedding); export a feature-extraction model"
            )
        self._idle: list[_Buffers] = []
        self._output_device = _output_device(providers)

    def _input(self, item: Any) -> type[np.generic]:
        if item.name not in _INPUTS:
            raise ValueError(
                f"{self.path}: the graph has an unknown input {item.name!r:.80}; "
                f"expected one of {', '.join(_INPUTS)}"
            )
        if len(item.shape) != 2 or any(isinstance(size, int) for size in item.shape):
            raise ValueError(
                f"{self.path}: {item.name} has the shape {list(item.shape)}, not (texts, tokens) with dynamic "
                "sizes; export the model with dynamic axes"
            )
        if item.type not in ("tensor(int64)", "tensor(int32)"):
            raise ValueError(f"{self.path}: {item.name} is a {item.type}, not an integer tensor")
        return _DTYPES[item.type]

    def _find_tokens(self) -> str | None:
        """The output with token embeddings: by its name, otherwise by its three axes."""
        floats = [
            name
            for name, item in self._outputs.items()
            if item.type in ("tensor(float)", "tensor(float16)") and len(item.shape) == 3
        ]
        return next((name for name in _TOKENS if name in floats), floats[0] if floats else None)

    def width(self, *, tokens: bool) -> int | None:
        """Columns of the token or sentence embeddings; None if the graph leaves them open."""
        size = self._outputs[self._name(tokens)].shape[-1]
        return size if isinstance(size, int) else None

    def _name(self, tokens: bool) -> str:
        return self._tokens or "" if tokens else _SENTENCE

    @contextmanager
    def run(
        self, feed: Mapping[str, npt.NDArray[Any]], width: int, *, tokens: bool
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Run one padded batch and lend its output for the duration of the block.

        Args:
            feed: name -> (texts, tokens) integers; names that are not inputs of the graph are ignored.
            width: columns of the output.
            tokens: output token embeddings instead of sentence embeddings.

        Yields:
            (texts, width) or (texts, tokens, width), in memory that the next run overwrites.

        Raises:
            RuntimeError: ONNX Runtime fails.
        """
        name = self._name(tokens)
        shape = (*feed["input_ids"].shape, width) if tokens else (len(feed["input_ids"]), width)
        try:
            buffers = self._idle.pop()
        except IndexError:
            buffers = _Buffers(self._session.io_binding())
        binding = buffers.binding
        try:
            for key, dtype in self._inputs.items():
                array = buffers.array(key, feed[key].shape, dtype)
                array[:] = feed[key]
                binding.bind_input(key, "cpu", 0, dtype, array.shape, array.ctypes.data)
            out: Any = None
            if self._output_device is None:
                out = buffers.array(name, shape, _DTYPES[self._outputs[name].type])
                binding.bind_output(name, "cpu", 0, out.dtype.type, shape, out.ctypes.data)
            else:
                # The graph writes to the device's memory, and one copy brings the result.
                binding.bind_output(name, *self._output_device)
            try:
                self._session.run_with_iobinding(binding, self._run_options)
                if out is None:
                    out = binding.copy_outputs_to_cpu()[0]
            except Exception as error:
                if not _of_onnxruntime(error):
                    raise
                raise RuntimeError(f"{self.path}: ONNX Runtime failed ({_short(error)})") from error
            yield out.astype(np.float32, copy=False)
        finally:
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()
            self._idle.append(buffers)


def _of_onnxruntime(error: Exception) -> bool:
    """Whether it is of ONNX Runtime, whose exceptions have no common base, and not of a signal's handler."""
    own = type(error).__module__.partition(".")[0] == "onnxruntime"
    return own or type(error) in (RuntimeError, TypeError, ValueError)


def _output_device(providers: Sequence[Provider]) -> tuple[str, int] | None:
    """Type and number of the device that results are written on; None for the CPU."""
    for provider in providers:
        if provider_names([provider]) == [CUDA]:
            options = {} if isinstance(provider, str) else provider[1]
            return "cuda", int(options.get("device_id", 0))
    return None


class _Buffers:
    """Host memory bound to the inputs and outputs of a session; one set for each concurrent run."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self._flat: dict[str, npt.NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: type[np.generic]) -> npt.NDArray[Any]:
        """An array in the memory of this name, which grows to the largest batch."""
        size = int(np.prod(shape))
        flat = self._flat.get(name)
        if flat is None or flat.size < size:
            flat = self._flat[name] = np.empty(size, dtype=dtype)
        return flat[:size].reshape(shape)


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 500 else text[:500] + "…"
