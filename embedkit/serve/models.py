"""Models that are served: loaded ones with their batchers, and a pool of them within a memory bound."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ..cross_encoder import CrossEncoder
from ..encoder import Encoder
from ..inputs import windows
from ..model_folder.safetensors_file import SafetensorsFile
from .batching import Batcher
from .errors import ApiError, busy
from .metrics import ModelMetrics
from .settings import Limits
from .token_ids import TokenDecoder

__all__ = [
    "TEXTS_AT_ONCE",
    "EmbeddingModel",
    "Form",
    "Memory",
    "Pool",
    "RerankModel",
    "Served",
    "weights_bytes",
]

logger = logging.getLogger("embedkit.serve")

_IN_LOOP = 50_000  # characters that are tokenized on the event loop: about half a millisecond
TEXTS_AT_ONCE = 256
"""Of a large request whose tokens are counted on a thread: between two parts it can end."""
_UNCUT = 2**31 - 1  # tokens: no text has so many
_STORED = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1}  # bytes of a weight in a file
_TABLES = ("embeddings", "embedding.weight")
"""Of static models, which keep 16 and 8 bits; others compute in float32."""


@dataclass(frozen=True)
class Form:
    """What an embedding is asked to be; texts of one form can share a batch."""

    prompt: str
    dimensions: int | None
    normalize: bool
    task: str | None = None  # of a model with a Router


_NOT_TOLD = ("path", "texts", "tokens", "truncated", "unknown")  # by /info: /metrics counts


class EmbeddingModel:
    """An `Encoder`, the thread that drives it, and what requests need to know of it.

    Attributes:
        documents: as it was given.
        encoder: the same, but it cuts long texts: in windows, one text could take a batch of any size.
        given: names of the prompts that the server was started with, in place of those of the folder.
    """

    kind = "embedding"

    def __init__(
        self, encoder: Encoder, limits: Limits, metrics: ModelMetrics, given: frozenset[str] = frozenset()
    ) -> None:
        """Start the thread."""
        self.documents = encoder
        self.given = given
        if encoder.describe()["on_overflow"] == "window":
            encoder = copy.copy(encoder)  # shares the weights
            encoder._on_overflow = "truncate"
        self.encoder = encoder
        self.about = about = encoder.describe()
        self.dimension = int(about["dimension"])
        self.normalizes = bool(about["normalizes"])
        # those that the folder itself truncates have another length
        self.unit = self.normalizes and encoder.truncate_dim is None
        self.routed = "routes" in about
        self.max_length = encoder.max_seq_length
        self.bytes = weights_bytes(Path(str(about["path"])), str(about["precision"]))
        self.decoder = TokenDecoder(encoder)
        self.batcher = Batcher(self._compute, limits, metrics)
        encoder.warm_up()  # on CUDA: compiles the kernels and captures the graphs of the usual batches

    @property
    def info(self) -> dict[str, Any]:
        """What ``/info`` says of it, in the fields of Text Embeddings Inference; not its place on this machine."""
        about = {name: value for name, value in self.about.items() if name not in _NOT_TOLD}
        return {
            "model_sha": about["fingerprint"],
            "model_dtype": about["precision"],
            "model_type": {"embedding": {"pooling": "+".join(about["pooling"])}},
            "max_input_length": self.max_length,
            "model": about,
            "prompts": self.encoder.prompts,
        }

    def _compute(self, key: Any, texts: list[str]) -> npt.NDArray[Any]:
        form: Form = key
        routed: dict[str, Any] = {} if form.task is None else {"task": form.task}
        vectors: npt.NDArray[Any] = self.encoder.encode(
            texts,
            prompt=form.prompt,
            truncate_dim=form.dimensions,
            normalize_embeddings=form.normalize,
            show_progress_bar=False,
            **routed,
        )
        return vectors

    def form(
        self,
        prompt_name: str | None,
        dimensions: int | None,
        normalize: bool | None,
        task: str | None = None,
    ) -> Form:
        """Check what is asked for.

        Without ``normalize`` the vectors are those of `Encoder.encode`; truncated ones have length 1 again where
        the model's have.

        Raises:
            ApiError: 400, a prompt or a dimension that the model does not have.
        """
        prompts = self.encoder.prompts
        name = self.encoder.default_prompt_name if prompt_name is None else prompt_name
        if name is not None and name not in prompts:
            known = ", ".join(map(repr, prompts))
            raise ApiError(
                400, f"prompt_name {name!r} is unknown; this model has {known}", param="prompt_name"
            )
        if dimensions is not None and not 1 <= dimensions <= self.dimension:
            raise ApiError(
                400,
                f"dimensions must be from 1 to {self.dimension} for this model, not {dimensions}",
                param="dimensions",
            )
        if dimensions == self.dimension:
            dimensions = None
        if normalize is None:
            normalize = dimensions is not None and self.normalizes
        elif normalize and self.unit and dimensions is None:
            normalize = False  # they have length 1 as they are
        return Form("" if name is None else prompts[name], dimensions, normalize, self.route(task))

    def route(self, task: str | None) -> str | None:
        """The task of a model with a Router; None for others, whose texts share batches whatever they are.

        Raises:
            ApiError: 400, the model has no route for it.
        """
        if not self.routed:
            return None
        try:
            self.encoder._engine.of(task)
        except ValueError as error:
            raise ApiError(400, str(error), param="input_type") from None
        return task

    async def count(self, texts: list[str], form: Form) -> list[int]:
        """Tokens of each text after its prompt, special tokens included, after truncation."""
        task = form.task
        prompted = [form.prompt + text for text in texts] if form.prompt else texts
        if sum(map(len, texts)) + len(form.prompt) * len(texts) <= _IN_LOOP:
            return self._count(prompted, task)
        counts: list[int] = []
        for part in windows(prompted, TEXTS_AT_ONCE):
            counts += await asyncio.to_thread(self._count, part, task)
        return counts

    def _count(self, texts: list[str], task: str | None, most: int | None = None) -> list[int]:
        """Tokens of each text, of which ``most`` are kept; None: as many as the model reads."""
        found = self.encoder._engine.of(task).token_ids(texts, most or self.length_of(task))
        return [len(ids) for ids in found]

    def length_of(self, task: str | None) -> int:
        """Tokens that the model reads of a text of a task."""
        return self.encoder._length_on(self.encoder._engine.of(task))

    def too_long(self, text: str, task: str | None = None) -> bool:
        """Whether a text that fills `length_of` after truncation was longer before."""
        return self._count([text], task, _UNCUT)[0] > self.length_of(task)

    async def embed(self, texts: list[str], form: Form, tokens: list[int]) -> npt.NDArray[Any]:
        """Vectors (n, dimensions); for no texts (0, dimensions)."""
        if not texts:
            return np.empty((0, form.dimensions or self.dimension), np.float32)
        rows: npt.NDArray[Any] = await self.batcher.run(form, texts, tokens)
        return rows

    def embed_here(self, texts: list[str], form: Form) -> npt.NDArray[Any]:
        """`embed` for a thread that is not the event loop's."""
        prompted = [form.prompt + text for text in texts]
        tokens = self._count(prompted, form.task)
        rows: npt.NDArray[Any] = self.batcher.run_here(form, texts, tokens)
        return rows

    def close(self) -> None:
        """Finish what is queued and free the memory."""
        self.batcher.close()
        self.encoder.close()
        self.documents.close()


class RerankModel:
    """A `CrossEncoder` and the thread that drives it."""

    kind = "rerank"

    def __init__(self, encoder: CrossEncoder, limits: Limits, metrics: ModelMetrics) -> None:
        """Start the thread.

        Raises:
            ValueError: the model has several classes, none of which is a rank.
        """
        if encoder.num_labels != 1:
            raise ValueError(
                f"a reranker has one class, this cross-encoder has {encoder.num_labels}: "
                f"{', '.join(encoder.labels[:10])}"
            )
        self.encoder = encoder
        self.about = about = encoder.describe()
        self.max_length = encoder.max_seq_length
        self.bytes = weights_bytes(Path(str(about["path"])), str(about["precision"]))
        self.batcher = Batcher(self._compute, limits, metrics)

    def _compute(self, key: Any, pairs: list[tuple[str, str]]) -> npt.NDArray[np.float32]:
        scores: npt.NDArray[np.float32] = self.encoder.predict(
            pairs, activation_fn=key, show_progress_bar=False
        )
        return scores

    def too_long(self, query: str) -> Callable[[list[str]], list[bool]]:
        """A function that tells of each text whether it and ``query`` are longer than the model reads."""
        return self.encoder._engine.too_long(query, self.max_length)

    async def score(self, query: str, texts: list[str], raw: bool) -> npt.NDArray[np.float32]:
        """Scores (n,) of each text with the query: logits, or from 0 to 1 whatever activation the folder names.

        The APIs of Cohere and TEI promise the latter; the folders of many rerankers name none but the identity.
        """
        if not texts:
            return np.empty(0, np.float32)
        # A rough count, for the batcher alone: about four characters a token.
        tokens = [min(self.max_length, 3 + (len(query) + len(text)) // 4) for text in texts]
        pairs = [(query, text) for text in texts]
        scores: npt.NDArray[np.float32] = await self.batcher.run(
            "identity" if raw else "sigmoid", pairs, tokens
        )
        return scores

    def close(self) -> None:
        """Finish what is queued and free the memory."""
        self.batcher.close()
        self.encoder.close()


_M = TypeVar("_M", bound=EmbeddingModel | RerankModel)


@dataclass
class Served(Generic[_M]):
    """A model under the name that requests give, loaded or not."""

    name: str
    load: Callable[[], _M]
    loaded: _M | None = None
    users: int = 0
    used: float = 0.0  # when, on the monotonic clock
    size: int = 0  # about how many bytes it takes; 0: not known before it is loaded
    loading: asyncio.Task[_M] | None = None  # which all requests wait for that came meanwhile
    aliases: list[str] = field(default_factory=list)
    info: dict[str, Any] | None = None  # of an `EmbeddingModel`, once it has been loaded
    check: Callable[[], object] | None = None  # raises what loading would, as far as its settings tell

    def keep(self, loaded: _M) -> None:
        """Serve it from ``loaded`` from now on."""
        self.loaded = loaded
        self.info = getattr(loaded, "info", None)


class Memory:
    """What the models of all pools may take together."""

    def __init__(self, limit: int | None) -> None:
        """``limit``: bytes; None: no bound."""
        self.limit = limit
        self.lock = asyncio.Lock()
        self._models: list[Served[Any]] = []

    def watch(self, models: Iterable[Served[Any]]) -> None:
        """Count these models."""
        self._models += models

    def fits(self, size: int) -> bool:
        """Whether a model of this size has room beside those that are loaded."""
        used = sum(model.size for model in self._models if model.loaded is not None)
        return self.limit is None or used + size <= self.limit

    def keep(self, model: Served[Any]) -> None:
        """Count a loaded model that stays, and close others until it fits; called before the server starts.

        Raises:
            ValueError: there is no room for it beside those that stay.
        """
        others = [other for other in self._models if other.loaded is not None and other.users == 0]
        while not self.fits(model.size):
            if not others:
                raise ValueError(
                    f"{model.name} takes {model.size:,} bytes and stays loaded; --max-memory allows {self.limit:,}"
                )
            last: Any = others[-1].loaded
            others.pop().loaded = None
            last.close()
        model.users += 1
        self._models.append(model)

    async def make_room(self, size: int) -> None:
        """Close models that nobody uses, the least recently used first, until a model of this size fits.

        Raises:
            ApiError: 503, those in use fill the memory; 500, the model is larger than all of it.
        """
        if self.limit is not None and size > self.limit:
            raise ApiError(
                500, f"the model is larger than --max-memory ({size:,} bytes)", code="model_not_loaded"
            )
        while not self.fits(size):
            idle = [model for model in self._models if model.loaded is not None and model.users == 0]
            if not idle:
                raise busy("the models in use fill the memory; try again later", 1, 503, "memory_full")
            oldest = min(idle, key=lambda model: model.used)
            closing: Any = oldest.loaded
            oldest.loaded = None
            await asyncio.to_thread(closing.close)


class Pool(Generic[_M]):
    """Models of one kind. Those that do not fit the memory are loaded when they are asked for."""

    def __init__(
        self,
        models: Iterable[Served[_M]],
        memory: Memory,
        kind: str = "model",
        option: str = "--model",
        timeout: float = Limits.timeout,
    ) -> None:
        """Serve ``models``; the first is the one of requests that name none.

        Args:
            models: loaded when they are needed.
            memory: what they share.
            kind: what messages call them.
            option: of the server, which names such models.
            timeout: seconds that a request waits for a model.

        Raises:
            ValueError: two models have one name.
        """
        self.models: dict[str, Served[_M]] = {}
        for one in models:
            for name in (one.name, *one.aliases):
                if name in self.models:
                    raise ValueError(f"two models are named {name!r}; name one with {option} NAME=MODEL")
                self.models[name] = one
        self._memory = memory
        self._kind = kind
        self._option = option
        self._timeout = timeout
        memory.watch(self.distinct)

    @property
    def distinct(self) -> list[Served[_M]]:
        """Each model once."""
        return list({id(model): model for model in self.models.values()}.values())

    def find(self, name: str | None, param: str = "model") -> Served[_M]:
        """The model that ``param`` of a request names (`ApiError` 404 if there is none of that name)."""
        if name is None and self.models:
            return next(iter(self.models.values()))
        if name not in self.models:
            problem = (
                f"{self._kind} {name!r} is not served here; known are {', '.join(map(repr, self.models))}"
                if self.models
                else f"no {self._kind} is served; start the server with {self._option} MODEL"
            )
            raise ApiError(404, problem, param=param, code="model_not_found")
        return self.models[name]

    def load_what_fits(self) -> None:
        """Load the models in their order until the memory is full; called before the server starts.

        Raises:
            ValueError: a model alone is larger than the memory, or its folder is broken.
            FileNotFoundError: a model is not there.
        """
        limit = self._memory.limit
        for model in self.distinct:
            loaded = model.load() if self._memory.fits(max(model.size, 1)) else None
            if loaded is not None:
                model.size = loaded.bytes
                if self._memory.fits(model.size):
                    model.keep(loaded)
                    continue
                loaded.close()
            if limit is not None and model.size > limit:
                raise ValueError(
                    f"{model.name} takes about {model.size:,} bytes, --max-memory allows {limit:,}"
                )

    @asynccontextmanager
    async def use(self, name: str | None, param: str = "model") -> AsyncIterator[tuple[str, _M]]:
        """The model that ``param`` names, loaded, and the name it is known by; it stays loaded within the block."""
        model = self.find(name, param)
        model.used = time.monotonic()
        model.users += 1
        try:
            yield name or model.name, model.loaded or await self._loaded(model, param)
        finally:
            model.users -= 1

    async def _loaded(self, model: Served[_M], param: str) -> _M:
        """Wait until the model is loaded.

        Raises:
            ApiError: 504, that takes longer than a request may; later ones find it loaded.
        """
        if model.loading is None:
            model.loading = asyncio.create_task(self._load(model))
            model.loading.add_done_callback(partial(_ended, model))
        done, _ = await asyncio.wait({model.loading}, timeout=self._timeout)  # which leaves it running
        if not done:
            raise ApiError(
                504, f"{model.name} is still being loaded; ask again later", param=param, code="timeout"
            )
        return done.pop().result()

    async def _load(self, model: Served[_M]) -> _M:
        async with self._memory.lock:
            try:
                if model.check is not None:  # before others are closed for it
                    await asyncio.to_thread(model.check)
                await self._memory.make_room(model.size)
                loaded = await asyncio.to_thread(model.load)
            except (OSError, ValueError) as error:
                logger.error("%s cannot be loaded: %s", model.name, error)  # its path is not for clients
                raise ApiError(
                    500, f"{model.name} cannot be loaded; see the server's log", code="model_not_loaded"
                ) from error
            model.size = loaded.bytes
            try:
                await self._memory.make_room(model.size)  # before the first time its size was not known
            except ApiError:
                await asyncio.to_thread(loaded.close)
                raise
            model.keep(loaded)
            return loaded

    def close(self) -> None:
        """Close what is loaded."""
        for model in self.distinct:
            if model.loaded is not None:
                model.loaded.close()
                model.loaded = None


def _ended(model: Served[Any], loading: asyncio.Task[Any]) -> None:
    model.loading = None
    if not loading.cancelled():
        loading.exception()  # read, so that one that nobody waits for any more is not logged


def weights_bytes(folder: Path, precision: str) -> int:
    """About what a model takes in memory: its weights, in the type that it computes in."""
    files: list[Path] = []
    for suffix in (".safetensors", ".bin", ".onnx"):  # the same weights, where a folder holds several of them
        files = files or [path for path in folder.rglob(f"*{suffix}") if path.is_file()]
    if any(".int8." in path.name for path in files):
        return sum(path.stat().st_size for path in files)
    item = {"int8": 1, "bf16": 2, "fp16": 2}.get(precision, _STORED["F32"])
    return sum(_held(path, item) for path in files)


def _held(path: Path, item: int) -> int:
    """Bytes of the weights of a file, ``item`` each."""
    if path.suffix == ".safetensors":
        with suppress(ValueError):  # a damaged file, as loading it will tell
            file = SafetensorsFile(path)
            tables = {
                name: min(item, _STORED.get(file.dtype(name), item)) for name in _TABLES if name in file
            }
            return sum(math.prod(file.shape(name)) * tables.get(name, item) for name in file)
    return path.stat().st_size * item // _STORED["F32"]
