"""`SentenceModel`: an opened model's settings, the plan of a call, and its folder; `Encoder` adds the encoding."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from . import _core
from .arguments import (
    check_positive,
    check_precision,
    check_prompts,
    check_ranges,
    check_similarity,
    check_truncate_dim,
)
from .backends.engine import Counts, Engine, Plan
from .backends.opening import OpenOptions, open_engine
from .backends.stage import Request
from .files import expanded
from .inputs import check_unicode
from .loaded_model import LoadedModel
from .model_folder.folder import Settings
from .output import checked_ranges, similarity, similarity_pairwise, with_tensors

__all__ = ["SentenceModel"]

_Self = TypeVar("_Self", bound="SentenceModel")


class SentenceModel(LoadedModel[Engine]):
    """A model of sentence embeddings; base class of `Encoder`, which documents the settings and encodes."""

    _on_overflow: str

    def _configure(
        self,
        prompts: Mapping[str, str] | None,
        default_prompt_name: str | None,
        similarity_fn_name: str | None,
        truncate_dim: int | None,
    ) -> None:
        """Set what the caller gave; None for the folder's own."""
        folder = self._engine.folder
        # sentence-transformers gives every model these two, so that they can always be asked for.
        given = check_prompts(prompts or {})
        own = {name: text for name, text in folder.prompts.items() if (prompts or {}).get(name, "") is None}
        self.prompts = {"query": "", "document": "", **folder.prompts, **given, **own}
        if not default_prompt_name:
            folder.check_default_prompt(self.prompts)
        self.default_prompt_name = default_prompt_name or folder.default_prompt_name
        self._prompt_text(None)
        self.similarity_fn_name = similarity_fn_name or folder.similarity_fn_name
        self.truncate_dim = truncate_dim if truncate_dim is not None else folder.truncate_dim
        if self.truncate_dim is not None:
            self.truncate_dim = check_truncate_dim(self.truncate_dim, folder.dimension)
        self._fingerprint = folder.stamp.fingerprint
        self._pickled: str | None = None  # the fingerprint where it was pickled

    def _plan(
        self,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        normalize: bool = False,
        truncate_dim: int | None = None,
        dtype: str = "float32",
        ranges: npt.ArrayLike | None = None,
        token_embeddings: bool = False,
        on_device: bool = False,
        engine: Engine | None = None,
    ) -> Plan:
        """Check the arguments of a call once, before any text is read; ``engine`` is that of the call's task."""
        engine = engine or self._engine
        length = self._length_on(engine)
        dimension = engine.folder.dimension
        kept = self.truncate_dim if truncate_dim is None else truncate_dim
        width = dimension if kept is None else check_truncate_dim(kept, dimension)
        if prompt is None:
            prompt = self._prompt_text(prompt_name)
        elif not isinstance(prompt, str):
            raise TypeError(f"prompt must be a str, not {type(prompt).__name__}")
        check_unicode("the prompt", prompt)
        tokenizer = engine.tokenizer
        options = _core.EncodeOptions(
            threads=self._threads,
            batch_size=0 if batch_size is None else check_positive("batch_size", batch_size),
            prefix_ids=list(tokenizer.prefix_ids),
            suffix_ids=list(tokenizer.suffix_ids),
            max_length=length,
            overflow=self._on_overflow,
            truncation_side=tokenizer.truncation_side,
            pool_skip=engine.prompt_tokens(prompt),
            unknown_id=-1 if tokenizer.unknown_id is None else tokenizer.unknown_id,
            truncate_dim=0 if width == dimension else width,
            normalize=bool(normalize),
            token_embeddings=token_embeddings,
        )
        request = Request(
            width,
            normalize=bool(normalize),
            dtype=dtype,
            ranges=check_ranges(dtype, ranges, engine.folder, width, normalize=bool(normalize)),
            token_embeddings=token_embeddings,
            on_device=on_device and engine.tensors,
        )
        return Plan(prompt, options, request)

    @property
    def _own_length(self) -> int | None:
        """The maximum length that the caller has set; None for the folder's own."""
        engine = self._engine
        # The same number may be another one than that of a further route.
        other = self._max_length != engine.folder_length or (
            self._length_given and bool(engine.folder.routes)
        )
        return self._max_length if other else None

    def _length_on(self, engine: Engine) -> int:
        """The maximum length on a route: its own, unless the caller has set one."""
        length = self._own_length
        return engine.folder_length if length is None else min(length, engine.positions)

    def _prompt_text(self, name: str | None) -> str:
        """The text of a prompt; None for the default one."""
        name = self.default_prompt_name if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(map(repr, self.prompts))
            raise ValueError(f"unknown prompt_name={name!r}; this model's prompts are {known}")
        text: Any = self.prompts[name]
        if not isinstance(text, str | None):  # put into the dict
            raise TypeError(f"prompts[{name!r}] must be a str, not {type(text).__name__}")
        return text or ""

    @overload
    def similarity(
        self, embeddings1: npt.NDArray[Any], embeddings2: npt.NDArray[Any]
    ) -> npt.NDArray[np.float32]: ...
    @overload
    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any: ...

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Scores (n, m) of each of (n, dim) embeddings with each of (m, dim), by `similarity_fn_name`.

        Returns:
            A float32 array; a torch tensor if a torch tensor was given.
        """
        return with_tensors(similarity, embeddings1, embeddings2, self.similarity_fn_name)

    @overload
    def similarity_pairwise(
        self, embeddings1: npt.NDArray[Any], embeddings2: npt.NDArray[Any]
    ) -> npt.NDArray[np.float32]: ...
    @overload
    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any: ...

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Scores (n,) of row i of (n, dim) embeddings with row i of (n, dim), or with the one of (1, dim).

        Returned as by `similarity`.
        """
        return with_tensors(similarity_pairwise, embeddings1, embeddings2, self.similarity_fn_name)

    @property
    def prompts(self) -> dict[str, str]:
        """Prompt name -> text put before each input."""
        return self._prompts

    @prompts.setter
    def prompts(self, prompts: Mapping[str, str]) -> None:
        self._prompts = check_prompts(prompts)

    @property
    def similarity_fn_name(self) -> str:
        """How `similarity` scores: "cosine" (also if set to None), "dot", "euclidean" or "manhattan"."""
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: str | None) -> None:
        self._similarity_fn_name = check_similarity(name)

    def get_embedding_dimension(self) -> int:
        """The number of dimensions that `encode` returns."""
        dimension = self._engine.folder.dimension
        return dimension if self.truncate_dim is None else check_truncate_dim(self.truncate_dim, dimension)

    get_sentence_embedding_dimension = get_embedding_dimension

    @property
    def fingerprint(self) -> str:
        """SHA-256 that identifies the model; see `embedkit.model_folder.fingerprint`.

        `save` writes it into the folder. For other folders it is computed on first use, which reads all weights.
        """
        if self._fingerprint is None:
            engine = self._engine
            engine.folder.check_unchanged()  # before it reads all weights in vain
            found = engine.fingerprint()
            engine.folder.check_unchanged()  # the model in memory is not the one on disk then
            self._check_pickled(self._pickled, found)
            self._fingerprint = found
        return self._fingerprint

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the model from its folder; its fingerprint is known again once the weights there were read for it."""
        super().__setstate__(state)
        self._pickled, self._fingerprint = self._fingerprint, self._engine.folder.stamp.fingerprint

    def describe(self) -> dict[str, Any]:
        """Report model, numerics and machine, and how many texts were encoded and truncated so far.

        The fingerprint is None if it is not known yet and the folder is gone or has changed.

        Raises:
            ValueError: the folder holds another model than where the encoder was pickled.
        """
        folder = self._engine.folder
        fingerprint = self._fingerprint
        if fingerprint is None:
            try:
                folder.check_unchanged()
            except ValueError:
                pass
            else:
                fingerprint = self.fingerprint
        return {
            **super().describe(),
            "fingerprint": fingerprint,
            "dimension": self.get_embedding_dimension(),
            "on_overflow": self._on_overflow,
            "pooling": list(folder.pooling.modes),
            "normalizes": folder.normalizes,
            "similarity": self.similarity_fn_name,
            "index_precision": folder.index_precision,
        }

    def save(
        self,
        folder: str | os.PathLike[str],
        precision: str = "auto",
        *,
        ranges: npt.ArrayLike | None = None,
        dequantize: bool = False,
    ) -> None:
        """Write the model with the settings of this encoder to a new folder.

        An fp32 folder also loads in sentence-transformers. An int8 folder keeps the fingerprint of its source.

        Args:
            folder: the folder to write; it must not exist or be empty. It is written atomically. "~" is the home
                folder.
            precision: ``"fp32"``, ``"int8"``, or ``"auto"`` for the encoder's own.
            ranges: (2, dimension) minima and maxima of typical embeddings, saved for int8 and uint8 output.
            dequantize: with ``"fp32"`` and an int8 folder, multiply the int8 weights out to float32, for programs
                that cannot read int8. The result is a different model with a different fingerprint.

        Raises:
            FileExistsError: the folder exists and is not empty.
            TypeError: a prompt is not a str.
            ValueError: fp32 is requested of int8 weights without ``dequantize``, the ranges do not fit, or
                `default_prompt_name` is none of `prompts`.
        """
        from .model_folder.saving import write_folder

        engine = self._engine
        if self._options.onnx is not None:
            raise ValueError(
                f"an encoder with the ONNX backend cannot be saved; copy its folder {engine.folder.path} instead"
            )
        settings = self._settings()
        width = self.get_embedding_dimension()
        kept = engine.folder.ranges(width) if ranges is None else checked_ranges(ranges, width)
        if precision == "auto":
            precision = engine.stored_precision
        elif precision == "bf16":
            raise ValueError(
                "precision='bf16': folders hold fp32 or int8 weights; save the model in 'fp32' and open it in bf16"
            )
        elif precision == "fp32" and engine.folder.precision == "int8" and not dequantize:
            raise ValueError(
                f"precision='fp32': {engine.folder.path} holds int8 weights and no fp32 weights; save with "
                "dequantize=True, which multiplies them out to another model, or save the fp32 model it was made from"
            )
        elif not (dequantize and precision == "fp32"):
            precision = check_precision(precision, engine.folder)
        write_folder(
            engine.folder,
            expanded(folder),
            precision=precision,
            settings=settings,
            ranges=kept,
            route_length=self._own_length,
        )

    def _settings(self) -> Settings:
        """Those of this encoder, checked, for a folder."""
        self._prompt_text(None)  # raises if there is no such default prompt: the folder could not be opened
        prompts = check_prompts(self.prompts)
        for name, text in prompts.items():
            check_unicode(f"prompts[{name!r}]", text)
        return Settings(
            prompts,
            self.default_prompt_name,
            self._max_length,
            None if self.truncate_dim is None else self.get_embedding_dimension(),
            self.similarity_fn_name,
        )

    def verify(self) -> str:
        """Read the whole folder again and compare it with the fingerprint that `save` wrote into it.

        Returns:
            The fingerprint.

        Raises:
            ValueError: the weights or the settings have changed since the folder was saved.
        """
        self._engine.verify()
        return self.fingerprint

    def _open(self, path: Path, options: OpenOptions) -> Engine:
        return open_engine(path, options)

    def _start(self) -> None:
        super()._start()
        self._counts = Counts()

    def _summary(self) -> str:
        return f"dimension={self.get_embedding_dimension()}"

    def __getstate__(self) -> dict[str, Any]:
        """As of any model, with the fingerprint if it is known."""
        return {**super().__getstate__(), "_fingerprint": self._fingerprint or self._pickled}

    def __deepcopy__(self: _Self, memo: dict[int, Any]) -> _Self:
        """Copy the settings and share the engine."""
        copy = super().__deepcopy__(memo)
        copy.prompts = dict(self.prompts)
        return copy
