"""The writer of model folders: those of `embedkit.Encoder.save`, of a training and of the ONNX export.

The format is that of sentence-transformers, in the form that every version of it reads.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .fingerprint import fingerprint, hash_stored_weights, source_weights_hash
from .folder import FORMAT, METADATA_FILE, SETTINGS_FILE, ModelFolder, Settings, open_folder
from .json_file import load_json, present, read_json, write_json
from .modules import ACTIVATIONS, POOLING_FLAGS, Dense, Normalize, Pooling, module_folder
from .safetensors_file import write_errors
from .sentence_settings import sentence_config
from .static import is_model2vec
from .tokenizer_files import TOKENIZER_FILES
from .weights import WEIGHTS_FILES, converted_tensors, core_head, weights_file

__all__ = [
    "DenseWeights",
    "Modules",
    "append_dense",
    "check_new_folder",
    "check_one_route",
    "compose_dense",
    "copy_tokenizer",
    "copy_without_weights",
    "new_folder",
    "write_folder",
    "write_modules",
    "write_settings",
]

_DOCUMENTS = ("README*", "LICENSE*", "NOTICE*")
_HASHES = ("fingerprint", "source_weights", "stored_weights")
_VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt")


@dataclass(frozen=True)
class DenseWeights:
    """A Dense layer to be written: ``activation(weight @ x + bias)``.

    Attributes:
        weight: (out_features, in_features) float32.
        bias: (out_features,) float32.
        activation: the core's name, such as ``"identity"`` or ``"tanh"``.
    """

    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    activation: str = "identity"


@dataclass(frozen=True)
class Modules:
    """The modules of a model folder to be written.

    Attributes:
        hidden_size: dimensions of the token vectors.
        pooling: how they become one vector.
        head: the modules after the pooling, in order. The files of a `Dense` are in the folder already; a
            `DenseWeights` is written.
        transformer: path of the transformer's folder in the model folder.
        do_lower_case: lower-case the text before the tokenizer's own normalization.
        static: the first module is a StaticEmbedding; there is no pooling.
    """

    hidden_size: int
    pooling: Pooling
    head: tuple[Dense | DenseWeights | Normalize, ...] = ()
    transformer: Path = Path()
    do_lower_case: bool = False
    static: bool = False


def write_folder(
    folder: ModelFolder,
    target: Path,
    *,
    precision: str,
    settings: Settings,
    ranges: np.ndarray[Any, Any] | None,
    route_length: int | None = None,
) -> None:
    """Write ``folder`` at ``precision`` with other settings to the new folder ``target``.

    The folder appears complete or not at all: it is written beside ``target`` and renamed. ``route_length`` is as in
    `copy_without_weights`.

    Raises:
        FileExistsError: as `check_new_folder`.
        FileNotFoundError: ``folder`` or one of its files is gone; names it.
        ValueError: ``folder`` has changed since it was opened.
    """
    with new_folder(target) as work:
        copy_without_weights(folder, work, settings, route_length)
        _write_weights(folder, work, precision)
        stamped = folder if route_length is None else _shortened(folder, route_length)
        _write_metadata(stamped, work, precision, settings, ranges)
        folder.check_unchanged()


def check_new_folder(target: Path) -> Path:
    """Where ``target`` really is, if a new folder can take that place: nothing is there, or an empty folder.

    Raises:
        FileExistsError: ``target`` is a file, a folder that is not empty or cannot be replaced, or a link to nothing.
    """
    if target.is_symlink() and not target.exists():
        raise FileExistsError(f"{target} is a link to nothing; remove it or save to another folder")
    place = target.resolve()
    if place.exists():
        if not place.is_dir() or any(place.iterdir()):
            raise FileExistsError(f"{target} exists and is not empty; remove it or save to another folder")
        if place == Path.cwd() or os.path.ismount(place):
            what = "the working directory" if place == Path.cwd() else "a mount point"
            raise FileExistsError(f"{target} is {what}, which cannot be replaced; save to a folder inside it")
    return place


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill beside ``target``; it is renamed to ``target`` when the block ends without an error.

    Raises:
        FileExistsError: as `check_new_folder`.
        OSError: no folder can be made there; names ``target``.
    """
    place = check_new_folder(target)
    work = place.parent / f".{place.name}.{secrets.token_hex(8)}"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        work.mkdir()
    except OSError as error:  # names the hidden folder
        raise OSError(error.errno, error.strerror, str(target)) from None
    try:
        yield work
        try:
            if place.exists():
                place.rmdir()
            work.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise FileExistsError(
                f"{target} was written by another process meanwhile; remove it or save to another folder"
            ) from None
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def copy_without_weights(
    folder: ModelFolder, work: Path, settings: Settings, route_length: int | None = None
) -> None:
    """Write everything but the transformer's weights of ``folder``, with other settings, to ``work``.

    Args:
        folder: the model.
        work: the folder to fill.
        settings: what is written in place of the folder's own.
        route_length: maximum length of all routes, if there are some; None for their own.

    Raises:
        FileNotFoundError: ``folder`` or one of its files is gone; names it.
        ValueError: ``folder`` has changed since it was opened.
    """
    _check_source(folder)
    if folder.routing is not None:
        _copy_routes(folder, work, route_length)
    else:
        _copy_files(folder, work)
    modules = _modules_of(folder, work)
    if folder.routing is None:
        write_modules(work, modules)
    path = folder.path / SETTINGS_FILE
    write_settings(work, modules, settings, read_json(path) if present(path) else {})
    inner = work / modules.transformer
    if modules.static and is_model2vec(inner):
        length = settings.max_length if settings.max_length < folder.positions else None
        write_json(inner / "config.json", {**read_json(inner / "config.json"), "max_length": length})


def check_one_route(folder: ModelFolder) -> None:
    """Refuse a model with a Router where its default route alone would be read or written.

    Raises:
        ValueError: it has one.
    """
    if folder.routing is not None:
        raise ValueError(f"{folder.path} is a model with a Router; give a model with one route")


def append_dense(path: Path, layer: DenseWeights) -> None:
    """Add a layer after the last module of the model folder ``path``, in place.

    ``embedkit.json`` is removed: the fingerprint in it is that of the model without the layer.

    Raises:
        FileNotFoundError: a file of the folder is missing.
        ValueError: the folder is damaged or has a Router, or its vectors are not the layer's input.
    """
    folder = open_folder(path)
    check_one_route(folder)
    if layer.weight.shape[1] != folder.dimension:
        raise ValueError(f"{path} has {folder.dimension} dimensions, the layer takes {layer.weight.shape[1]}")
    modules = _modules_of(folder, path)
    write_modules(path, replace(modules, head=(*modules.head, layer)))
    (path / METADATA_FILE).unlink(missing_ok=True)
    if folder.index_precision is not None:  # which was measured for the vectors without the layer
        kept = read_json(path / SETTINGS_FILE)
        del kept["index_precision"]
        write_json(path / SETTINGS_FILE, kept)


def compose_dense(path: Path, weight: npt.NDArray[np.float32]) -> None:
    """Multiply the last layer of the model folder ``path`` from the left, in place; ``weight (k, dimension)``.

    ``embedkit.json`` stays, with the fingerprint of the model before: save the folder anew to have its own.

    Raises:
        FileNotFoundError: a file of the folder is missing.
        ValueError: the folder is damaged or has a Router, or its head has no Dense layer without an activation.
    """
    folder = open_folder(path)
    check_one_route(folder)
    modules = _modules_of(folder, path)
    head = list(modules.head)
    place, last = next(
        ((i, one) for i, one in reversed(list(enumerate(head))) if isinstance(one, Dense)), (0, None)
    )
    if last is None or last.activation != "identity":
        raise ValueError(f"{path} has no Dense layer without an activation after its pooling")
    core = core_head(folder)[place]
    bias = np.zeros(last.out_features, np.float32) if core["bias"] is None else core["bias"]
    head[place] = DenseWeights(weight @ core["weight"], weight @ bias)
    shutil.rmtree(last.folder)
    write_modules(path, replace(modules, head=tuple(head)))


def copy_tokenizer(source: Path, target: Path, *, vocabulary: bool = True) -> None:
    """Copy the tokenizer's files from one transformer's folder to another.

    Args:
        source: the folder with the files.
        target: the other one, which exists.
        vocabulary: also copy vocabulary files where tokenizer.json contains them; slow tokenizers of transformers 4
            read nothing else.
    """
    contained = not vocabulary and present(source / "tokenizer.json")
    for name in TOKENIZER_FILES:
        if present(source / name) and not (contained and name in _VOCABULARIES):
            shutil.copyfile(source / name, target / name)


def write_modules(folder: Path, modules: Modules) -> None:
    """Write ``modules.json``, the pooling's configuration and the Dense layers; existing files are replaced."""
    entries = [("Transformer", modules.transformer.as_posix()), ("Pooling", "1_Pooling")]
    if modules.static:
        entries = [("StaticEmbedding", modules.transformer.as_posix())]
    taken = {
        module.folder.relative_to(folder).as_posix() for module in modules.head if isinstance(module, Dense)
    }
    for module in modules.head:
        number = len(entries)
        if isinstance(module, Dense):
            entries.append(("Dense", module.folder.relative_to(folder).as_posix()))
        elif isinstance(module, DenseWeights):
            name = next(name for i in count(number) if (name := f"{i}_Dense") not in taken)
            taken.add(name)
            entries.append(("Dense", name))
            _write_dense(folder / name, module)
        else:
            entries.append(("Normalize", f"{number}_Normalize"))  # has no files
    write_json(
        folder / "modules.json",
        [
            {
                "idx": number,
                "name": str(number),
                "path": "" if path == "." else path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, (kind, path) in enumerate(entries)
        ],
    )
    if not modules.static:
        write_json(folder / "1_Pooling" / "config.json", _pooling_config(modules))


def write_settings(
    folder: Path, modules: Modules, settings: Settings, others: Mapping[str, Any] | None = None
) -> None:
    """Write the maximum length, prompts, similarity and truncation.

    Args:
        folder: the model folder.
        modules: its modules.
        settings: what is written.
        others: further keys of ``config_sentence_transformers.json`` to keep.
    """
    _write_length(folder / modules.transformer, settings.max_length, modules.do_lower_case)
    config = dict(others or {})
    config["prompts"] = dict(settings.prompts)
    config["default_prompt_name"] = settings.default_prompt_name
    config["similarity_fn_name"] = settings.similarity_fn_name
    if config.get("truncate_dim") != settings.truncate_dim:
        config.pop("index_precision", None)  # which was measured for other vectors
    if settings.truncate_dim is not None:
        config["truncate_dim"] = settings.truncate_dim
    else:
        config.pop("truncate_dim", None)
    write_json(folder / SETTINGS_FILE, config)


def _check_source(folder: ModelFolder) -> None:
    """Weights and tokenizer are read again from where the model was opened: they must still be there."""
    advice = f"saving reads {folder.path} again; put the model back, or open it again from its new location"
    names = ("tokenizer.json", "vocab.txt")
    try:
        now = open_folder(folder.path)
        if not any(present(folder.transformer / name) for name in names):
            raise FileNotFoundError(f"{folder.transformer} holds neither {' nor '.join(names)}")
        weights_file(folder.transformer, folder.precision)
        core_head(folder)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} ({advice})") from None
    if now != folder:
        raise ValueError(f"{folder.path} has changed since the model was opened: {advice}")


def _copy_routes(folder: ModelFolder, work: Path, length: int | None) -> None:
    """Copy the files of all routes; the names of their modules stay. ``length`` is that of every route, if given."""
    assert folder.routing is not None
    listing, router = folder.path / "modules.json", folder.routing.path
    named = [module_folder(folder.path, module.get("path", ""), listing) for module in load_json(listing)]
    for names in read_json(router)["structure"].values():
        named += [module_folder(router.parent, name, router) for name in names]
    # A Dropout, which no route has here, is still named in the two files.
    settings = [
        path for module in named for path in (module / "config.json", sentence_config(module)[1]) if path
    ]
    for path in (listing, router, *settings):
        if present(path):
            destination = work / path.relative_to(folder.path)
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, destination)
    for route in folder.routes.values():
        _copy_files(route, work)
        if length is not None:
            inner = work / route.transformer.relative_to(folder.path)
            _write_length(inner, min(length, route.positions), route.do_lower_case)


def _shortened(folder: ModelFolder, length: int) -> ModelFolder:
    """A folder whose routes have another maximum length, as `_copy_routes` writes it."""
    routes = {
        name: replace(route, max_seq_length=min(length, route.positions))
        for name, route in folder.routes.items()
    }
    return replace(folder, routes=routes)


def _write_length(folder: Path, length: int, do_lower_case: bool) -> None:
    """Write ``sentence_bert_config.json`` to the folder of a transformer."""
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": do_lower_case}
    )


def _copy_files(folder: ModelFolder, work: Path) -> None:
    """Copy the files that do not depend on precision and settings."""
    inner = work / folder.transformer.relative_to(folder.path)
    inner.mkdir(parents=True, exist_ok=True)
    for pattern in _DOCUMENTS:
        for path in folder.path.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, work / path.name)
    copy_tokenizer(folder.transformer, inner, vocabulary=False)
    if folder.static is None or present(folder.transformer / "config.json"):
        shutil.copyfile(folder.transformer / "config.json", inner / "config.json")
        config = read_json(inner / "config.json")
        for key in ("dtype", "torch_dtype"):
            if key in config:  # the type in which transformers computes: that of the tensors written
                config[key] = "float32"
                write_json(inner / "config.json", config)
        if "auto_map" in config:  # code of the model's own, for other programs
            for path in folder.transformer.glob("*.py"):
                shutil.copyfile(path, inner / path.name)
    for module in folder.head:
        if isinstance(module, Dense):
            destination = work / module.folder.relative_to(folder.path)
            destination.mkdir(parents=True, exist_ok=True)
            for name in ("config.json", WEIGHTS_FILES["fp32"]):
                shutil.copyfile(module.folder / name, destination / name)


def _modules_of(folder: ModelFolder, root: Path) -> Modules:
    """The modules of a folder whose files are, or were copied to, below ``root``."""
    return Modules(
        hidden_size=folder.hidden_size,
        pooling=folder.pooling,
        head=tuple(
            replace(module, folder=root / module.folder.relative_to(folder.path))
            if isinstance(module, Dense)
            else module
            for module in folder.head
        ),
        transformer=folder.transformer.relative_to(folder.path),
        do_lower_case=folder.do_lower_case,
        static=folder.static is not None,
    )


def _pooling_config(modules: Modules) -> dict[str, Any]:
    modes = modules.pooling.modes
    config: dict[str, Any] = {}
    if tuple(mode for mode in POOLING_FLAGS.values() if mode in modes) == modes:
        config["word_embedding_dimension"] = modules.hidden_size
        config.update({flag: mode in modes for flag, mode in POOLING_FLAGS.items()})
    else:  # an order that only the form of sentence-transformers 6 can express
        config["embedding_dimension"] = modules.hidden_size
        config["pooling_mode"] = [m + "_tokens" if m == "mean_sqrt_len" else m for m in modes]
    return {**config, "include_prompt": modules.pooling.include_prompt}


def _write_dense(folder: Path, layer: DenseWeights) -> None:
    outputs, inputs = layer.weight.shape
    names = {kind: name for name, kind in ACTIVATIONS.items()}
    write_json(
        folder / "config.json",
        {
            "in_features": inputs,
            "out_features": outputs,
            "bias": True,
            "activation_function": names[layer.activation],
        },
    )
    _save_tensors(folder / WEIGHTS_FILES["fp32"], {"linear.weight": layer.weight, "linear.bias": layer.bias})


def _save_tensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    from safetensors.numpy import save_file

    with write_errors(path):
        save_file(
            {name: np.ascontiguousarray(x) for name, x in tensors.items()}, path, metadata={"format": "pt"}
        )
    model = next(
        file for name in ("config.json", "tokenizer.json") if (file := path.with_name(name)).exists()
    )
    shutil.copymode(model, path)  # save_file's files are readable by their owner only


def _write_weights(folder: ModelFolder, work: Path, precision: str) -> None:
    """Write the transformer's weights, or those of all routes; routes may share a module."""
    if folder.routes:
        for route in {route.transformer: route for route in folder.routes.values()}.values():
            _write_weights(route, work, precision)
        return
    static = folder.static
    tensors = dict(converted_tensors(folder, precision)) if static is None else static.saved(precision)
    _save_tensors(work / folder.transformer.relative_to(folder.path) / WEIGHTS_FILES[precision], tensors)


def _write_metadata(
    folder: ModelFolder,
    work: Path,
    precision: str,
    settings: Settings,
    ranges: np.ndarray[Any, Any] | None,
) -> None:
    """Write ``embedkit.json``, from the weights that were written."""
    write_json(
        work / METADATA_FILE, {"format": FORMAT, "precision": precision, **dict.fromkeys(_HASHES, "0" * 64)}
    )
    stored = hash_stored_weights(open_folder(work))
    # fp32 weights computed from int8 ones are not those that the int8 ones were made from.
    dequantized = folder.precision == "int8" and precision == "fp32"
    source = stored if dequantized else source_weights_hash(folder)
    metadata: dict[str, Any] = {
        "format": FORMAT,
        "precision": precision,
        "fingerprint": fingerprint(folder, source, settings),
        "source_weights": source,
        "stored_weights": stored,
    }
    if ranges is not None:
        metadata["embedding_ranges"] = [[float(value) for value in row] for row in ranges]
    write_json(work / METADATA_FILE, metadata)
