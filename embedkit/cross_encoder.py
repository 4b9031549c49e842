"""Cross-encoders: scores of pairs of texts that the model reads together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _core
from .arguments import (
    check_device,
    check_max_length,
    check_positive,
    check_precision,
    check_threads,
    check_unsupported,
)
from .backends.core_engine import Counts, load_core, tokenizer_of
from .inputs import MAX_CHARACTERS, check_unicode, progress
from .model_folder.cross_encoder_folder import open_cross_encoder
from .model_folder.hub import resolve
from .model_folder.pair_template import PairTemplate, read_pair_template
from .model_folder.weights import core_classifier

__all__ = ["CrossEncoder"]

Scores = npt.NDArray[np.float32]
Activation = Callable[[Any], Any]

_WINDOW = 8192  # pairs handed to the core at once
_WINDOW_WITH_BAR = 512
_REMEDY = "The longer text of a pair loses its tokens first; shorten it, or cut it into passages."


class CrossEncoder:
    """A classifier of pairs of texts, on the compiled core.

    Stands in for ``sentence_transformers.CrossEncoder``: `predict` and `rank` return the same values. One may be
    used from several threads at once, is picklable, and gives the same bits for a pair whatever batch, order or
    number of threads it is scored in.

    Args:
        model: a folder with a sequence classifier of one of embedkit's architectures, or a name on the Hugging Face
            Hub. sentence-transformers calls it ``model_name_or_path``; that name is taken too.
        num_labels: None, or the number of classes that the folder must have.
        max_length: tokens a pair may have, special tokens counted; None for the folder's own. Of a longer pair the
            shorter text is kept whole where it fits into half of the room, else each text gets half of it
            ("longest_first").
        activation_fn: what is applied to the logits unless `predict` says otherwise: ``"identity"``,
            ``"sigmoid"``, or a function of them; None for the folder's own, which is the sigmoid for one class and
            nothing for several where the folder does not say.
        device: ``"auto"`` or ``"cpu"``.
        precision: ``"fp32"``, ``"bf16"`` (as in `Encoder`), ``"int8"`` (quantized when opened), or ``"auto"``
            for that of the folder.
        threads: how many threads score; None for as many as the CPU affinity and quota of the process allow.
        revision, cache_folder, token, local_files_only: as in ``CrossEncoder``, for the Hub.
        unsupported: further arguments of sentence-transformers, which must be None or False.

    Attributes:
        labels: names of the classes, in the order of the scores.
        activation_fn: as given, or the name of the folder's own.

    Raises:
        FileNotFoundError: the model, or a file of its folder, is not there.
        ValueError: an argument is not known, a file of the folder is broken, or it holds no cross-encoder.
        ImportError: a download is needed and ``huggingface-hub`` is not installed.
    """

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
        """Open a model; see the class."""
        check_unsupported("CrossEncoder", unsupported)
        if (model is None) == (model_name_or_path is None):
            raise TypeError("model and model_name_or_path are two names for the model; give one of them")
        name = model if model is not None else model_name_or_path
        assert name is not None
        self.device = check_device("auto" if device is None else device)
        self._threads = _core.default_threads() if threads is None else check_threads(threads)
        path = resolve(
            name,
            revision=revision,
            cache_folder=cache_folder,
            token=token,
            local_files_only=local_files_only,
        ).absolute()
        self._name = os.fspath(name)
        loaded = _Loaded(path, precision)
        self.labels = loaded.labels
        if num_labels is not None and num_labels != len(self.labels):
            raise ValueError(
                f"num_labels is {num_labels}, {path} has {len(self.labels)} classes: "
                f"{', '.join(self.labels[:10])}; embedkit opens trained classifiers as they are"
            )
        self.activation_fn: str | Activation = loaded.activation if activation_fn is None else activation_fn
        _activation(self.activation_fn)
        self._loaded: _Loaded | None = loaded
        self.max_seq_length = loaded.folder_length if max_length is None else max_length
        self._counts = Counts("pairs", _REMEDY)

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
        **unsupported: None,
    ) -> Any:
        """Score one pair of texts or several.

        Args:
            sentences: a pair ``(a, b)``, or a list of pairs.
            batch_size: most pairs of a batch; None leaves it to the core. It never changes a score.
            show_progress_bar: True shows one on a terminal; None if the logger "embedkit" is at INFO.
            activation_fn: applied to the logits (n, labels): ``"identity"``, ``"sigmoid"``, or a function of a
                float32 array (a torch module gets a tensor); None for the model's own.
            apply_softmax: then the softmax over the classes, if there are several.
            convert_to_numpy: False returns a list of torch tensors.
            convert_to_tensor: True returns one torch tensor; outranks ``convert_to_numpy``.
            inputs: what sentence-transformers 6 calls ``sentences``.
            unsupported: further arguments of sentence-transformers, which must be None.

        Returns:
            float32 scores (n, labels), (n,) for a model of one class, without the first axis for one pair.

        Raises:
            TypeError: an item is no pair of texts (its index is named).
            ValueError: an argument is out of range, a text is not valid Unicode, or the model is closed.
        """
        check_unsupported("predict", unsupported)
        if (sentences is None) == (inputs is None):
            raise TypeError("sentences and inputs are two names for the pairs; give one of them")
        first, second, single = _as_pairs(inputs if sentences is None else sentences)
        scores = self._scores(first, second, batch_size, show_progress_bar, activation_fn)
        if apply_softmax and scores.ndim > 1:
            scores = _softmax(scores)
        result: Any = scores
        if convert_to_tensor or not convert_to_numpy:
            import torch

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
        **unsupported: None,
    ) -> list[dict[str, Any]]:
        """Sort documents by their score with a query, best first.

        Args:
            query: the first text of each pair.
            documents: the second ones.
            top_k: how many to return; None for all.
            return_documents: whether each result holds its text.
            unsupported: further arguments of sentence-transformers, which must be None.

        Other arguments, and the errors, are those of `predict`.

        Returns:
            ``{"corpus_id": position in documents, "score": float}`` and, if asked for, ``"text"``. Equal scores
            keep the order of the documents.

        Raises:
            ValueError: the model has several classes, none of which is a rank.
        """
        check_unsupported("predict", unsupported)
        if len(self.labels) != 1:
            raise ValueError(
                f"rank needs a model of one class, this one has {', '.join(self.labels[:10])}; "
                "use predict, and sort by the class that you want"
            )
        if isinstance(documents, str):
            raise TypeError("documents must be a list of texts, not one str")
        kept = None if top_k is None else check_positive("top_k", top_k)
        texts = list(documents)
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"documents[{index}] is {type(text).__name__}, not str")
        if not isinstance(query, str):
            raise TypeError(f"query must be a str, not {type(query).__name__}")
        scores = self._scores([query] * len(texts), texts, batch_size, show_progress_bar, activation_fn)
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
        """Activated logits (n, labels), or (n,) of one class."""
        apply = _activation(self.activation_fn if activation_fn is None else activation_fn)
        loaded, length = self._model, self._max_length
        batch = 0 if batch_size is None else check_positive("batch_size", batch_size)
        options = loaded.options(length, self._threads, batch)
        logits = np.empty((len(first), len(self.labels)), np.float32)
        with progress(len(first), show_progress_bar) as advance:
            most = _WINDOW if advance is None else _WINDOW_WITH_BAR
            for start, end in _windows(first, second, most):
                logits[start:end], stats = loaded.run(first, second, start, end, options)
                self._counts.add(end - start, stats, length)
                if advance is not None:
                    advance(end - start)
        scores = np.asarray(apply(logits), np.float32)
        if len(self.labels) == 1 and scores.ndim > 1:
            scores = scores.reshape(len(scores))
        return scores

    @property
    def num_labels(self) -> int:
        """How many classes the model has."""
        return len(self.labels)

    @property
    def max_seq_length(self) -> int:
        """Tokens a pair may have, special tokens counted."""
        return self._max_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        loaded = self._model
        self._max_length = check_max_length(value, loaded.template.special_tokens, loaded.positions)

    def describe(self) -> dict[str, Any]:
        """What runs here: model, numerics, machine, and what was scored and truncated so far."""
        loaded = self._model
        return {
            "model": self._name,
            "path": str(loaded.path),
            "labels": list(self.labels),
            "activation_fn": self.activation_fn,
            "precision": loaded.precision,
            "device": self.device,
            "isa": loaded.core.isa,
            "threads": self._threads,
            "max_length": self._max_length,
            "pairs": self._counts.texts,
            "tokens": self._counts.tokens,
            "truncated": self._counts.truncated,
        }

    @property
    def _model(self) -> _Loaded:
        if self._loaded is None:
            raise ValueError("this CrossEncoder is closed; make a new one")
        return self._loaded

    def close(self) -> None:
        """Free the model's memory; it cannot be used after. Closing twice is allowed."""
        self._loaded = None

    def __enter__(self) -> CrossEncoder:
        """Return the model; leaving the block closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Name the model and its numerics."""
        if self._loaded is None:
            return f"CrossEncoder({self._name!r}, closed)"
        return (
            f"CrossEncoder({self._name!r}, labels={list(self.labels[:10])}, "
            f"precision={self._loaded.precision!r}, device={self.device!r}, threads={self._threads})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the loaded model, which the receiver reads from its folder again."""
        loaded = self._model
        return {**self.__dict__, "_loaded": (loaded.path, loaded.precision), "_counts": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the model from where it was."""
        self.__dict__.update(state)
        self._loaded = _Loaded(*state["_loaded"])
        self._counts = Counts("pairs", _REMEDY)


class _Loaded:
    """The core with one cross-encoder in it. Never changes, so that threads share it."""

    def __init__(self, path: Path, precision: str) -> None:
        """Load tokenizer, template and weights."""
        folder = open_cross_encoder(path)
        model = folder.model
        self.path = path
        self.labels = folder.labels
        self.activation = folder.activation
        self.precision = check_precision(precision, model)
        self.tokenizer = tokenizer_of(model)
        self.template: PairTemplate = read_pair_template(model.transformer, self.tokenizer)
        self.core = load_core(model, core_classifier(model, len(self.labels)), self.precision)
        self.positions = model.positions
        self.folder_length = model.default_length(
            self.template.special_tokens, self.tokenizer.model_max_length
        )
        self._token_types = folder.token_types

    def options(self, max_length: int, threads: int, batch_size: int) -> _core.EncodeOptions:
        """What the core takes for a call."""
        template = self.template
        return _core.EncodeOptions(
            threads=threads,
            batch_size=batch_size,
            max_length=max_length,
            prefix_ids=list(template.before),
            suffix_ids=list(template.behind),
            truncation_side=self.tokenizer.truncation_side,
            pair=_core.PairTemplate(
                between_ids=list(template.between),
                typed=self._token_types,
                prefix_types=list(template.before_types),
                between_types=list(template.between_types),
                suffix_types=list(template.behind_types),
                first_type=template.text_types[0],
                second_type=template.text_types[1],
            ),
        )

    def run(
        self, first: list[str], second: list[str], start: int, end: int, options: _core.EncodeOptions
    ) -> tuple[Scores, _core.Stats]:
        """Logits (end - start, labels) of pairs ``start`` to ``end``."""
        a, b = first[start:end], second[start:end]
        tokenizer = self.tokenizer
        try:
            if tokenizer.core is not None:
                return self.core.encode_pairs(a, b, tokenizer.core, options)
            ids = tokenizer.encode_batch(a), tokenizer.encode_batch(b)
            return self.core.encode_id_pairs(*ids, options)
        except (TypeError, ValueError):
            for index, pair in enumerate(zip(a, b, strict=True), start):
                for place, text in enumerate(pair):
                    check_unicode(f"pairs[{index}][{place}]", text)
            raise


def _as_pairs(pairs: Any) -> tuple[list[str], list[str], bool]:
    """The first texts, the second ones, and whether one pair was given."""
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise TypeError(f"expected a pair of texts or a list of pairs, got {type(pairs).__name__}")
    items = list(pairs)
    single = bool(items) and isinstance(items[0], str)
    first: list[str] = []
    second: list[str] = []
    for index, pair in enumerate([items] if single else items):
        if isinstance(pair, str) or not isinstance(pair, Iterable):
            raise TypeError(f"pairs[{index}] is {type(pair).__name__}, not a pair of texts")
        texts = list(pair)
        if len(texts) != 2:
            raise TypeError(
                f"pairs[{index}] holds {len(texts)} items, not two texts"
                + ("; one list of texts is no list of pairs: give [(a, b), …]" if single else "")
            )
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                hint = ": decode it first, e.g. text.decode('utf-8')" if isinstance(text, bytes) else ""
                raise TypeError(f"pairs[{index}][{place}] is {type(text).__name__}, not str{hint}")
        first.append(texts[0])
        second.append(texts[1])
    return first, second, single


def _windows(first: list[str], second: list[str], most: int) -> Iterable[tuple[int, int]]:
    """Bounds of at most ``most`` pairs and `MAX_CHARACTERS` characters."""
    start = characters = 0
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        size = len(a) + len(b)
        if index > start and (index - start == most or characters + size > MAX_CHARACTERS):
            yield start, index
            start, characters = index, 0
        characters += size
    if start < len(first):
        yield start, len(first)


def _activation(function: Any) -> Activation:
    """What to apply to the logits."""
    if function == "identity":
        return lambda logits: logits
    if function == "sigmoid":
        return _sigmoid
    if not callable(function):
        raise ValueError(
            f"activation_fn={function!r} is not known; known are 'identity', 'sigmoid', or a function"
        )
    if any(kind.__module__.partition(".")[0] == "torch" for kind in type(function).__mro__):
        return lambda logits: _through_torch(function, logits)
    result: Activation = function
    return result


def _through_torch(function: Activation, logits: Scores) -> Any:
    import torch

    return function(torch.from_numpy(logits)).detach().numpy()


def _sigmoid(logits: Scores) -> Scores:
    # In double precision, so that one score does not depend on numpy's kernel for the others beside it.
    x = logits.astype(np.float64)
    e = np.exp(-np.abs(x))
    result: Scores = (np.where(x >= 0, 1.0, e) / (1.0 + e)).astype(np.float32)
    return result


def _softmax(scores: Scores) -> Scores:
    x = scores.astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    result: Scores = (e / e.sum(axis=1, keepdims=True)).astype(np.float32)
    return result
