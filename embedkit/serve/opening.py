"""From options to an open server: models, rerankers and an index."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..arguments import PRECISIONS
from ..cross_encoder import CrossEncoder
from ..encoder import Encoder, prompt_of
from ..model_folder.cross_encoder_folder import open_cross_encoder
from ..model_folder.folder import BUILTIN, open_folder
from .metrics import Metrics, ModelMetrics
from .models import EmbeddingModel, Memory, Pool, RerankModel, Served, weights_bytes
from .settings import Settings
from .state import State

if TYPE_CHECKING:
    from ..index import Index
    from ..index.storage.manifest import Manifest
    from .search import SearchService

__all__ = ["Options", "named", "open_state"]

logger = logging.getLogger("embedkit.serve")

_M = TypeVar("_M", bound=EmbeddingModel | RerankModel)


@dataclass(frozen=True)
class Options:
    """What to serve.

    Attributes:
        models: ``[NAME=]FOLDER`` or Hub names; none: the index's model, or the built-in one.
        prompts: of each of the models, in place of those of its folder; none: those of the folders.
        rerankers: as ``models``, of cross-encoders.
        index: the folder of an index.
        precision, device, threads: as `Encoder` takes them; rerankers run on the CPU, and an index's own model in
            the precision of the index.
        max_memory: bytes of all models' weights together; what does not fit is loaded when it is asked for.
        settings: of the server.
    """

    models: Sequence[str] = ()
    prompts: Sequence[Mapping[str, str]] = ()
    rerankers: Sequence[str] = ()
    index: str | None = None
    precision: str = "auto"
    device: str = "auto"
    threads: int | None = None
    max_memory: int | None = None
    settings: Settings = field(default_factory=Settings)


def named(given: str) -> tuple[str, str]:
    """The name to serve a model by, and the model, of ``[NAME=]FOLDER``."""
    name, equals, model = given.partition("=")
    if equals and name and model and not Path(given).exists():
        return name, model
    folder = Path(given)
    return (folder.resolve().name if folder.is_dir() else given), given


def open_state(options: Options) -> State:
    """Open everything.

    Raises:
        ValueError, FileNotFoundError: a model or the index cannot be opened.
        ImportError: a package is missing.
    """
    metrics, settings = Metrics(), options.settings
    index: Index | None = None
    if options.index is not None:
        from ..index import Index

        index = Index.open(options.index, threads=options.threads)

    def unloaded(
        names: list[str], model: str, load: Callable[[ModelMetrics], _M], check: Callable[[Path], object]
    ) -> Served[_M]:
        return Served(
            names[0],
            partial(load, ModelMetrics(metrics, names[0])),
            size=_size(model, options.precision),
            aliases=names[1:],
            check=partial(check, Path(model)) if _is_local(model) else None,
        )

    served = [
        unloaded(names, model, partial(_embedder, model or None, prompts, options), open_folder)
        for names, model, prompts in _by_model(options.models or ([] if index else [""]), options.prompts)
    ]
    if not served and index is not None:
        model = Path(str(index.info()["model"])).name
        of_index = partial(
            _of_index, index.path, index.generation.manifest, options, ModelMetrics(metrics, model)
        )
        served.append(Served(model, of_index))
    memory = Memory(options.max_memory)
    embedders = Pool(served, memory, timeout=settings.limits.timeout)
    rerankers = Pool(
        [
            unloaded(names, model, partial(_reranker, model, options), open_cross_encoder)
            for names, model, _ in _by_model(options.rerankers)
        ],
        memory,
        "reranker",
        "--rerank",
        settings.limits.timeout,
    )
    for shared in embedders.models:
        if shared in rerankers.models:  # they share the labels of /metrics, and /v1/models/NAME
            raise ValueError(
                f"a model and a reranker are named {shared!r}; name the reranker with --rerank NAME=MODEL"
            )
    embedders.load_what_fits()
    rerankers.load_what_fits()
    if index is None:
        return State(settings, embedders, rerankers, None, metrics)
    search, own = _search(index, embedders, memory, options, metrics)
    for pool, option in ((embedders, "--model"), (rerankers, "--rerank")):
        if own is not None and own.name in pool.models:
            raise ValueError(
                f"{own.name!r} is the index's own model in /metrics; name the other one with {option} NAME=MODEL"
            )
    return State(settings, embedders, rerankers, search, metrics, own=own)


def _size(model: str, precision: str) -> int:
    """About what a local folder takes in memory; 0 for a model of the Hub."""
    return weights_bytes(Path(model), precision) if _is_local(model) else 0


def _is_local(model: str) -> bool:
    return bool(model) and Path(model).is_dir()


def _by_model(
    given: Sequence[str], prompts: Sequence[Mapping[str, str]] = ()
) -> list[tuple[list[str], str, dict[str, str]]]:
    """The names of each model, the model and its prompts; one that is named twice is loaded once."""
    names: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for one, own in zip(given, prompts or [{}] * len(given), strict=True):
        name, model = named(one) if one else (BUILTIN.name, "")
        names.setdefault((model, tuple(own.items())), []).append(name)
    return [(found, model, dict(own)) for (model, own), found in names.items()]


def _embedder(
    model: str | None, prompts: Mapping[str, str], options: Options, metrics: ModelMetrics
) -> EmbeddingModel:
    encoder = Encoder(
        model, device=options.device, precision=options.precision, threads=options.threads, prompts=prompts
    )
    return EmbeddingModel(encoder, options.settings.limits, metrics, frozenset(prompts))


def _reranker(model: str, options: Options, metrics: ModelMetrics) -> RerankModel:
    # cross-encoders run on the CPU, whatever the device of the others: a precision of GPUs does not concern them
    precision = options.precision if options.precision in PRECISIONS else "auto"
    encoder = CrossEncoder(model, precision=precision, threads=options.threads)
    return RerankModel(encoder, options.settings.limits, metrics)


def _of_index(path: Path, manifest: Manifest, options: Options, metrics: ModelMetrics) -> EmbeddingModel:
    """The index's own model, in the index's precision.

    Raises:
        ValueError: another precision is asked for, and no model is named that it could be meant for.
    """
    from ..index.encoder import check_encoder, load_encoder

    device = "cpu" if options.device == "auto" else options.device
    encoder = load_encoder(manifest, None, options.threads, device)
    precision = encoder.describe()["precision"]
    if not options.models and options.precision not in ("auto", precision):
        encoder.close()
        raise ValueError(
            f"--precision {options.precision}: the queries of {path} are encoded in {precision}, as its "
            "documents were; leave --precision out, or name a model to serve in it with --model"
        )
    check_encoder(path, manifest, encoder)
    return EmbeddingModel(encoder, options.settings.limits, metrics)


def _search(
    index: Index, embedders: Pool[EmbeddingModel], memory: Memory, options: Options, metrics: Metrics
) -> tuple[SearchService, Served[EmbeddingModel] | None]:
    """The index, with a served model if that is the index's, else with one of its own, the second of the two.

    Raises:
        ModelMismatchError: the index was encoded again since it was opened.
    """
    from ..index import Index, ModelMismatchError
    from ..index.encoder import own_max_length, own_overflow, reading_of
    from ..index.storage.generation import OLD_WORDS
    from .search import BatchedEncoder, SearchService

    info = index.info()
    own: Served[EmbeddingModel] | None = None
    for served in embedders.distinct:
        loaded = served.loaded
        if (
            loaded is not None
            and loaded.encoder.fingerprint == info["fingerprint"]
            and loaded.dimension == info["dimension"]
            and loaded.about["precision"] == info["precision"]
            and info["query_prompt"] in (None, prompt_of(loaded.encoder, "query"))
            and info["document_prompt"] == (prompt_of(loaded.encoder, "document") or "")
            and info["max_length"] == own_max_length(loaded.encoder)
            and index.generation.manifest.on_overflow == own_overflow(loaded.documents)
        ):
            served.users += 1  # it stays loaded
            break
    else:
        load = partial(
            _of_index, index.path, index.generation.manifest, options, ModelMetrics(metrics, "index")
        )
        loaded = load()
        own = Served("index", load, loaded, size=loaded.bytes)
        memory.keep(own)
    encoder: Any = BatchedEncoder(loaded)  # of queries alone: nothing is added here
    opened = Index.open(index.path, encoder)
    was, now = (reading_of(one.generation.manifest) for one in (index, opened))
    index.close()
    if was != now:
        opened.close()
        raise ModelMismatchError(f"{index.path} was encoded again meanwhile; start the server again")
    if opened.generation.has_old_words:
        logger.warning(OLD_WORDS.format(index.path))
    return SearchService(opened), own
