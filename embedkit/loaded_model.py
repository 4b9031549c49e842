"""The life cycle that `Encoder` and `CrossEncoder` share: open, describe, copy, pickle, close."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from ._core import release_freed_memory
from .arguments import check_max_length
from .backends.engine import Counts
from .backends.opening import OpenOptions
from .model_folder.folder import BUILTIN, ModelFolder
from .model_folder.hub import HubOptions, resolve
from .model_folder.model_card import ModelCardData
from .model_folder.tokenizer import Tokenizer

__all__ = ["LoadedModel"]

Model = str | os.PathLike[str] | None


class LoadedEngine(Protocol):
    """What every engine has: `backends.engine.Engine` and `backends.pair_engine.PairEngine`."""

    @property
    def folder(self) -> ModelFolder: ...
    @property
    def precision(self) -> str: ...
    @property
    def positions(self) -> int: ...
    @property
    def special_tokens(self) -> int: ...
    @property
    def folder_length(self) -> int: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    def describe(self) -> dict[str, Any]: ...


_Engine = TypeVar("_Engine", bound=LoadedEngine)
_Self = TypeVar("_Self", bound="LoadedModel[Any]")


class LoadedModel(ABC, Generic[_Engine]):
    """A model opened from a folder, the Hub, or the package itself.

    Subclasses choose the engine that runs it. The engine is immutable: threads and copies share it. A pickle holds
    the settings and the folder's path; the receiver loads the weights from there.
    """

    _counts: Counts
    _organization: ClassVar[str] = "sentence-transformers"
    """That of names on the Hub without one."""
    _instead: ClassVar[Mapping[str, str]] = {}
    """What only the class of sentence-transformers has, and what to use instead."""

    def __init__(self, model: Model, hub: HubOptions, options: OpenOptions, max_length: int | None) -> None:
        """Open ``model``, None for the built-in one; ``max_length`` None for the folder's own."""
        self._name = BUILTIN.name if model is None else os.fspath(model)
        self._options = options
        self._threads = options.thread_count
        path = BUILTIN
        if model is not None:  # absolute, so that a copy finds it from another working directory
            path = resolve(model, hub, graph=options.graph, organization=self._organization).absolute()
        self._loaded: _Engine | None = self._open(path, options)
        release_freed_memory()  # of reading the weights
        self.max_seq_length = self._loaded.folder_length if max_length is None else max_length
        self._length_given = max_length is not None
        self._start()

    @abstractmethod
    def _open(self, path: Path, options: OpenOptions) -> _Engine:
        """Load the model folder."""

    @abstractmethod
    def _summary(self) -> str:
        """What `repr` shows of this model in particular."""

    def _start(self) -> None:
        """Initialize what a copy does not inherit; subclasses add `_counts`."""
        self.model_card_data = ModelCardData(self._name)

    if not TYPE_CHECKING:  # it would have every attribute

        def __getattr__(self, name):
            """Say what to use instead of what only the class of sentence-transformers has."""
            instead = self._instead.get(name)
            told = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(told if instead is None else f"{told}; {instead}")

    @property
    def _engine(self) -> _Engine:
        if self._loaded is None:
            raise ValueError(f"this {type(self).__name__} is closed; open a new one")
        return self._loaded

    @property
    def device(self) -> str | list[str]:
        """The device, e.g. ``"cpu"`` or ``"cuda:0"``; a list of names if there are several."""
        names = self._options.devices
        return names[0] if len(names) == 1 else list(names)

    @property
    def max_seq_length(self) -> int:
        """Maximum tokens of an input, special tokens included; longer inputs are truncated by default."""
        return self._max_length

    # pyright refuses to assign to a property of a generic class through a subclass, without the type of self
    @max_seq_length.setter
    def max_seq_length(self: LoadedModel[Any], value: int) -> None:
        engine = self._engine
        self._max_length = check_max_length(value, engine.special_tokens, engine.positions)
        self._length_given = True

    def describe(self) -> dict[str, Any]:
        """Report the model, its numerics, the machine, and how many inputs were processed and truncated so far."""
        engine = self._engine
        return {
            "model": self._name,
            "path": str(engine.folder.path),
            "precision": engine.precision,
            "device": self.device,
            "threads": self._threads,
            "max_length": self._max_length,
            "tokenizer": "tokenizers" if engine.tokenizer.core is None else "core",
            **self._counts.describe(),
            **engine.describe(),
        }

    def close(self) -> None:
        """Free the model's memory. A closed model cannot be used again; closing it twice is allowed."""
        self._loaded = None
        release_freed_memory()

    def __enter__(self: _Self) -> _Self:
        """Return the model; leaving the block closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the model."""
        self.close()

    def __repr__(self) -> str:
        """Name the model and its numerics."""
        name = type(self).__name__
        if self._loaded is None:
            return f"{name}({self._name!r}, closed)"
        return (
            f"{name}({self._name!r}, {self._summary()}, precision={self._loaded.precision!r}, "
            f"device={self.device!r}, threads={self._threads})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """The settings, the path, the precision and the folder's identity; None for the path of the built-in model.

        The results of evaluators stay here.
        """
        engine = self._engine
        path = None if engine.folder.path == BUILTIN else engine.folder.path
        # Routes may have chosen different ones.
        one = not getattr(engine.folder, "routes", None)
        options = replace(self._options, precision=engine.precision) if one else self._options
        return {
            **self.__dict__,
            "_options": options,
            "_loaded": path,
            "_counts": None,
            "model_card_data": None,
            "_stamped": engine.folder.identity,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the model from its folder, whose files may be others where it is loaded.

        Another model whose files have the same names and sizes passes, unless a fingerprint was known.

        Raises:
            ValueError: the folder holds another model than where it was pickled.
        """
        state = {"_length_given": False, "_stamped": None, **state}  # pickles of earlier versions have none
        expected = state.pop("_stamped")
        self.__dict__.update(state)
        self._threads = self._options.thread_count  # of this machine
        self._loaded = self._open(state["_loaded"] or BUILTIN, self._options)
        self._check_pickled(expected, self._loaded.folder.identity)
        release_freed_memory()
        self._start()

    def _check_pickled(self, expected: object, found: object) -> None:
        """Raise ValueError if ``found`` is not what a pickle says; ``expected`` is None if the pickle does not say."""
        if expected not in (None, found):
            raise ValueError(f"{self._name}: the folder holds another model than where it was pickled")

    def __copy__(self: _Self) -> _Self:
        """As `__deepcopy__`: a copy never loads the weights again."""
        return self.__deepcopy__({})

    def __deepcopy__(self: _Self, memo: dict[int, Any]) -> _Self:
        """Copy the settings and share the engine."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._start()
        return copy
