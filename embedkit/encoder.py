"""`Encoder`: texts to embeddings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from . import _core
from .arguments import (
    check_dtype,
    check_overflow,
    check_positive,
    check_precision,
    check_prompts,
    check_ranges,
    check_same_device,
    check_similarity,
    check_truncate_dim,
    check_unsupported,
    either,
)
from .backends.engine import Counts, Engine, Plan
from .backends.opening import OpenOptions, open_engine
from .inputs import as_texts, check_unicode, progress, windows
from .loaded_model import HubOptions, LoadedModel
from .model_folder.folder import Settings
from .model_folder.model_card import ModelCardData
from .output import checked_ranges, similarity, similarity_pairwise, to_torch, with_tensors

if TYPE_CHECKING:
    from .backends.onnx_session import Provider

__all__ = ["Encoder"]

Texts = Iterable[str]
Vectors = npt.NDArray[Any]
Dtype = Literal["float32", "int8", "uint8", "binary", "ubinary"]
_F = TypeVar("_F")
_Self = TypeVar("_Self", bound="Encoder")

_WINDOW = 8192  # texts handed to the core at once: enough to sort by length, few enough to stay in memory
_WINDOW_WITH_BAR = 1024  # so that the progress bar moves on slow models too


def _signature_of(method: _F) -> Callable[[Callable[..., Any]], _F]:
    """Give a method the type of another one."""
    return lambda function: cast(_F, function)


class Encoder(LoadedModel[Engine]):
    """A sentence encoder that runs on the compiled core, on CUDA devices, or on ONNX Runtime.

    A drop-in replacement for ``sentence_transformers.SentenceTransformer``: `encode` and its variants take the same
    arguments and return the same values. An encoder is thread-safe and picklable. On a CPU the embedding of a text
    is bitwise the same in any batch, in any order and on any number of threads.

    Args:
        model: a model folder, a name on the Hugging Face Hub, or None for the built-in model.
            ``model_name_or_path``, the name in sentence-transformers, is accepted too.
        device: ``"cpu"``, ``"cuda"`` (the current device), ``"cuda:1"``, or a list of CUDA devices that share the
            texts; ``"auto"`` means ``"cpu"``. CUDA needs PyTorch and Triton: ``pip install 'embedkit[gpu]'``.
        precision: on a CPU ``"fp32"`` or ``"int8"`` (an fp32 folder is quantized when opened); ``"auto"`` means the
            folder's own. On CUDA ``"fp32"``, ``"fp16"``, ``"bf16"``, or ``"fp8"`` and ``"int8"`` for 8-bit matrix
            products (cosine to fp32 about 0.998); ``"auto"`` means the 16-bit type that is closer to fp32 on a few
            sample texts, and fp32 below compute capability 8.0.
        threads: number of threads for encoding (on CUDA, for tokenization); None means as many as the process may
            use by its CPU affinity and quota.
        max_length: maximum tokens of a text, special tokens included; None for the folder's own.
        on_overflow: what to do with longer texts. ``"truncate"`` cuts them, counts them in `describe` and warns
            once; ``"error"`` raises ValueError; ``"window"`` encodes windows of ``max_length`` tokens and returns
            their mean, weighted by tokens and normalized again if the folder normalizes.
        revision, cache_folder, token, local_files_only: for the Hub, as in ``SentenceTransformer``.
        prompts: prompt name -> text put before each input; takes precedence over the folder's prompts.
        default_prompt_name: the prompt that `encode` uses when none is given.
        similarity_fn_name: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"manhattan"``; None for the folder's own.
        truncate_dim: number of leading dimensions to keep; None for the folder's own.
        backend: ``"auto"`` for embedkit's own backends, ``"onnx"`` for a graph on ONNX Runtime, exported by
            ``embedkit-model export``, Optimum or sentence-transformers, of any model type. Devices are then
            ``"cpu"`` and ``"cuda"`` (with onnxruntime-gpu); the precision is the graph's.
        providers: execution providers of ONNX Runtime, as names or (name, options); None for the device's. A
            provider that is not available is an error.
        onnx_file: the graph to run, e.g. ``"onnx/model_O3.onnx"``; None for the folder's only one, or ``model.onnx``.
        unsupported: other arguments of ``SentenceTransformer``; they must be None or False.

    Attributes:
        prompts: prompt name -> text; always has "query" and "document".
        default_prompt_name: the prompt that `encode` uses when none is given, or None.
        truncate_dim: number of leading dimensions that `encode` keeps; None for all.

    Raises:
        FileNotFoundError: the model or one of its files does not exist.
        ValueError: an argument is invalid, a device is not available, or a file of the folder is broken.
        ImportError: a download needs ``huggingface-hub``, a CUDA device PyTorch and Triton, or the ONNX backend
            ``onnxruntime``, and it is not installed.
    """

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
        """Open a model."""
        check_unsupported("Encoder", unsupported)
        model = either("the model", model=model, model_name_or_path=model_name_or_path)
        self._on_overflow = check_overflow(on_overflow)
        options = OpenOptions.checked(
            device=device,
            precision=precision,
            threads=threads,
            backend=backend,
            providers=providers,
            onnx_file=onnx_file,
        )
        super().__init__(
            model, HubOptions(revision, cache_folder, token, local_files_only), options, max_length
        )
        folder = self._engine.folder
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
        self._fingerprint = folder.stamp.fingerprint

    # fmt: off
    @overload
    def encode(
        self, sentences: str | Texts, prompt_name: str | None = ..., prompt: str | None = ...,
        batch_size: int | None = ..., show_progress_bar: bool | None = ...,
        output_value: Literal["sentence_embedding"] = ..., precision: Dtype | None = ...,
        convert_to_numpy: Literal[True] = ..., convert_to_tensor: Literal[False] = ...,
        device: str | None = ..., normalize_embeddings: bool = ..., truncate_dim: int | None = ...,
        *, output_dtype: Dtype | None = ..., ranges: npt.ArrayLike | None = ...,
    ) -> Vectors: ...
    @overload
    def encode(  # type: ignore[overload-overlap]  # a str is itself an iterable of str
        self, sentences: str, prompt_name: str | None = ..., prompt: str | None = ...,
        batch_size: int | None = ..., show_progress_bar: bool | None = ...,
        *, output_value: Literal["token_embeddings"], convert_to_tensor: Literal[False] = ...,
        device: str | None = ...,
    ) -> npt.NDArray[np.float32]: ...
    @overload
    def encode(
        self, sentences: Texts, prompt_name: str | None = ..., prompt: str | None = ...,
        batch_size: int | None = ..., show_progress_bar: bool | None = ...,
        *, output_value: Literal["token_embeddings"], convert_to_tensor: Literal[False] = ...,
        device: str | None = ...,
    ) -> list[npt.NDArray[np.float32]]: ...
    @overload
    def encode(
        self, sentences: str | Texts | None = ..., prompt_name: str | None = ..., prompt: str | None = ...,
        batch_size: int | None = ..., show_progress_bar: bool | None = ..., output_value: str = ...,
        precision: Dtype | None = ..., convert_to_numpy: bool = ..., convert_to_tensor: bool = ...,
        device: str | None = ..., normalize_embeddings: bool = ..., truncate_dim: int | None = ...,
        pool: None = ..., chunk_size: None = ..., *, output_dtype: Dtype | None = ...,
        ranges: npt.ArrayLike | None = ..., inputs: str | Texts | None = ..., **unsupported: None,
    ) -> Any: ...
    # fmt: on

    def encode(  # noqa: PLR0917 (the positions of sentence-transformers)
        self,
        sentences: str | Texts | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: Dtype | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        output_dtype: Dtype | None = None,
        ranges: npt.ArrayLike | None = None,
        inputs: str | Texts | None = None,
        **unsupported: None,
    ) -> Any:
        """Compute the embeddings of one text or several.

        The model's output is truncated, then normalized if requested, then converted to the output type.

        Args:
            sentences: a text, or a list (or another ordered collection) of texts.
            prompt_name: the prompt of `prompts` to put before each text.
            prompt: the prompt itself; takes precedence over ``prompt_name``.
            batch_size: maximum texts in a batch; None lets the backend choose. It does not affect the embeddings.
            show_progress_bar: True shows a progress bar on a terminal; None does if the logger "embedkit" is at
                level INFO or DEBUG.
            output_value: ``"sentence_embedding"``, or ``"token_embeddings"`` for the float32 embedding of every
                token before pooling, special tokens included, neither truncated nor normalized.
            precision, output_dtype: two names for the output type: ``"float32"``, ``"int8"``, ``"uint8"``, or
                ``"binary"`` and ``"ubinary"``, which pack 8 dimensions into a byte.
            convert_to_numpy: False returns a list of torch tensors.
            convert_to_tensor: True returns one torch tensor (token embeddings: a list of tensors) on the encoder's
                first device; takes precedence over ``convert_to_numpy``.
            device: None, or the encoder's own device.
            normalize_embeddings: scale the embeddings to length 1.
            truncate_dim: number of leading dimensions to keep; None for the encoder's `truncate_dim`.
            ranges: (2, dimension) minima and maxima for int8 and uint8; None for those saved in the folder.
            inputs: the name of ``sentences`` in sentence-transformers 6.
            pool, chunk_size, unsupported: other arguments of sentence-transformers; they must be None.

        Returns:
            (dim,) for one text; (n, dim) for n texts, in their order; (0,) for an empty list, as
            sentence-transformers does. Token embeddings: (tokens, hidden_size) for one text, a list of such arrays
            for several.

        Raises:
            TypeError: a text is not a str; the message gives its index.
            ValueError: an argument is invalid, a text is not valid Unicode, or the encoder is closed.
        """
        check_unsupported("encode", {"pool": pool, "chunk_size": chunk_size, **unsupported})
        if output_value not in ("sentence_embedding", "token_embeddings"):
            raise ValueError(
                f"unknown output_value={output_value!r}; "
                "expected one of 'sentence_embedding', 'token_embeddings'"
            )
        if device is not None:
            check_same_device(device, self._options.devices)
        of_tokens = output_value == "token_embeddings"
        dtype = check_dtype(output_dtype, precision)
        if of_tokens and dtype != "float32":
            raise ValueError(
                f"output_dtype={dtype!r} is for sentence embeddings; token embeddings are float32"
            )
        tensors = convert_to_tensor or not convert_to_numpy
        plan = self._plan(
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            normalize=normalize_embeddings,
            truncate_dim=truncate_dim,
            dtype=dtype,
            ranges=ranges,
            token_embeddings=of_tokens,
            on_device=tensors,
        )
        given = either("the texts", sentences=sentences, inputs=inputs)
        texts, single = as_texts(given)
        result = self._encode_all(texts, plan, show_progress_bar)
        if tensors:
            result = to_torch(result, one=convert_to_tensor)
        elif not texts and not of_tokens:
            result = np.array([])
        return result[0] if single else result

    @_signature_of(encode)
    def encode_query(
        self,
        sentences: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """`encode` for queries: uses the prompt "query" unless another prompt is given."""
        if prompt_name is None and prompt is None:
            prompt_name = "query"
        return self.encode(sentences, prompt_name, prompt, *args, **options)

    @_signature_of(encode)
    def encode_document(
        self,
        sentences: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """`encode` for documents: uses the prompt "document" unless another prompt is given.

        As in sentence-transformers, every model has that prompt, possibly empty. A prompt named "passage" or
        "corpus" is used only if requested by name, or if "document" was deleted from `prompts`.
        """
        if prompt_name is None and prompt is None:
            names = ("document", "passage", "corpus")
            prompt_name = next((name for name in names if name in self.prompts), None)
        return self.encode(sentences, prompt_name, prompt, *args, **options)

    def encode_iter(
        self,
        sentences: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        output_dtype: Dtype | None = None,
        ranges: npt.ArrayLike | None = None,
        block_size: int = _WINDOW,
    ) -> Iterator[Vectors]:
        """Encode a stream of texts in constant memory.

        The core reads texts one block at a time, when the block is requested; other backends read up to four
        blocks ahead. Exceptions of the stream propagate.

        Args:
            sentences: the texts; read once.
            block_size: maximum texts in a block. A block also ends after a few million characters.

        Other arguments and errors are those of `encode`; arguments are checked before the first text is read.

        Yields:
            (n, dim) embeddings of the next n texts, in their order.
        """
        if isinstance(sentences, str):
            raise TypeError("encode_iter takes an iterable of texts, not a str; use encode for a single text")
        plan = self._plan(
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            normalize=normalize_embeddings,
            truncate_dim=truncate_dim,
            dtype=check_dtype(output_dtype, None),
            ranges=ranges,
        )
        blocks = windows(iter(sentences), check_positive("block_size", block_size))
        engine = self._engine

        def encoded() -> Iterator[Vectors]:
            with closing(engine.encode(blocks, plan, self._counts)) as results:
                for block in results:
                    yield block
                    self._engine  # noqa: B018 (raises if the encoder was closed meanwhile)

        return encoded()

    def query_steps(
        self, *, normalize_embeddings: bool = False
    ) -> tuple[Callable[[list[str]], Any], Callable[[Any], tuple[Vectors, float]]]:
        """Split `encode_query` of many lists of texts into two steps that may run on different threads.

        Returns:
            A function that tokenizes a list of texts, as far as doing so ahead pays; and a function from its result
            to the embeddings (n, dim), bitwise those of `encode_query`, and the seconds it spent tokenizing.
        """
        plan = self._plan(prompt_name="query", normalize=normalize_embeddings)

        def tokenize(texts: list[str]) -> Any:
            engine = self._engine
            return engine.tokenize(windows(texts, _WINDOW, first=engine.first_window), plan)

        def encode(tokenized: Any) -> tuple[Vectors, float]:
            return self._engine.encode_tokenized(tokenized, plan, self._counts)

        return tokenize, encode

    def tokenize(self, texts: Iterable[str]) -> dict[str, list[list[int]]]:
        """The token ids that `encode` runs for texts without a prompt: ``{"input_ids": [[…], …]}``, unpadded."""
        return {"input_ids": self._engine.token_ids(as_texts(texts)[0], self._max_length)}

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
    ) -> Plan:
        """Check the arguments of a call once, before any text is read."""
        engine = self._engine
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
            max_length=self._max_length,
            overflow=self._on_overflow,
            truncation_side=tokenizer.truncation_side,
            pool_skip=engine.prompt_tokens(prompt, self._max_length),
            truncate_dim=0 if width == dimension else width,
            normalize=bool(normalize),
            token_embeddings=token_embeddings,
        )
        ranges = check_ranges(dtype, ranges, engine.folder, width, normalize=bool(normalize))
        return Plan(prompt, options, dtype, ranges, width, on_device and engine.tensors)

    def _encode_all(self, texts: list[str], plan: Plan, show_progress_bar: bool | None) -> Any:
        """All embeddings of a list of texts, in one array or list."""
        engine = self._engine
        out = engine.empty(len(texts), plan)
        with progress(len(texts), show_progress_bar) as advance:
            most = _WINDOW if advance is None else _WINDOW_WITH_BAR
            blocks = windows(texts, most, first=engine.first_window)
            with closing(engine.encode(blocks, plan, self._counts, out)) as results:
                for block in results:
                    if advance is not None:
                        advance(len(block))
        return out

    def _prompt_text(self, name: str | None) -> str:
        """The text of a prompt; None for the default one."""
        name = self.default_prompt_name if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(map(repr, self.prompts))
            raise ValueError(f"unknown prompt_name={name!r}; this model's prompts are {known}")
        return self.prompts[name]

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Scores (n, m) of each of (n, dim) embeddings with each of (m, dim), by `similarity_fn_name`.

        Returns:
            A float32 array; a torch tensor if a torch tensor was given.
        """
        return with_tensors(similarity, embeddings1, embeddings2, self.similarity_fn_name)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Scores (n,) of row i of (n, dim) embeddings with row i of (n, dim); returned as by `similarity`."""
        return with_tensors(similarity_pairwise, embeddings1, embeddings2, self.similarity_fn_name)

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
            self._fingerprint = self._engine.fingerprint()
        return self._fingerprint

    def describe(self) -> dict[str, Any]:
        """Report model, numerics and machine, and how many texts were encoded and truncated so far."""
        folder = self._engine.folder
        return {
            **super().describe(),
            "fingerprint": self.fingerprint,
            "dimension": self.get_embedding_dimension(),
            "on_overflow": self._on_overflow,
            "pooling": list(folder.pooling.modes),
            "normalizes": folder.normalizes,
            "similarity": self.similarity_fn_name,
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
            folder: the folder to write; it must not exist or be empty. It is written atomically.
            precision: ``"fp32"``, ``"int8"``, or ``"auto"`` for the encoder's own.
            ranges: (2, dimension) minima and maxima of typical embeddings, saved for int8 and uint8 output.
            dequantize: with ``"fp32"`` and an int8 folder, multiply the int8 weights out to float32, for programs
                that cannot read int8. The result is a different model with a different fingerprint.

        Raises:
            FileExistsError: the folder exists and is not empty.
            ValueError: fp32 is requested of int8 weights without ``dequantize``, or the ranges do not fit.
        """
        from .model_folder.saving import write_folder

        engine = self._engine
        if self._options.onnx is not None:
            raise ValueError(
                f"an encoder with the ONNX backend cannot be saved; copy its folder {engine.folder.path} instead"
            )
        width = self.get_embedding_dimension()
        kept = engine.folder.ranges(width) if ranges is None else checked_ranges(ranges, width)
        if precision == "auto":
            precision = engine.stored_precision
        elif not (dequantize and precision == "fp32"):
            precision = check_precision(precision, engine.folder)
        write_folder(
            engine.folder,
            Path(folder),
            precision=precision,
            settings=Settings(
                self.prompts,
                self.default_prompt_name,
                self._max_length,
                self.truncate_dim,
                self.similarity_fn_name,
            ),
            ranges=kept,
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

    def eval(self: _Self) -> _Self:
        """Return the encoder; evaluators of sentence-transformers call this. There is no training mode."""
        return self

    def _open(self, path: Path, options: OpenOptions) -> Engine:
        return open_engine(path, options)

    def _start(self) -> None:
        self._counts = Counts()
        self.model_card_data = ModelCardData(self._name)

    def _summary(self) -> str:
        return f"dimension={self.get_embedding_dimension()}"

    def __getstate__(self) -> dict[str, Any]:
        """The state of any model, without the results of evaluators."""
        return {**super().__getstate__(), "model_card_data": None}

    def __deepcopy__(self: _Self, memo: dict[int, Any]) -> _Self:
        """Copy the settings and share the engine."""
        copy = super().__deepcopy__(memo)
        copy.prompts = dict(self.prompts)
        return copy
