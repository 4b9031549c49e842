"""`Encoder`: texts to embeddings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from .arguments import (
    check_dtype,
    check_overflow,
    check_positive,
    check_same_device,
    check_unsupported,
    either,
)
from .backends.engine import EncodingEngine, Plan, Uncounted
from .backends.opening import OpenOptions
from .dropin import DropIn, Pool
from .inputs import as_texts, check_collection, progress, windows
from .model_folder.hub import HubOptions
from .output import import_torch, to_torch

if TYPE_CHECKING:
    from .backends.onnx_session import Provider

__all__ = ["Encoder", "prompt_of"]

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


class Encoder(DropIn):
    """A sentence encoder that runs on the compiled core, on CUDA devices, or on ONNX Runtime.

    A drop-in replacement for ``sentence_transformers.SentenceTransformer``: `encode` and its variants take the same
    arguments and return the same values. An encoder is thread-safe and picklable. On the compiled core (any CPU encoder
    except those with ``backend="onnx"``) the embedding of a text is bitwise the same in any batch, in any order and on
    any number of threads; elsewhere it depends on its batch: in its rounding, or clearly with an int8 graph on ONNX
    Runtime.

    Args:
        model: a model folder, a name on the Hugging Face Hub, or None for the built-in model.
            ``model_name_or_path``, the name in sentence-transformers, is accepted too.
        device: ``"cpu"``, ``"cuda"`` (the current device), ``"cuda:1"``, or a list of CUDA devices that share the
            texts; ``"auto"`` means ``"cpu"``. CUDA needs PyTorch and Triton: ``pip install 'embedkit[gpu]'``.
        precision: on a CPU ``"fp32"``, ``"bf16"`` (weights and inputs of products rounded to bfloat16; cosine to fp32
            above 0.9999, faster with AMX and on AMD's Zen 4 and 5) or ``"int8"`` (an fp32 folder is quantized when
            opened); ``"auto"`` means the folder's own. On CUDA ``"fp32"``, ``"fp16"``, ``"bf16"``, or ``"fp8"`` and
            ``"int8"`` for 8-bit matrix products (cosine to fp32 about 0.998); ``"auto"`` means the 16-bit type that is
            closer to fp32 on a few sample texts, and fp32 below compute capability 8.0.
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
        TypeError: an argument has the wrong type, such as a float as ``threads``.
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
        self._configure(prompts, default_prompt_name, similarity_fn_name, truncate_dim)

    # fmt: off
    @overload
    def encode(
        self, sentences: str | Texts, prompt_name: str | None = ..., prompt: str | None = ...,
        batch_size: int | None = ..., show_progress_bar: bool | None = ...,
        output_value: Literal["sentence_embedding"] = ..., precision: Dtype | None = ...,
        convert_to_numpy: Literal[True] = ..., convert_to_tensor: Literal[False] = ...,
        device: str | None = ..., normalize_embeddings: bool = ..., truncate_dim: int | None = ...,
        *, output_dtype: Dtype | None = ..., ranges: npt.ArrayLike | None = ...,
        task: str | None = ...,
    ) -> Vectors: ...
    @overload
    def encode(  # type: ignore[overload-overlap]  # a str is itself an iterable of str
        self, sentences: str, prompt_name: str | None = ..., prompt: str | None = ...,
        batch_size: int | None = ..., show_progress_bar: bool | None = ...,
        *, output_value: Literal["token_embeddings"], convert_to_tensor: Literal[False] = ...,
        device: str | None = ..., task: str | None = ...,
    ) -> npt.NDArray[np.float32]: ...
    @overload
    def encode(
        self, sentences: Texts, prompt_name: str | None = ..., prompt: str | None = ...,
        batch_size: int | None = ..., show_progress_bar: bool | None = ...,
        *, output_value: Literal["token_embeddings"], convert_to_tensor: Literal[False] = ...,
        device: str | None = ..., task: str | None = ...,
    ) -> list[npt.NDArray[np.float32]]: ...
    @overload
    def encode(
        self, sentences: str | Texts | None = ..., prompt_name: str | None = ..., prompt: str | None = ...,
        batch_size: int | None = ..., show_progress_bar: bool | None = ..., output_value: str = ...,
        precision: Dtype | None = ..., convert_to_numpy: bool = ..., convert_to_tensor: bool = ...,
        device: str | None = ..., normalize_embeddings: bool = ..., truncate_dim: int | None = ...,
        pool: Pool | None = ..., chunk_size: int | None = ..., *, output_dtype: Dtype | None = ...,
        ranges: npt.ArrayLike | None = ..., inputs: str | Texts | None = ..., task: str | None = ...,
        **unsupported: None,
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
        pool: Pool | None = None,
        chunk_size: int | None = None,
        *,
        output_dtype: Dtype | None = None,
        ranges: npt.ArrayLike | None = None,
        inputs: str | Texts | None = None,
        task: str | None = None,
        **unsupported: None,
    ) -> Any:
        """Compute the embeddings of one text or several.

        The model's output is truncated, then normalized if requested, then converted to the output type.

        Args:
            sentences: a text, or a list (or another ordered collection) of texts.
            prompt_name: the prompt of `prompts` to put before each text.
            prompt: the prompt itself; takes precedence over ``prompt_name``.
            batch_size: maximum texts in a batch; None lets the backend choose. On the compiled core it does not affect
                the embeddings; elsewhere it does, see the class.
            show_progress_bar: True shows a progress bar on a terminal or in a notebook; None does on a terminal if the
                logger "embedkit" is at level INFO or DEBUG.
            output_value: ``"sentence_embedding"``, or ``"token_embeddings"`` for the float32 embedding of every
                token before pooling, special tokens included, neither truncated nor normalized. Not with
                ``on_overflow="window"``.
            precision, output_dtype: two names for the output type: ``"float32"``, ``"int8"``, ``"uint8"``, or
                ``"binary"`` and ``"ubinary"``, which pack 8 dimensions into a byte.
            convert_to_numpy: False returns a list of torch tensors.
            convert_to_tensor: True returns one torch tensor (token embeddings: a list of tensors) on the encoder's
                first device, with ONNX Runtime on the CPU; takes precedence over ``convert_to_numpy``.
            device: None, or the encoder's own device.
            normalize_embeddings: scale the embeddings to length 1.
            truncate_dim: number of leading dimensions to keep; None for the encoder's `truncate_dim`.
            ranges: (2, dimension) minima and maxima for int8 and uint8; None for those saved in the folder.
            inputs: the name of ``sentences`` in sentence-transformers 6.
            task: of a model with a Router, the route of the texts, such as ``"query"`` or ``"document"``; None for
                its default one. Other models ignore it.
            pool, chunk_size: what `start_multi_process_pool` returned, which has no effect, or None.
            unsupported: other arguments of sentence-transformers; they must be None.

        Returns:
            (dim,) for one text; (n, dim) for n texts, in their order; (0,) for an empty list, as
            sentence-transformers does. Token embeddings: (tokens, hidden_size) for one text, a list of such arrays
            for several.

        Raises:
            TypeError: a text is not a str (the message gives its index), or an argument has the wrong type, such as
                a float as ``batch_size``.
            ValueError: an argument is invalid, token embeddings are asked for with ``on_overflow="window"``, a text is
                not valid Unicode, or the encoder is closed.
            ImportError: torch tensors are requested, and torch is not installed.
        """
        # its own pool has no processes: nothing is to be cut into chunks for them
        of_pool = {} if isinstance(pool, Pool) else {"pool": pool, "chunk_size": chunk_size}
        check_unsupported("encode", {**of_pool, **unsupported})
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
        if tensors:
            import_torch()  # rather than after all texts are encoded
        engine = self._engine.of(task)
        plan = self._plan(
            engine=engine,
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
        result = self._encode_all(texts, plan, show_progress_bar, engine)
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
        """`encode` for queries: uses the prompt "query" unless another prompt is given, and their route if any.

        If "query" was deleted from `prompts`, the default prompt is used, as in sentence-transformers.
        """
        if prompt_name is None and prompt is None:
            prompt_name = self._query_prompt()
        return self.encode(sentences, prompt_name, prompt, *args, **{"task": "query", **options})

    @_signature_of(encode)
    def encode_document(
        self,
        sentences: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """`encode` for documents: uses the prompt "document" unless another prompt is given, and their route if any.

        As in sentence-transformers, every model has that prompt, possibly empty. A prompt named "passage" or
        "corpus" is used only if requested by name, or if "document" was deleted from `prompts`.
        """
        if prompt_name is None and prompt is None:
            prompt_name = self._document_prompt_name()
        return self.encode(sentences, prompt_name, prompt, *args, **{"task": "document", **options})

    def _document_prompt_name(self) -> str | None:
        """The name of the prompt of documents; None for the default one."""
        return next((name for name in ("document", "passage", "corpus") if name in self.prompts), None)

    def _document_tokens(self, text: str) -> tuple[int, int]:
        """The number of tokens of ``text`` as `encode_document` reads it, and the most that it takes."""
        engine = self._engine.of("document")
        (ids,) = engine.token_ids([f"{prompt_of(self, 'document')}{text}"], sys.maxsize)
        return len(ids), self._length_on(engine)

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
        task: str | None = None,
        block_size: int = _WINDOW,
    ) -> Iterator[Vectors]:
        """Encode a stream of texts in constant memory.

        The core reads the texts of one block when it is requested, and no text of the next one, unless the block ends
        early by its characters; other backends read up to four blocks ahead. Exceptions of the stream propagate.

        Args:
            sentences: the texts; read once.
            block_size: maximum texts in a block. A block also ends after a few million characters.

        Other arguments and errors are those of `encode`; arguments are checked before the first text is read.

        Yields:
            (n, dim) embeddings of the next n texts, in their order.
        """
        if isinstance(sentences, str):
            raise TypeError("encode_iter takes an iterable of texts, not a str; use encode for a single text")
        check_collection(sentences, "an iterable of texts")
        engine = self._engine.of(task)
        plan = self._plan(
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            normalize=normalize_embeddings,
            truncate_dim=truncate_dim,
            dtype=check_dtype(output_dtype, None),
            ranges=ranges,
            engine=engine,
        )
        blocks = windows(iter(sentences), check_positive("block_size", block_size))

        def encoded() -> Iterator[Vectors]:
            self._engine  # noqa: B018 (raises if the encoder was closed)
            with closing(engine.encode(blocks, plan, self._counts)) as results:
                for block in results:
                    yield block
                    self._engine  # noqa: B018 (or meanwhile)

        return encoded()

    def query_steps(
        self, *, normalize_embeddings: bool = False
    ) -> tuple[Callable[[list[str]], Any], Callable[[Any], tuple[Vectors, float]]]:
        """Split `encode_query` of many lists of texts into two steps that may run on different threads.

        Returns:
            A function that tokenizes a list of texts, as far as doing so ahead pays; and a function from its result
            to the embeddings (n, dim), bitwise those of `encode_query`, and the seconds it spent tokenizing.
        """
        engine = self._engine.of("query")
        plan = self._plan(prompt_name=self._query_prompt(), normalize=normalize_embeddings, engine=engine)

        def tokenize(texts: list[str]) -> Any:
            engine = self._engine.of("query")
            return engine.tokenize(windows(texts, _WINDOW, first=engine.first_window), plan)

        def encode(tokenized: Any) -> tuple[Vectors, float]:
            return self._engine.of("query").encode_tokenized(tokenized, plan, self._counts)

        return tokenize, encode

    def _query_prompt(self) -> str | None:
        """The name of the prompt of queries; None for the default one."""
        return "query" if "query" in self.prompts else None

    def warm_up(self) -> None:
        """Do now what the first calls would wait for; the first calls do it otherwise.

        On a CPU this reads all weights into memory and starts the threads, in about the time of encoding a few short
        texts per thread. On CUDA it also compiles the kernels, unless they are in Triton's cache, and captures the CUDA
        graphs of the usual batches: those of up to 512 tokens, and as many larger ones as batches of any size need to
        leave at most a quarter of a graph idle. The texts are not counted in `describe`.

        Raises:
            MemoryError: a device has no memory for the smallest batch.
            ValueError: the encoder is closed.
        """
        texts = ["warm up"] * (4 * self._threads)
        for engine in self._engine.each():
            engine.warm_up()
            plan = self._plan(prompt="", engine=engine)
            plan = replace(plan, options=plan.options.replace(overflow="truncate"))
            with closing(engine.encode(iter([texts]), plan, Uncounted())) as results:
                for _ in results:
                    pass

    def tokenize(self, texts: Iterable[str]) -> dict[str, list[list[int]]]:
        """The token ids that `encode` runs for texts without a prompt: ``{"input_ids": [[…], …]}``, unpadded."""
        return {"input_ids": self._engine.token_ids(as_texts(texts)[0], self._max_length)}

    def _encode_all(
        self, texts: list[str], plan: Plan, show_progress_bar: bool | None, engine: EncodingEngine
    ) -> Any:
        """All embeddings of a list of texts, in one array or list."""
        if len(texts) == 1 and type(texts[0]) is str:
            result = engine.encode_one(texts[0], plan, self._counts)
            if result is not None:
                return result
        out = engine.empty(len(texts), plan)
        with progress(len(texts), show_progress_bar) as advance:
            most = _WINDOW if advance is None else _WINDOW_WITH_BAR
            blocks = windows(texts, most, first=engine.first_window)
            with closing(engine.encode(blocks, plan, self._counts, out)) as results:
                for block in results:
                    if advance is not None:
                        advance(len(block))
        return out

    def eval(self: _Self) -> _Self:
        """Return the encoder; evaluators of sentence-transformers call this. There is no training mode."""
        return self


def prompt_of(encoder: Any, task: Literal["query", "document"]) -> str | None:
    """What `Encoder.encode_query` or `Encoder.encode_document` puts before each text.

    Of an encoder of another class its prompt of that name, None if it has none.
    """
    if not isinstance(encoder, Encoder):
        told: str | None = encoder.prompts.get(task)
        return told
    return encoder._prompt_text(
        encoder._query_prompt() if task == "query" else encoder._document_prompt_name()
    )
