"""`CrossEncoder`: scores for pairs of texts, which the model reads together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from .arguments import check_device, check_positive, check_threads, check_unsupported, either
from .backends.engine import Counts
from .backends.opening import OpenOptions
from .backends.pair_engine import PairEngine
from .inputs import as_pairs, check_collection, pair_windows, progress
from .loaded_model import LoadedModel
from .model_folder.hub import HubOptions
from .output import import_torch

__all__ = ["CrossEncoder"]

Scores = npt.NDArray[np.float32]
Activation = Callable[[Any], Any]

_WINDOW = 8192  # pairs handed to the core at once
_WINDOW_WITH_BAR = 512
_INSTEAD = {
    "fit": "embedkit-train and embedkit.training train models",
    **dict.fromkeys(("save", "save_pretrained"), "copy its folder, describe()['path']"),
    **dict.fromkeys(("to", "cpu", "cuda"), "it runs on the CPU only"),
    **dict.fromkeys(("eval", "train"), "it only scores; embedkit-train and embedkit.training train models"),
    "start_multi_process_pool": "it scores in one process; set CrossEncoder(threads=...)",
    "tokenizer": "its files are in describe()['path']",
}


class CrossEncoder(LoadedModel[PairEngine]):
    """A cross-encoder that runs on the compiled core: a classifier or regressor of pairs of texts.

    A drop-in replacement for ``sentence_transformers.CrossEncoder``: `predict` and `rank` return the same values. A
    cross-encoder is thread-safe and picklable. The folder's default prompt, if it has one, is put before the first text
    of each pair, or is the system message of the chat template. The scores of a pair are bitwise the same in any batch,
    in any order and on any number of threads.

    Args:
        model: a folder with a sequence classifier of a supported architecture or with a language model that answers yes
            or no, or a name on the Hugging Face Hub. ``model_name_or_path``, the name in sentence-transformers, is
            accepted too.
        num_labels: None, or the number of classes that the folder must have.
        max_length: maximum tokens of a pair, special tokens included; None for the folder's own. Longer pairs are
            truncated as transformers' "longest_first" does: a text that fits into half of the room is kept whole,
            otherwise each text gets half. With a chat template the whole is cut at its end, or at its beginning if
            the tokenizer truncates there, and the template's own end is kept.
        activation_fn: applied to the logits unless `predict` is given another: ``"identity"``, ``"sigmoid"``, or a
            function; None for the folder's own, which defaults to sigmoid for one class and identity for several.
        device: ``"cpu"``; ``"auto"`` means the same.
        precision: ``"fp32"``, ``"bf16"``, ``"int8"`` (an fp32 folder is quantized when opened), or ``"auto"`` for the
            folder's own; see `Encoder`.
        threads: number of threads; None means as many as the process may use by its CPU affinity and quota.
        revision, cache_folder, token, local_files_only: for the Hub, as in sentence-transformers.
        unsupported: other arguments of sentence-transformers; they must be None or False.

    Attributes:
        labels: names of the classes, in the order of the scores.
        activation_fn: as given, or the name of the folder's own.

    Raises:
        FileNotFoundError: the model or one of its files does not exist.
        ValueError: an argument is invalid, a file of the folder is broken, or it does not hold a cross-encoder.
        ImportError: a download is needed and ``huggingface-hub`` is not installed, or the folder has a chat template
            and ``jinja2`` is not.
    """

    _organization = "cross-encoder"
    _instead = _INSTEAD

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        num_labels: int | None = None,
        max_length: int | None = None,
        activation_fn: str | Activation | None = None,
        device: str = "auto",
        *,
        precision: str = "auto",
        threads: int | None = None,
        revision: str | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        model_name_or_path: str | os.PathLike[str] | None = None,
        **unsupported: Literal[False] | None,
    ) -> None:
        """Open a model."""
        check_unsupported("CrossEncoder", unsupported)
        name = either("the model", model=model, model_name_or_path=model_name_or_path)
        if name is None:
            raise TypeError("CrossEncoder needs a model: a folder, or a name on the Hugging Face Hub")
        devices = (check_device("auto" if device is None else device),)
        options = OpenOptions(None if threads is None else check_threads(threads), devices, precision)
        super().__init__(
            name, HubOptions(revision, cache_folder, token, local_files_only), options, max_length
        )
        self.labels = self._engine.labels
        if num_labels is not None and num_labels != len(self.labels):
            classes = f"{len(self.labels)} {'class' if len(self.labels) == 1 else 'classes'}"
            raise ValueError(
                f"num_labels is {num_labels}, {self._engine.folder.path} has {classes}: "
                f"{', '.join(self.labels[:10])}; embedkit opens trained classifiers unchanged"
            )
        self.activation_fn: str | Activation = (
            self._engine.activation if activation_fn is None else activation_fn
        )
        _activation(self.activation_fn)

    @overload
    def predict(  # of one pair: a number, or an array for several classes
        self,
        sentences: tuple[str, ...] | list[str] | None = ...,
        *,
        batch_size: int | None = ...,
        show_progress_bar: bool | None = ...,
        activation_fn: str | Activation | None = ...,
        apply_softmax: bool = ...,
        convert_to_numpy: bool = ...,
        convert_to_tensor: bool = ...,
        inputs: tuple[str, ...] | list[str] | None = ...,
        device: str | None = ...,
        **unsupported: None,
    ) -> Any: ...
    @overload
    def predict(
        self,
        sentences: Iterable[Sequence[str]] | Sequence[str] | None = ...,
        *,
        batch_size: int | None = ...,
        show_progress_bar: bool | None = ...,
        activation_fn: str | Activation | None = ...,
        apply_softmax: bool = ...,
        convert_to_numpy: Literal[True] = ...,
        convert_to_tensor: Literal[False] = ...,
        inputs: Iterable[Sequence[str]] | Sequence[str] | None = ...,
        device: str | None = ...,
    ) -> npt.NDArray[np.float32]: ...
    @overload
    def predict(
        self,
        sentences: Iterable[Sequence[str]] | Sequence[str] | None = ...,
        *,
        batch_size: int | None = ...,
        show_progress_bar: bool | None = ...,
        activation_fn: str | Activation | None = ...,
        apply_softmax: bool = ...,
        convert_to_numpy: bool = ...,
        convert_to_tensor: bool = ...,
        inputs: Iterable[Sequence[str]] | Sequence[str] | None = ...,
        device: str | None = ...,
        **unsupported: None,
    ) -> Any: ...

    def predict(
        self,
        sentences: Iterable[Sequence[str]] | Sequence[str] | None = None,
        *,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: str | Activation | None = None,
        apply_softmax: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        inputs: Iterable[Sequence[str]] | Sequence[str] | None = None,
        device: str | None = None,
        **unsupported: None,
    ) -> Any:
        """Score one pair of texts or several.

        Args:
            sentences: a pair ``(a, b)``, or a list of pairs.
            batch_size: maximum pairs in a batch; None lets the core choose. It does not affect the scores.
            show_progress_bar: True shows a progress bar on a terminal or in a notebook; None does on a terminal if the
                logger "embedkit" is at level INFO or DEBUG.
            activation_fn: applied to the logits (n, labels): ``"identity"``, ``"sigmoid"``, or a function of a
                float32 array (modules and functions of torch are given a tensor); None for the model's own.
            apply_softmax: apply the softmax over the classes afterwards, if there are several.
            convert_to_numpy: False returns a list of torch tensors.
            convert_to_tensor: True returns one torch tensor; takes precedence over ``convert_to_numpy``.
            inputs: the name of ``sentences`` in sentence-transformers 6.
            device: None, or the model's own, "cpu".
            unsupported: other arguments of sentence-transformers; they must be None.

        Returns:
            float32 scores: (n, labels), or (n,) for a model with one class; without the first axis for one pair.

        Raises:
            TypeError: an item is not a pair of texts; the message gives its index.
            ValueError: an argument is invalid, a text is not valid Unicode, or the model is closed.
            ImportError: torch tensors are requested, and torch is not installed.
        """
        check_unsupported("predict", unsupported)
        if device is not None:
            check_device(device)
        torch = import_torch() if convert_to_tensor or not convert_to_numpy else None
        first, second, single = as_pairs(either("the pairs", sentences=sentences, inputs=inputs))
        scores = self._scores(first, second, batch_size, show_progress_bar, activation_fn)
        if apply_softmax and scores.ndim > 1:
            scores = _softmax(scores)
        result: Any = scores
        if torch is not None:
            result = torch.from_numpy(scores)
            if not convert_to_tensor:
                result = list(result)
        return result[0] if single else result

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: str | Activation | None = None,
        convert_to_numpy: bool = True,
        device: str | None = None,
        **unsupported: None,
    ) -> list[dict[str, Any]]:
        """Rank documents by their score with a query, best first.

        Args:
            query: the first text of each pair.
            documents: the second texts.
            top_k: maximum number of results; None for all.
            return_documents: include the text in each result.
            convert_to_numpy: of sentence-transformers; the result is a list of dicts all the same.
            unsupported: other arguments of sentence-transformers; they must be None.

        Other arguments and errors are those of `predict`.

        Returns:
            One ``{"corpus_id": position in documents, "score": float}`` for each document, with ``"text"`` if
            requested. Ties keep the order of the documents.

        Raises:
            ValueError: the model has several classes.
        """
        check_unsupported("rank", unsupported)
        if device is not None:
            check_device(device)
        if len(self.labels) != 1:
            raise ValueError(
                f"rank needs a model with one class, and this one has {', '.join(self.labels[:10])}; "
                "use predict and sort by the class you want"
            )
        if isinstance(documents, str):
            raise TypeError("documents must be a list of texts, not a str")
        check_collection(documents, "a list of texts as documents")
        kept = None if top_k is None else check_positive("top_k", top_k)
        texts = list(documents)
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"documents[{index}] is {type(text).__name__}, not str")
        if not isinstance(query, str):
            raise TypeError(f"query must be a str, not {type(query).__name__}")
        scores = self._scores([query] * len(texts), texts, batch_size, show_progress_bar, activation_fn)
        if scores.ndim != 1:
            raise ValueError(
                f"activation_fn returned {scores.shape} for {len(texts)} texts: rank needs one score each"
            )
        order = np.argsort(-scores, kind="stable")[:kept]
        ranked: list[dict[str, Any]] = [{"corpus_id": int(i), "score": float(scores[i])} for i in order]
        if return_documents:
            for hit in ranked:
                hit["text"] = texts[hit["corpus_id"]]
        return ranked

    def _scores(
        self,
        first: list[str],
        second: list[str],
        batch_size: int | None,
        show_progress_bar: bool | None,
        activation_fn: str | Activation | None,
    ) -> Scores:
        """Logits after the activation: (n, labels), or (n,) for one class."""
        apply = _activation(self.activation_fn if activation_fn is None else activation_fn)
        engine, length = self._engine, self._max_length
        batch = 0 if batch_size is None else check_positive("batch_size", batch_size)
        options = engine.options(length, self._threads, batch)
        logits = np.empty((len(first), len(self.labels)), np.float32)
        with progress(len(first), show_progress_bar) as advance:
            most = _WINDOW if advance is None else _WINDOW_WITH_BAR
            for start, end in pair_windows(first, second, most):
                logits[start:end], stats = engine.run(first, second, start, end, options)
                self._counts.add(end - start, stats, length)
                if advance is not None:
                    advance(end - start)
        result = apply(logits)
        scores: Scores = np.asarray(np.nan if result is None else result, np.float32)
        if scores.ndim == 0 or len(scores) != len(logits):
            kind = "None" if result is None else f"an array {scores.shape}"
            raise ValueError(
                f"activation_fn returned {kind} for logits {logits.shape}: it must keep the rows"
            )
        if len(self.labels) == 1 and scores.shape[1:] == (1,):
            scores = scores[:, 0]
        return scores

    @property
    def num_labels(self) -> int:
        """The number of classes."""
        return len(self.labels)

    @property
    def max_length(self) -> int:
        """`max_seq_length`, by its older name in sentence-transformers."""
        return self.max_seq_length

    @max_length.setter
    def max_length(self, value: int) -> None:
        self.max_seq_length = value

    def describe(self) -> dict[str, Any]:
        """Report model, numerics and machine, and how many pairs were scored and truncated so far."""
        return {**super().describe(), "labels": list(self.labels), "activation_fn": self.activation_fn}

    def _open(self, path: Path, options: OpenOptions) -> PairEngine:
        return PairEngine(path, options.precision)

    def _start(self) -> None:
        super()._start()
        self._counts = Counts("pairs", self._engine.remedy)

    def _summary(self) -> str:
        return f"labels={list(self.labels[:10])}"


def _activation(function: Any) -> Activation:
    """The function to apply to the logits."""
    if function == "identity":
        return lambda logits: logits
    if function == "sigmoid":
        return _sigmoid
    if not callable(function):
        raise ValueError(
            f"unknown activation_fn={function!r}; expected one of 'identity', 'sigmoid', or a function"
        )
    if _of_torch(function):
        return lambda logits: _through_torch(function, logits)
    result: Activation = function
    return result


def _of_torch(function: Any) -> bool:
    """Whether ``function`` is a module, a function or a method of torch, which takes tensors only."""
    owner = getattr(function, "__self__", None)  # has a module where a function written in C has none
    kinds = (function, owner, *type(function).__mro__, *type(owner).__mro__)
    names = (getattr(kind, "__module__", None) for kind in kinds)
    return any(isinstance(name, str) and name.partition(".")[0] == "torch" for name in names)


def _through_torch(function: Activation, logits: Scores) -> Any:
    import torch

    return function(torch.from_numpy(logits)).detach().numpy()


def _sigmoid(logits: Scores) -> Scores:
    # In double precision, so that a score does not depend on the numpy kernel chosen for the scores beside it.
    x = logits.astype(np.float64)
    e = np.exp(-np.abs(x))
    result: Scores = (np.where(x >= 0, 1.0, e) / (1.0 + e)).astype(np.float32)
    return result


def _softmax(scores: Scores) -> Scores:
    x = scores.astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    result: Scores = (e / e.sum(axis=1, keepdims=True)).astype(np.float32)
    return result
