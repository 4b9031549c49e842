"""The encoder: texts to vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from . import _core
from .arguments import check_devices, check_dtype, check_positive, check_truncate_dim, check_unsupported
from .backends.core_engine import Plan
from .inputs import as_texts, check_unicode, progress, windows
from .loaded_model import Model
from .output import checked_ranges

__all__ = ["Encoder"]

Texts = Iterable[str]
Vectors = npt.NDArray[Any]
Dtype = Literal["float32", "int8", "uint8", "binary", "ubinary"]
_F = TypeVar("_F")

_WINDOW = 8192  # texts handed to the core at once: enough to sort by length, few enough to stay in memory
_WINDOW_WITH_BAR = 1024  # so that the progress bar moves on slow models too


def _signature_of(method: _F) -> Callable[[Callable[..., Any]], _F]:
    """Give a method the type of another one."""
    return lambda function: cast(_F, function)


class Encoder(Model):
    """A sentence encoder, on the compiled core, CUDA devices or ONNX Runtime.

    Stands in for ``sentence_transformers.SentenceTransformer``: `encode` and its relatives take the same
    arguments and return the same values. One encoder may be used from several threads at once, is picklable,
    and on a CPU gives the same bits for a text whatever batch, order or number of threads it is encoded in.

    Args:
        model: a model folder, a name on the Hugging Face Hub, or None for the model that the package carries.
            sentence-transformers calls it ``model_name_or_path``; that name is taken too.
        device: ``"cpu"``, which ``"auto"`` stands for, too; ``"cuda"`` (the current device), ``"cuda:1"``, or a
            list of CUDA devices that share the texts. These need PyTorch and Triton: ``pip install
            'embedkit[gpu]'``.
        precision: on a CPU ``"fp32"``, ``"bf16"``, ``"int8"``, or ``"auto"`` for that of the folder; an fp32
            folder is rounded for ``"bf16"`` (cosine to fp32 above 0.9999; faster than fp32 on AMD's Zen 4 and 5
            only) and quantized for ``"int8"``. On CUDA ``"fp32"``, ``"fp16"``, ``"bf16"``, or ``"auto"``: the
            16-bit type whose vectors of a few texts are nearest to fp32's, and fp32 before compute capability 8.0; also
            ``"fp8"`` and ``"int8"``, the large matrix products in 8 bits (cosine to fp32 about 0.998).
        threads: how many threads encode, on CUDA tokenize; None for as many as the CPU affinity and quota of
            the process allow.
        max_length: tokens a text may have, special tokens counted; None for the folder's own.
        on_overflow: what happens to a longer text: ``"truncate"`` cuts it (counted in `describe`, warned of
            once), ``"error"`` raises ValueError, ``"window"`` encodes windows of ``max_length`` tokens and
            returns the mean of their vectors, each weighted by its tokens (at length 1 again where the folder
            normalizes).
        revision, cache_folder, token, local_files_only: as in ``SentenceTransformer``, for the Hub.
        prompts: name -> text put before each input; these outrank the folder's.
        default_prompt_name: the prompt used when `encode` is given none.
        similarity_fn_name: ``"cosine"``, ``"dot"``, ``"euclidean"``, ``"manhattan"``; None for the folder's.
        truncate_dim: how many dimensions `encode` keeps; None for the folder's.
        backend: ``"auto"`` for embedkit's own, or ``"onnx"`` for a graph on ONNX Runtime: of a folder that
            ``embedkit-model export``, Optimum or sentence-transformers wrote, of any model type. Devices are
            then "cpu" and "cuda" (with onnxruntime-gpu), precisions those of the graph ("fp16" is one more).
        providers: ONNX Runtime's execution providers, names or (name, options); None for the device's. One
            that is asked for and absent is an error.
        onnx_file: which graph, such as ``"onnx/model_O3.onnx"``; None for the folder's only one, or
            ``model.onnx``.
        unsupported: further arguments of ``SentenceTransformer``, which must be None or False.

    Raises:
        FileNotFoundError: the model, or a file of its folder, is not there.
        ValueError: an argument is not known, a device is not there, or a file of the folder is broken.
        ImportError: a download is needed and ``huggingface-hub`` is not installed, or a CUDA device and PyTorch
            or Triton is not.
    """

    @overload
    def encode(
        self,
        sentences: str | Texts,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        batch_size: int | None = ...,
        show_progress_bar: bool | None = ...,
        output_value: Literal["sentence_embedding"] = ...,
        precision: Dtype | None = ...,
        convert_to_numpy: Literal[True] = ...,
        convert_to_tensor: Literal[False] = ...,
        device: str | None = ...,
        normalize_embeddings: bool = ...,
        truncate_dim: int | None = ...,
        *,
        output_dtype: Dtype | None = ...,
        ranges: npt.ArrayLike | None = ...,
    ) -> Vectors: ...

    @overload
    def encode(  # type: ignore[overload-overlap]  # a str is a collection of str, too
        self,
        sentences: str,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        batch_size: int | None = ...,
        show_progress_bar: bool | None = ...,
        *,
        output_value: Literal["token_embeddings"],
        convert_to_tensor: Literal[False] = ...,
        device: str | None = ...,
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def encode(
        self,
        sentences: Texts,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        batch_size: int | None = ...,
        show_progress_bar: bool | None = ...,
        *,
        output_value: Literal["token_embeddings"],
        convert_to_tensor: Literal[False] = ...,
        device: str | None = ...,
    ) -> list[npt.NDArray[np.float32]]: ...

    @overload
    def encode(
        self,
        sentences: str | Texts | None = ...,
        prompt_name: str | None = ...,
        prompt: str | None = ...,
        batch_size: int | None = ...,
        show_progress_bar: bool | None = ...,
        output_value: str = ...,
        precision: Dtype | None = ...,
        convert_to_numpy: bool = ...,
        convert_to_tensor: bool = ...,
        device: str | None = ...,
        normalize_embeddings: bool = ...,
        truncate_dim: int | None = ...,
        pool: None = ...,
        chunk_size: None = ...,
        *,
        output_dtype: Dtype | None = ...,
        ranges: npt.ArrayLike | None = ...,
        inputs: str | Texts | None = ...,
        **unsupported: None,
    ) -> Any: ...

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
        """Encode one text or several.

        Vectors are what the folder's modules give, then truncated, then normalized if asked, then converted.

        Args:
            sentences: a text, or a list (or another ordered collection) of texts.
            prompt_name: name of the prompt in `prompts` to put before each text.
            prompt: the prompt itself; outranks ``prompt_name``.
            batch_size: most texts of a batch; None leaves it to the core. It never changes a vector.
            show_progress_bar: True shows one on a terminal; None if the logger "embedkit" is at INFO.
            output_value: ``"sentence_embedding"``, or ``"token_embeddings"`` for the float32 vectors of every
                token before the pooling, special tokens counted; they are not truncated or normalized.
            precision, output_dtype: two names for the type of the vectors: ``"float32"``, ``"int8"``,
                ``"uint8"``, or ``"binary"`` and ``"ubinary"`` with 8 dimensions a byte.
            convert_to_numpy: False returns a list of torch tensors.
            convert_to_tensor: True returns one torch tensor (token embeddings: a list), on the encoder's device
                (the first of several); outranks ``convert_to_numpy``.
            device: None, or the encoder's own device.
            normalize_embeddings: scale the vectors to length 1.
            truncate_dim: how many dimensions to keep; None for the encoder's own.
            ranges: (2, dimension) minima and maxima for int8 and uint8; None for those saved in the folder.
            inputs: what sentence-transformers 6 calls ``sentences``.
            pool, chunk_size, unsupported: further arguments of sentence-transformers, which must be None.

        Returns:
            (dim,) for one text, (n, dim) for several in their order, (0,) for an empty list as
            sentence-transformers does. Token embeddings are (tokens, hidden_size), several in a list, and
            numpy arrays unless tensors are asked for.

        Raises:
            TypeError: a text is not a str (its index is named).
            ValueError: an argument is out of range, a text is not valid Unicode, or the encoder is closed.
        """
        check_unsupported("encode", {"pool": pool, "chunk_size": chunk_size, **unsupported})
        if output_value not in ("sentence_embedding", "token_embeddings"):
            raise ValueError(
                f"output_value={output_value!r} is not known; "
                "known are 'sentence_embedding', 'token_embeddings'"
            )
        if device is not None:
            self._check_same(device)
        of_tokens = output_value == "token_embeddings"
        dtype = check_dtype(output_dtype, precision)
        if of_tokens and dtype != "float32":
            raise ValueError(
                f"output_dtype={dtype!r} is for sentence embeddings; token embeddings are float32"
            )
        plan = self._plan(
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            normalize=normalize_embeddings,
            truncate_dim=truncate_dim,
            dtype=dtype,
            ranges=ranges,
            token_embeddings=of_tokens,
            on_device=convert_to_tensor or not convert_to_numpy,
        )
        if sentences is not None and inputs is not None:
            raise TypeError("sentences and inputs are two names for the texts; give one of them")
        texts, single = as_texts(sentences if inputs is None else inputs)
        result = self._encode_all(texts, plan, show_progress_bar)
        if convert_to_tensor or not convert_to_numpy:
            result = _to_torch(result, one=convert_to_tensor)
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
        """`encode` for queries: with the prompt "query" unless another one is given."""
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
        """`encode` for documents: with the prompt "document" unless another one is given.

        Every model has that prompt, if only an empty one, as in sentence-transformers: one named "passage" or
        "corpus" is used when asked for by its name, or when "document" was deleted from `prompts`.
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

        On the core, texts are read when their block is asked for; other backends read up to four blocks ahead.
        An error of the stream passes through.

        Args:
            sentences: the texts; read once.
            block_size: most texts of a block. A block also ends after some million characters.

        Other arguments, and the errors, are those of `encode`. They are checked by the call itself.

        Yields:
            (n, dim) vectors of the next n texts, in their order.
        """
        if isinstance(sentences, str):
            raise TypeError("encode_iter takes texts, not one str; use encode for a single text")
        dtype = check_dtype(output_dtype, None)
        plan = self._plan(
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            normalize=normalize_embeddings,
            truncate_dim=truncate_dim,
            dtype=dtype,
            ranges=ranges,
            token_embeddings=False,
        )
        blocks = windows(iter(sentences), check_positive("block_size", block_size))

        engine = self._engine

        def encoded() -> Iterator[Vectors]:
            with closing(engine.encode(blocks, plan, self._counts)) as results:
                for block in results:
                    yield block
                    self._engine  # noqa: B018 (raises where the encoder was closed meanwhile)

        return encoded()

    def query_steps(
        self, *, normalize_embeddings: bool = False
    ) -> tuple[Callable[[list[str]], Any], Callable[[Any], tuple[Vectors, float]]]:
        """`encode_query` of many lists of texts in two steps, which may be done on a thread each.

        Returns:
            What tokenizes a list of texts ahead, as far as that gains time; and what gives the vectors (n, dim)
            for what the first returned, the bits of `encode_query`, and the seconds that tokenizing took in it.
        """
        plan = self._plan(
            prompt_name="query",
            prompt=None,
            batch_size=None,
            normalize=normalize_embeddings,
            truncate_dim=None,
            dtype="float32",
            ranges=None,
            token_embeddings=False,
        )

        def tokenize(texts: list[str]) -> Any:
            engine = self._engine
            return engine.tokenize(windows(texts, _WINDOW, first=engine.first_window), plan)

        def encode(tokenized: Any) -> tuple[Vectors, float]:
            return self._engine.encode_tokenized(tokenized, plan, self._counts)

        return tokenize, encode

    def _plan(
        self,
        *,
        prompt_name: str | None,
        prompt: str | None,
        batch_size: int | None,
        normalize: bool,
        truncate_dim: int | None,
        dtype: str,
        ranges: npt.ArrayLike | None,
        token_embeddings: bool,
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
        ranges = self._ranges(dtype, ranges, width, bool(normalize))
        return Plan(prompt, options, dtype, ranges, width, on_device and engine.tensors)

    def _check_same(self, device: Any) -> None:
        """Refuse another device than that of this encoder."""
        names = check_devices(device)
        if names not in (self._devices, tuple(name.partition(":")[0] for name in self._devices)):
            raise ValueError(
                f"device={device!r}: this encoder is on {self.device!r}; open another one there with "
                "Encoder(device=...)"
            )

    def _ranges(
        self, dtype: str, ranges: npt.ArrayLike | None, width: int, normalize: bool
    ) -> npt.NDArray[np.float32] | None:
        """Ranges for int8 and uint8; those of the folder hold only for vectors as the folder gives them."""
        if dtype not in ("int8", "uint8"):
            return None
        if ranges is not None:
            return checked_ranges(ranges, width)
        folder = self._engine.folder
        changed = normalize and not (folder.normalizes and width == folder.dimension)
        saved = folder.ranges(width)
        if saved is not None and not changed:
            return checked_ranges(saved, width)
        why = "none are saved in the model folder"
        if folder.stamp.ranges is not None:
            why = "those saved in the model folder are for vectors truncated or normalized otherwise"
        raise ValueError(
            f"{dtype} embeddings need the range of each dimension, and {why}: give ranges=, e.g. "
            "numpy.stack([v.min(axis=0), v.max(axis=0)]) of the float vectors v of typical texts, "
            "or save them once with save(folder, ranges=...)"
        )

    def _encode_all(self, texts: list[str], plan: Plan, show_progress_bar: bool | None) -> Any:
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

    def tokenize(self, texts: Iterable[str]) -> dict[str, list[list[int]]]:
        """The ids that `encode` runs for texts without a prompt: ``{"input_ids": [[…], …]}``, unpadded."""
        return {"input_ids": self._engine.token_ids(as_texts(texts)[0], self._max_length)}


def _to_torch(result: Any, *, one: bool) -> Any:
    """Results as torch tensors: of numpy arrays on the CPU, others where they are."""
    try:
        import torch
    except ImportError:
        raise ImportError(
            "torch tensors were asked for and torch is not installed: pip install torch, "
            "or leave convert_to_numpy=True and convert_to_tensor=False for numpy arrays"
        ) from None
    if one and not isinstance(result, list):
        return torch.as_tensor(result) if len(result) else torch.tensor([])
    return [torch.as_tensor(row) for row in result]
