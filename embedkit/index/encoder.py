"""What an index needs from an encoder, and the check that it is the right one."""

from __future__ import annotations

import copy
import os
import shlex
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..files import expanded
from ..forking import fork_lock
from ..model_folder.folder import BUILTIN, FORMER_BUILTIN
from .errors import ModelMismatchError
from .storage.manifest import EncoderEntry, Manifest

if TYPE_CHECKING:
    from ..encoder import Encoder

__all__ = [
    "LazyEncoder",
    "TextEncoder",
    "check_encoder",
    "check_reading",
    "describe_encoder",
    "like_own",
    "load_encoder",
    "opened",
    "own_max_length",
    "own_overflow",
    "query_steps",
    "reading_of",
    "refuses_long",
    "trial_of",
]


class TextEncoder(Protocol):
    """What an index needs from an encoder; implemented by `embedkit.Encoder`."""

    @property
    def fingerprint(self) -> str:
        """Identifies the model."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Prompts by name; "document" is put before the texts of documents."""

    def get_embedding_dimension(self) -> int:
        """The number of columns of a vector."""

    def describe(self) -> dict[str, Any]:
        """A description with at least ``model`` and ``precision``."""

    def encode_document(self, sentences: list[str], *, normalize_embeddings: bool) -> Any:
        """Encode documents: float32 (n, dimension)."""

    def encode_query(self, sentences: list[str], *, normalize_embeddings: bool) -> Any:
        """Encode queries: float32 (n, dimension)."""


def describe_encoder(encoder: TextEncoder) -> EncoderEntry:
    """``encoder`` as a manifest records it."""
    from ..encoder import prompt_of

    if not isinstance(encoder.fingerprint, str):
        raise TypeError(f"the encoder's fingerprint must be a string, not {encoder.fingerprint!r:.80}")
    description = encoder.describe()
    return EncoderEntry(
        model=_found_again(description),
        fingerprint=encoder.fingerprint,
        precision=str(description["precision"]),
        document_prompt=prompt_of(encoder, "document") or "",
        query_prompt=prompt_of(encoder, "query"),
    )


def _found_again(description: Mapping[str, Any]) -> str:
    """The model by which `embedkit.Encoder` opens the same from any working directory: a folder by its whole path."""
    model, path = str(description["model"]), Path(description.get("path", ""))
    if path == BUILTIN:
        return BUILTIN.name
    # a name of the Hub leads to a folder of the cache, which does not end with it
    given = expanded(model).parts
    return str(path.resolve()) if path.parts[len(path.parts) - len(given) :] == given else model


def opened(
    encoder: TextEncoder | str | os.PathLike[str] | None, threads: int | None, like: Manifest | None = None
) -> TextEncoder:
    """``encoder``, or the one of a path or name; ``None`` is the built-in model.

    One that is loaded here reads long texts as that of the index ``like`` does, or refuses them as its build did; of
    the same model, it also has the prompts and dimensions of that.
    """
    if encoder is not None and not isinstance(encoder, (str, os.PathLike)):
        return encoder
    from .. import Encoder

    options = {} if like is None else _lengths(like)
    if like is not None and like.refuses_long:
        options["on_overflow"] = "error"
    loaded = Encoder(encoder, threads=threads, **options)
    if like is not None and like.encoder.fingerprint == loaded.fingerprint:
        like_own(loaded, like)
    return loaded


def like_own(encoder: Encoder, manifest: Manifest) -> None:
    """Set the prompts and dimensions that the index's own encoder had."""
    encoder.prompts = {**encoder.prompts, **manifest.encoder.prompts}
    dimension = encoder.get_embedding_dimension()
    if dimension != manifest.dimension <= encoder._engine.folder.dimension:  # with more, it is another model
        encoder.truncate_dim = manifest.dimension


def _lengths(manifest: Manifest) -> dict[str, Any]:
    """Options of an `embedkit.Encoder` that reads long texts as that of the index did."""
    given = {"max_length": manifest.max_length, "on_overflow": manifest.on_overflow}
    return {name: value for name, value in given.items() if value is not None}


def own_max_length(encoder: TextEncoder) -> int | None:
    """The encoder's maximum of tokens if it was set, ``None`` if it is its model's (or unknown)."""
    from ..encoder import Encoder

    if not isinstance(encoder, Encoder):
        told: int | None = encoder.describe().get("own_max_length")
        return told
    return encoder._own_length


def own_overflow(encoder: TextEncoder) -> str | None:
    """``"window"`` if that is how the encoder reads texts beyond its maximum, which changes their vectors."""
    return "window" if encoder.describe().get("on_overflow") == "window" else None


def refuses_long(encoder: TextEncoder) -> bool:
    """Whether the encoder refuses texts beyond its maximum."""
    return encoder.describe().get("on_overflow") == "error"


def trial_of(encoder: TextEncoder) -> TextEncoder:
    """An encoder of the same model, to try texts on: it refuses no long ones, and ``encoder`` does not count them."""
    from ..encoder import Encoder

    if not isinstance(encoder, Encoder):
        return encoder
    trial = copy.copy(encoder)  # shares the weights, and counts by itself
    if trial._on_overflow == "error":
        trial._on_overflow = "truncate"
    return trial


def _is_static(model: str | os.PathLike[str] | None) -> bool:
    """Whether it is a table of token vectors; None for the built-in model."""
    from ..model_folder.folder import open_folder
    from ..model_folder.hub import resolve

    return model is not None and open_folder(resolve(model)).static is not None


def load_encoder(
    manifest: Manifest, model: str | os.PathLike[str] | None, threads: int | None, device: str
) -> Encoder:
    """The encoder that the manifest names, or the one at ``model``, with the settings of the index's own."""
    from .. import Encoder

    entry = manifest.encoder
    if model is None and entry.model != BUILTIN.name:
        if entry.model in FORMER_BUILTIN:
            raise ModelMismatchError(
                f"the index was built with {entry.model}, the built-in model of an earlier embedkit, which this one "
                f"({BUILTIN.name}) replaces; encode its texts again: embedkit-index reembed INDEX"
            )
        model = entry.model
    if device != "cpu" and _is_static(model):
        device = "cpu"  # which reads its table faster than a GPU would get it; the index is still searched on the GPU
    # The nearest to 16 or 8 bits of a GPU is the model's own precision on a CPU, where an int8 folder has no bf16; and
    # to int8 of a CPU a GPU's 16 bits, since its 8-bit products are others, which not every GPU and model has.
    known = ("fp32", "int8") if device == "cpu" else ("fp32", "fp16", "bf16", "fp8")
    precision = entry.precision if entry.precision in known else "auto"
    encoder = Encoder(model, device=device, precision=precision, threads=threads, **_lengths(manifest))
    like_own(encoder, manifest)
    return encoder


def check_reading(root: Path, encoder: TextEncoder, manifest: Manifest) -> None:
    """Raise `ModelMismatchError` if documents would be read otherwise than those of the index."""
    from ..encoder import Encoder, prompt_of

    prompt, recorded = prompt_of(encoder, "document") or "", manifest.encoder.document_prompt
    if prompt != recorded:
        raise ModelMismatchError(
            f"{root} was built with the document prompt {recorded!r}, but the encoder's is {prompt!r}; open it "
            f"with an encoder of the same (prompts={{'document': {recorded!r}}}), or build it again"
        )
    own, built = getattr(encoder, "max_seq_length", None), manifest.max_length
    if isinstance(encoder, Encoder):
        route = encoder._engine.of("document")
        own = encoder._length_on(route)
        built = route.folder_length if built is None else min(built, route.positions)
    if own != built and None not in (own, built):
        raise ModelMismatchError(
            f"{root} was built with max_length={built}, but the encoder's is {own}; "
            "open it with an encoder of the same length, or build it again"
        )
    overflow, stored = own_overflow(encoder), manifest.on_overflow
    if isinstance(encoder, Encoder) and overflow != stored:
        raise ModelMismatchError(
            f"{root} was built with on_overflow={stored or 'truncate'!r}, but the encoder's is "
            f"{overflow or 'truncate'!r}; open it with an encoder of the same, or build it again"
        )


def query_steps(
    encoder: TextEncoder, *, normalize: bool
) -> tuple[Callable[[list[str]], Any], Callable[[Any], tuple[Any, float]]]:
    """`embedkit.Encoder.query_steps`; for another encoder the first step does nothing."""
    from ..encoder import Encoder

    if type(encoder) is Encoder:  # a subclass may have an `encode_query` of its own
        return encoder.query_steps(normalize_embeddings=normalize)
    return lambda texts: texts, lambda texts: (
        encoder.encode_query(texts, normalize_embeddings=normalize),
        0.0,
    )


def check_encoder(root: Path, manifest: Manifest, encoder: TextEncoder, *, force: bool = False) -> None:
    """Raise `ModelMismatchError` if the encoder's vectors cannot be compared with those of the index.

    With ``force`` another model is only a warning; another dimension remains an error.
    """
    entry = manifest.encoder
    if encoder.fingerprint != entry.fingerprint:
        problem = (
            f"{root} was built with {entry.model} (fingerprint {entry.fingerprint}), but the encoder is "
            f"{encoder.describe()['model']} (fingerprint {encoder.fingerprint})"
        )
        if not force:
            name = _found_again(encoder.describe())
            model = "" if name == BUILTIN.name else f" --model {shlex.quote(name)}"
            raise ModelMismatchError(
                f"{problem}; open it with the model it was built with, or encode its texts again: "
                f"embedkit-index reembed {shlex.quote(str(root))}{model}"
            )
        warnings.warn(f"{problem}: the hits may be meaningless", stacklevel=4)
    dimension = encoder.get_embedding_dimension()
    if dimension != manifest.dimension:
        raise ModelMismatchError(
            f"{root} holds vectors of {manifest.dimension} dimensions, but the encoder returns {dimension} "
            "(truncate_dim?); open it with an encoder of the same dimension, or build it again"
        )


class LazyEncoder:
    """The encoder of a generation of an index: as given, or loaded when it is first needed. Thread-safe."""

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        given: TextEncoder | str | os.PathLike[str] | None,
        threads: int | None,
        device: str,
        *,
        force: bool,
    ) -> None:
        """For the generation of ``manifest`` of the index at ``root``; the others are as in `Index.open`."""
        if given and isinstance(given, (str, os.PathLike)) and (folder := expanded(given)).is_dir():
            given = folder.absolute()  # it may be loaded in another working directory
        self._root = root
        self._manifest = manifest
        self._given = given
        self._threads = threads
        self._device = device
        self._force = force
        self._lock = fork_lock()
        self._loaded = None if given is None or isinstance(given, (str, os.PathLike)) else given

    @property
    def known(self) -> TextEncoder | str | os.PathLike[str] | None:
        """The encoder, or while it is not loaded what was given for it."""
        return self._given if self._loaded is None else self._loaded

    def get(self) -> TextEncoder:
        """The encoder (`ModelMismatchError` if its model has changed)."""
        with self._lock:
            if self._loaded is None:
                assert self._given is None or isinstance(self._given, (str, os.PathLike))
                encoder = load_encoder(self._manifest, self._given, self._threads, self._device)
                check_encoder(self._root, self._manifest, encoder, force=self._force)
                self._loaded = encoder
            return self._loaded

    def check(self, manifest: Manifest) -> None:
        """Raise `ModelMismatchError` if this is loaded, and another generation has vectors of another model."""
        if self._loaded is not None and _made_by(manifest) != _made_by(self._manifest):
            check_encoder(self._root, manifest, self._loaded, force=self._force)

    def following(self, manifest: Manifest) -> LazyEncoder:
        """The encoder of another generation, which passed the `check`."""
        if _made_by(manifest) == _made_by(self._manifest) or self._loaded is self._given is not None:
            return self
        return LazyEncoder(self._root, manifest, self._given, self._threads, self._device, force=self._force)


def _made_by(manifest: Manifest) -> tuple[object, ...]:
    """What `load_encoder` makes an encoder of."""
    return manifest.encoder.model, reading_of(manifest)


def reading_of(manifest: Manifest) -> tuple[object, ...]:
    """What an encoder must have for its vectors to be those of an index, wherever its model lies."""
    encoder = replace(manifest.encoder, model="")
    return encoder, manifest.dimension, manifest.max_length, manifest.on_overflow
