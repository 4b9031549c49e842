"""What an `Encoder` does beside encoding: it is opened, described, saved, copied and closed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from . import _core
from .arguments import (
    check_backend,
    check_devices,
    check_max_length,
    check_overflow,
    check_precision,
    check_prompts,
    check_similarity,
    check_threads,
    check_truncate_dim,
    check_unsupported,
)
from .backends.core_engine import CoreEngine, Counts, Engine
from .model_folder.folder import BUILTIN, ModelFolder, Settings, open_folder
from .model_folder.hub import resolve
from .model_folder.model_card import ModelCardData
from .output import checked_ranges, similarity, similarity_pairwise

if TYPE_CHECKING:
    from .backends.onnx_engine import OnnxOptions
    from .backends.onnx_session import Provider

__all__ = ["Model"]

_Self = TypeVar("_Self", bound="Model")


class Model:
    """A loaded model folder, with the settings of a caller. `Encoder` adds the encoding."""

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        device: str | Sequence[str] = "auto",
        precision: str = "auto",
        threads: int | None = None,
        max_length: int | None = None,
        on_overflow: str = "truncate",
        revision: str | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        backend: str = "auto",
        providers: Sequence[Provider] | None = None,
        onnx_file: str | None = None,
        model_name_or_path: str | os.PathLike[str] | None = None,
        **unsupported: Literal[False] | None,
    ) -> None:
        """Open a model; see `Encoder`."""
        check_unsupported("Encoder", unsupported)
        if model is not None and model_name_or_path is not None:
            raise TypeError("model and model_name_or_path are two names for the model; give one of them")
        model = model_name_or_path if model is None else model
        self._on_overflow = check_overflow(on_overflow)
        self._threads = _core.default_threads() if threads is None else check_threads(threads)
        self._onnx: OnnxOptions | None = None
        if check_backend(backend, providers=providers, onnx_file=onnx_file) == "onnx":
            from .backends import onnx_engine

            self._onnx, name = onnx_engine.OnnxOptions.checked(
                device, precision, self._threads, providers, onnx_file
            )
            self._devices: tuple[str, ...] = (name,)
        else:
            self._devices = check_devices("auto" if device is None else device)
            if self._devices != ("cpu",):
                from .backends.cuda_engine import check_cuda

                self._devices = check_cuda(self._devices)
        if model is None:
            path, self._name = BUILTIN, BUILTIN.name
        else:
            # Absolute, so that a copy finds it from another working directory.
            path = resolve(
                model,
                revision=revision,
                cache_folder=cache_folder,
                token=token,
                local_files_only=local_files_only,
                graph=None if self._onnx is None else onnx_file or "model.onnx",
            ).absolute()
            self._name = os.fspath(model)
        graph = None if self._onnx is None else _open_graph(path, self._onnx)
        folder = open_folder(path) if graph is None else graph.folder
        # sentence-transformers gives every model these two, so that they can always be asked for.
        self.prompts = {"query": "", "document": "", **folder.prompts, **check_prompts(prompts or {})}
        if not default_prompt_name:
            folder.check_default_prompt(self.prompts)
        self.default_prompt_name = default_prompt_name or folder.default_prompt_name
        self._prompt_text(None)
        self.similarity_fn_name = similarity_fn_name or folder.similarity_fn_name
        self.truncate_dim = truncate_dim if truncate_dim is not None else folder.truncate_dim
        if self.truncate_dim is not None:
            self.truncate_dim = check_truncate_dim(self.truncate_dim, folder.dimension)
        self._loaded: Engine | None = graph or _open_engine(folder, self._devices, precision)
        self.max_seq_length = self._loaded.folder_length if max_length is None else max_length
        self._fingerprint = folder.stamp.fingerprint
        self._counts = Counts()
        self.model_card_data = ModelCardData(self._name)

    @property
    def device(self) -> str | list[str]:
        """Where it runs: "cpu", "cuda:0" or the like, or a list of several."""
        return self._devices[0] if len(self._devices) == 1 else list(self._devices)

    def _prompt_text(self, name: str | None) -> str:
        """The text of a prompt, of the default one for None."""
        name = self.default_prompt_name if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(map(repr, self.prompts))
            raise ValueError(f"prompt_name={name!r} is not known; this model's prompts are {known}")
        return self.prompts[name]

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Scores (n, m) of each of (n, dim) vectors with each of (m, dim), by `similarity_fn_name`.

        Returns:
            A float32 array; a torch tensor when a torch tensor was given.
        """
        return _compare(similarity, embeddings1, embeddings2, self.similarity_fn_name)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Scores (n,) of vector i of (n, dim) with vector i of (n, dim); returned as `similarity` does."""
        return _compare(similarity_pairwise, embeddings1, embeddings2, self.similarity_fn_name)

    @property
    def similarity_fn_name(self) -> str:
        """How `similarity` scores: "cosine" (also when set to None), "dot", "euclidean" or "manhattan"."""
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: str | None) -> None:
        self._similarity_fn_name = check_similarity(name)

    @property
    def max_seq_length(self) -> int:
        """Tokens a text may have, special tokens counted."""
        return self._max_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        engine = self._engine
        self._max_length = check_max_length(value, engine.special_tokens, engine.positions)

    def get_embedding_dimension(self) -> int:
        """How many dimensions `encode` returns."""
        dimension = self._engine.folder.dimension
        return dimension if self.truncate_dim is None else check_truncate_dim(self.truncate_dim, dimension)

    get_sentence_embedding_dimension = get_embedding_dimension

    @property
    def fingerprint(self) -> str:
        """Which model the folder holds: the SHA-256 that `embedkit.model_folder.fingerprint` describes.

        Stamped in folders that `save` wrote; else computed when first asked for, which reads all weights.
        """
        if self._fingerprint is None:
            self._fingerprint = self._compute_fingerprint()
        return self._fingerprint

    def describe(self) -> dict[str, Any]:
        """What runs here: model, numerics, machine, and what was encoded and truncated so far."""
        engine = self._engine
        folder = engine.folder
        return {
            "model": self._name,
            "path": str(folder.path),
            "fingerprint": self.fingerprint,
            "dimension": self.get_embedding_dimension(),
            "precision": engine.precision,
            "device": self.device,
            "threads": self._threads,
            "max_length": self._max_length,
            "on_overflow": self._on_overflow,
            "pooling": list(folder.pooling.modes),
            "normalizes": folder.normalizes,
            "similarity": self.similarity_fn_name,
            "texts": self._counts.texts,
            "tokens": self._counts.tokens,
            "truncated": self._counts.truncated,
            **engine.describe(),
        }

    def save(
        self,
        folder: str | os.PathLike[str],
        precision: str = "auto",
        *,
        ranges: npt.ArrayLike | None = None,
        dequantize: bool = False,
    ) -> None:
        """Write the model, with the settings of this encoder, to a new folder.

        An fp32 folder also loads in sentence-transformers. An int8 folder keeps its source's fingerprint.

        Args:
            folder: where to; must not exist or be empty. It appears whole or not at all.
            precision: ``"fp32"``, ``"int8"``, or ``"auto"`` for that of this encoder.
            ranges: (2, dimension) minima and maxima of typical vectors, kept for int8 and uint8 embeddings.
            dequantize: let ``"fp32"`` of an int8 folder be the float32 weights that its int8 ones stand for,
                for programs that know no int8: a model of its own, with a fingerprint of its own.

        Raises:
            FileExistsError: the folder exists and is not empty.
            ValueError: fp32 is asked of int8 weights without ``dequantize``, or the ranges do not fit.
        """
        from .model_folder.saving import write_folder

        engine = self._engine
        if self._onnx is not None:
            raise ValueError(
                f"an encoder of an ONNX graph is not saved: copy its folder {engine.folder.path}, which is whole"
            )
        width = self.get_embedding_dimension()
        kept = engine.folder.ranges(width) if ranges is None else checked_ranges(ranges, width)
        if precision == "auto":
            precision = engine.stored_precision
        elif precision == "bf16":
            raise ValueError(
                "precision='bf16': folders hold fp32 or int8; save in 'fp32' and open it in bf16"
            )
        elif not (dequantize and precision == "fp32"):
            precision = check_precision(precision, engine.folder)
        write_folder(
            engine.folder,
            Path(folder),
            precision=precision,
            settings=Settings(self.prompts, self.default_prompt_name, self._max_length, self.truncate_dim),
            similarity_fn_name=self.similarity_fn_name,
            ranges=kept,
        )

    def verify(self) -> str:
        """Read the whole folder again and compare it with its stamp.

        Returns:
            The fingerprint.

        Raises:
            ValueError: the weights or the settings are not those that were saved.
        """
        engine = self._engine
        folder = engine.folder
        if folder.stamp.fingerprint is not None:
            engine.verify()
            if self._compute_fingerprint() != folder.stamp.fingerprint:
                raise ValueError(
                    f"{folder.path}: tokenizer, pooling, head, prompts or max length are not those that were "
                    "saved; fetch the model again, or save the changed model with Encoder.save"
                )
        return self.fingerprint

    def _compute_fingerprint(self) -> str:
        engine = self._engine
        folder = engine.folder
        return engine.fingerprint(
            Settings(folder.prompts, folder.default_prompt_name, engine.folder_length, folder.truncate_dim)
        )

    @property
    def _engine(self) -> Engine:
        if self._loaded is None:
            raise ValueError("this Encoder is closed; make a new one")
        return self._loaded

    def eval(self: _Self) -> _Self:
        """Return the encoder, which has no training mode; evaluators of sentence-transformers call it."""
        return self

    def close(self) -> None:
        """Free the model's memory; the encoder cannot be used after. Closing twice is allowed."""
        self._loaded = None

    def __enter__(self: _Self) -> _Self:
        """Return the encoder; leaving the block closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Name the model and its numerics."""
        if self._loaded is None:
            return f"Encoder({self._name!r}, closed)"
        return (
            f"Encoder({self._name!r}, dimension={self.get_embedding_dimension()}, "
            f"precision={self._loaded.precision!r}, device={self.device!r}, threads={self._threads})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the loaded model, which the receiver reads from its folder again."""
        engine = self._engine
        path = None if engine.folder.path == BUILTIN else engine.folder.path
        own = {"_loaded": (path, engine.precision), "_counts": None, "model_card_data": None}
        return {**self.__dict__, **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the model from where it was."""
        self.__dict__.update(state)
        path, precision = state["_loaded"]
        path = path or BUILTIN
        if self._onnx is None:
            self._loaded = _open_engine(open_folder(path), self._devices, precision)
        else:
            self._loaded = _open_graph(path, self._onnx)
        self._counts = Counts()
        self.model_card_data = ModelCardData(self._name)

    def __deepcopy__(self: _Self, memo: dict[int, Any]) -> _Self:
        """Copy the settings and share the loaded model, which never changes."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.prompts = dict(self.prompts)
        copy._counts = Counts()
        copy.model_card_data = ModelCardData(self._name)
        return copy


def _open_graph(path: Path, options: OnnxOptions) -> Engine:
    from .backends.onnx_engine import OnnxEngine

    return OnnxEngine(path, options)


def _open_engine(folder: ModelFolder, devices: Sequence[str], precision: Any) -> Engine:
    """Load the model where it is to run."""
    precision = check_precision(precision, folder, devices[0])
    if devices[0] == "cpu":
        return CoreEngine(folder, precision)
    from .backends.cuda_engine import CudaEngine

    return CudaEngine(folder, devices, precision)


def _compare(function: Callable[..., npt.NDArray[np.float32]], a: Any, b: Any, name: str) -> Any:
    tensors = [value for value in (a, b) if type(value).__module__.partition(".")[0] == "torch"]
    if not tensors:
        return function(a, b, name)
    import torch

    a, b = (value.detach().cpu().float() if isinstance(value, torch.Tensor) else value for value in (a, b))
    return torch.from_numpy(function(a, b, name)).to(tensors[0].device)
