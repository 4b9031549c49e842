"""Reads and checks a model folder, except for the weights, which `weights` reads.

The format is that of sentence-transformers (any version) or of plain transformers. A folder that embedkit has
written also contains ``embedkit.json``: the version of the format, the precision, the fingerprint, and the ranges
for int8 embeddings if known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .architectures import FOREIGN, Architecture, CoreConfig, graph_config
from .families import REFUSED, architecture_of, known_types
from .json_file import present, read_json
from .modules import Dense, Normalize, Pooling, module_entries, plain_pooling, read_head, read_pooling
from .router import ROUTER_FILE, Routing, read_routing
from .sentence_settings import SENTENCE_CONFIGS, check_template, read_length
from .static import STATIC, StaticFiles, read_static
from .tokenizer_files import TOKENIZER_FILES

__all__ = [
    "BUILTIN",
    "FORMAT",
    "FORMER_BUILTIN",
    "METADATA_FILE",
    "SETTINGS_FILE",
    "SIMILARITIES",
    "ModelFolder",
    "SentenceConfig",
    "Settings",
    "Stamp",
    "assemble",
    "check_folder",
    "files_of",
    "open_folder",
    "read_config",
    "read_length",
]

#: Names of the models that earlier versions had built in.
FORMER_BUILTIN = ("embedkit-sts", "hpd-minilm-l6-128-int8")

BUILTIN = Path(__file__).parent.parent / "models" / "embedkit-256-int8"
"""The built-in model."""

FORMAT = 1
METADATA_FILE = "embedkit.json"
SETTINGS_FILE = "config_sentence_transformers.json"
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

_READ = frozenset(
    (
        "modules.json",
        "config.json",
        "adapter_config.json",
        METADATA_FILE,
        SETTINGS_FILE,
        ROUTER_FILE,
        *SENTENCE_CONFIGS,
        *TOKENIZER_FILES,
    )
)
_READ_ENDINGS = (".safetensors", ".safetensors.index.json")


@dataclass(frozen=True)
class Stamp:
    """The content of ``embedkit.json``; all None for a folder that embedkit did not write.

    Attributes:
        fingerprint: SHA-256 of the model, see `fingerprint`.
        source_weights: SHA-256 of the fp32 weights from which the folder was made.
        stored_weights: SHA-256 of the stored tensors.
        ranges: (minima, maxima) of the embeddings, one value per dimension.
    """

    fingerprint: str | None = None
    source_weights: str | None = None
    stored_weights: str | None = None
    ranges: tuple[tuple[float, ...], tuple[float, ...]] | None = None


@dataclass(frozen=True)
class Settings:
    """Settings that a caller may override; all but the similarity are part of the fingerprint."""

    prompts: Mapping[str, str]
    default_prompt_name: str | None
    max_length: int
    truncate_dim: int | None
    similarity_fn_name: str | None = None


@dataclass(frozen=True)
class ModelFolder:
    """A model folder, checked, without its weights.

    Attributes:
        path: the folder.
        transformer: the folder of ``config.json``, weights and tokenizer: ``path`` or a folder in it.
        precision: of the stored weights, ``"fp32"`` or ``"int8"``.
        max_seq_length: from ``sentence_bert_config.json``, which takes precedence over the tokenizer's; or None.
        max_seq_length_path: the file that sets it (``sentence_bert_config.json`` has older names), or None.
        do_lower_case: lower-case the text before the tokenizer's own normalization.
        truncate_dim: the number of dimensions to keep by default, or None for all.
        index_precision: ``"int8"`` or ``"int6"`` if the model's vectors lose nothing that matters in so many bits a
            column, in which an index then stores them by default; or None.
        graph_dimension: dimensions of an ONNX graph's vectors if no module describes how they are computed.
        static: the weights of a static model; None for a transformer.
        routing: which route a text takes; None for a model with one.
        routes: their folders; the default one, which this folder is of, among them.
        files: name, time and size of each file that makes the model what it is, when the folder was opened.
    """

    path: Path
    transformer: Path
    architecture: Architecture
    config: CoreConfig
    pooling: Pooling
    head: tuple[Dense | Normalize, ...]
    precision: str
    max_seq_length: int | None
    max_seq_length_path: Path | None
    do_lower_case: bool
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    similarity_fn_name: str | None
    truncate_dim: int | None
    stamp: Stamp
    graph_dimension: int | None = None
    index_precision: str | None = None
    static: StaticFiles | None = None
    routing: Routing | None = None
    routes: Mapping[str, ModelFolder] = field(default_factory=dict)
    files: Mapping[Path, tuple[int, int]] = field(default_factory=dict)

    @property
    def hidden_size(self) -> int:
        """Dimensions of a token's vector."""
        return int(self.config["hidden_size"])

    @property
    def positions(self) -> int:
        """Maximum number of tokens in a text; positions up to that of the padding are not counted."""
        return int(self.config["max_position_embeddings"]) - self.first_position

    @property
    def first_position(self) -> int:
        """The position of a text's first token: that after the padding's."""
        return int(self.config.get("padding_idx", -1)) + 1

    @property
    def dimension(self) -> int:
        """Dimensions of a text's vector, after the head and before any truncation."""
        if self.graph_dimension is not None:
            return self.graph_dimension
        for module in reversed(self.head):
            if isinstance(module, Dense):
                return module.out_features
        return self.hidden_size * len(self.pooling.modes)

    @property
    def normalizes(self) -> bool:
        """Whether the last module is a Normalize: vectors have length 1."""
        return bool(self.head) and isinstance(self.head[-1], Normalize)

    def ranges(self, width: int) -> npt.NDArray[np.float32] | None:
        """The saved ranges (2, width) of the first ``width`` dimensions; None if fewer are saved."""
        if self.stamp.ranges is None or width > len(self.stamp.ranges[0]):
            return None
        return np.asarray(self.stamp.ranges, dtype=np.float32)[:, :width]

    def default_length(self, special_tokens: int, model_max_length: int | None) -> int:
        """The default maximum number of tokens in a text, special tokens included.

        Args:
            special_tokens: how many the tokenizer adds to each text.
            model_max_length: the tokenizer's own limit, or None.

        Raises:
            ValueError: the special tokens leave no room for a text; names the file.
        """
        positions = self.positions
        if special_tokens >= positions:
            taken = self.first_position
            padding = f", {taken} of them unused by texts" if taken else ""
            name = "tokenizer.json" if present(self.transformer / "tokenizer.json") else "vocab.txt"
            raise ValueError(
                f"{self.transformer / name}: the tokenizer adds {special_tokens} special tokens to "
                f"each text, max_position_embeddings in config.json is "
                f"{self.config['max_position_embeddings']}{padding}; the files are of different models, "
                "fetch them again"
            )
        # Longer texts than those of the training only if asked for: DeBERTa's positions are relative, and others can
        # be stretched.
        usual = int(self.config.get("max_relative_positions", self.config.get("rotary_trained", positions)))
        length = min(self.max_seq_length or min(model_max_length or usual, usual), positions)
        if length <= special_tokens:
            path, key = self.max_seq_length_path, "max_seq_length"
            if path is None:
                path, key = self.transformer / "tokenizer_config.json", "model_max_length"
            raise ValueError(
                f"{path}: {key} is {length}, and {special_tokens} special tokens leave no room for a text; "
                f"set it from {special_tokens + 1} to {positions}, or remove it"
            )
        return length

    def with_files(self, files: Iterable[Path]) -> ModelFolder:
        """The folder with more files that make the model what it is; those that do not exist are left out."""
        states = {file: state for file in files if (state := _state(file)) is not None}
        return replace(self, files={**self.files, **states})

    @property
    def identity(self) -> str | dict[str, int]:
        """What tells a copy of the folder from another model: the stamp, or the size of each file by its name."""
        if self.stamp.fingerprint is not None:
            return self.stamp.fingerprint
        return {path.relative_to(self.path).as_posix(): size for path, (_, size) in self.files.items()}

    def check_unchanged(self) -> None:
        """Raise ValueError if a file is not the one that was there when the folder was opened."""
        for path, known in self.files.items():
            if _state(path) != known:
                raise ValueError(
                    f"{path} has changed since the model was opened, and may be of another model now: open it again"
                )

    def check_default_prompt(self, prompts: Mapping[str, str]) -> None:
        """Raise ValueError, naming the file, when the folder's default prompt is not one of ``prompts``."""
        name = self.default_prompt_name
        if name is not None and name not in prompts:
            raise ValueError(
                f"{self.path / SETTINGS_FILE}: default_prompt_name is {name!r:.80}, but the prompts are "
                f"{', '.join(map(repr, prompts))}; correct the file, or give "
                f"prompts={{{name!r:.80}: ...}} or another default_prompt_name"
            )


def open_folder(path: Path, *, graph: bool = False) -> ModelFolder:
    """Read a model folder without its weights.

    Args:
        path: the folder.
        graph: the forward pass is an ONNX graph: any model type is accepted, and no weights are needed.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: a file is damaged, or requires something that embedkit does not support.
    """
    check_folder(path)
    entries = module_entries(path)
    if graph and entries[0][0] != "Transformer":
        raise ValueError(
            f"{path} starts with a {entries[0][0]}, which embedkit's own backend runs, not a graph"
        )
    routed = entries[0][0] == "Router"
    folder = _open_routes(path, entries) if routed else _open_entries(path, entries, graph=graph)
    if folder.truncate_dim is not None and folder.truncate_dim > folder.dimension:
        raise ValueError(
            f"{path / SETTINGS_FILE}: truncate_dim is {folder.truncate_dim}, the model has {folder.dimension} "
            "dimensions; correct or remove it"
        )
    routes = folder.routing.entries.values() if folder.routing is not None else ()
    places = {path, *(place for modules in (entries, *routes) for _, place in modules)}
    files = files_of(places)
    if graph:  # the transformer's weights are not read then, and may come and go
        skipped = folder.transformer
        files = (file for file in files if file.parent != skipped or not file.name.endswith(_READ_ENDINGS))
    return folder.with_files(files)


def files_of(places: Iterable[Path]) -> Iterator[Path]:
    """The files that a model is read from, in the folders ``places`` of its modules."""
    for place in places:
        if place.is_dir():
            for file in place.iterdir():
                if file.name in _READ or file.name.endswith(_READ_ENDINGS):
                    yield file


def _state(file: Path) -> tuple[int, int] | None:
    """Time and size of a file; None if it is gone."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _open_entries(path: Path, entries: list[tuple[str, Path]], *, graph: bool = False) -> ModelFolder:
    """The folder of one row of modules, as `module_entries` lists them."""
    kind, transformer = entries[0]
    if kind == "StaticEmbedding":
        return _open_static(path, entries)
    architecture, config, raw = read_config(path, transformer, graph=graph)
    hidden_size = int(config["hidden_size"])
    if len(entries) > 1:
        pooling = read_pooling(entries[1][1], hidden_size)
    else:
        check_template(transformer)
        pooling = plain_pooling(raw)
    head = read_head(entries[2:], hidden_size * len(pooling.modes))
    return assemble(path, transformer, architecture=architecture, config=config, pooling=pooling, head=head)


def _open_routes(path: Path, entries: list[tuple[str, Path]]) -> ModelFolder:
    """The folder of the default route of a model with a Router, which comes first in ``entries``."""
    routing = read_routing(entries[0][1], entries[1:])
    routes = {name: _open_entries(path, modules) for name, modules in routing.entries.items()}
    first = routes[routing.first]
    for name, route in routes.items():
        if route.dimension != first.dimension:
            raise ValueError(
                f"{routing.path}: the route {name!r:.80} has {route.dimension} dimensions, "
                f"{routing.first!r:.80} has {first.dimension}; embedkit runs routes into one space"
            )
    # The stamp is that of all routes together.
    alone = {name: replace(route, stamp=Stamp(ranges=route.stamp.ranges)) for name, route in routes.items()}
    return replace(first, routing=routing, routes=alone)


def _open_static(path: Path, entries: list[tuple[str, Path]]) -> ModelFolder:
    """The folder of a static model; ``entries`` as `module_entries` lists them."""
    transformer = entries[0][1]
    precision, _ = _metadata(path / METADATA_FILE)
    weights = "model.int8.safetensors" if precision == "int8" else "model.safetensors"
    static, config = read_static(transformer, weights)
    head = read_head(entries[1:], int(config["hidden_size"]))
    folder = assemble(path, transformer, architecture=STATIC, config=config, pooling=Pooling(), head=head)
    length, length_path = folder.max_seq_length, folder.max_seq_length_path
    if length is None and static.model2vec:
        length, length_path = static.max_length or folder.positions, transformer / "config.json"
    return replace(folder, static=static, max_seq_length=length, max_seq_length_path=length_path)


def check_folder(path: Path) -> None:
    """Raise FileNotFoundError unless ``path`` is a folder."""
    if not path.is_dir():
        problem = "is a file, not a model folder" if path.exists() else "does not exist"
        raise FileNotFoundError(f"{path} {problem}; give a folder with config.json and model.safetensors")


def read_config(
    path: Path, transformer: Path, *, graph: bool = False
) -> tuple[Architecture, CoreConfig, dict[str, Any]]:
    """The architecture, its configuration for the core, and all of ``config.json``.

    Args:
        path: the model folder, for messages.
        transformer: the folder of ``config.json``.
        graph: as in `open_folder`; the architecture is then `FOREIGN`.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it is damaged, or of a model that the core does not support.
    """
    config_path, adapter = transformer / "config.json", transformer / "adapter_config.json"
    if present(adapter):
        raise ValueError(
            f"{adapter}: an adapter (LoRA), which must be merged into its model first: with PEFT, "
            "merge_and_unload(), then save"
        )
    if not present(config_path):
        raise FileNotFoundError(f"{config_path} is missing: {path} is not a complete model folder")
    raw = read_json(config_path)
    if graph:
        return FOREIGN, graph_config(raw, str(config_path)), raw
    model_type = raw.get("model_type")
    architecture = architecture_of(raw)
    if architecture is None and isinstance(model_type, str) and model_type in REFUSED:
        raise ValueError(
            f"{config_path}: model_type {model_type!r} has {REFUSED[model_type]}. "
            'It runs as an ONNX graph that Optimum exported: Encoder(FOLDER, backend="onnx")'
        )
    if architecture is None:
        raise ValueError(
            f"{config_path}: unknown model_type {model_type!r:.80}; expected one of {', '.join(known_types())}. "
            'A model of any type runs as an ONNX graph that Optimum exported: Encoder(FOLDER, backend="onnx")'
        )
    return architecture, architecture.core_config(raw, str(config_path)), raw


def assemble(
    path: Path,
    transformer: Path,
    *,
    architecture: Architecture,
    config: CoreConfig,
    pooling: Pooling,
    head: tuple[Dense | Normalize, ...] = (),
    task: str = "feature-extraction",
) -> ModelFolder:
    """A folder from its checked modules; its settings are read here, ``task`` is one of `TASKS`."""
    max_seq_length, max_seq_length_path, do_lower_case = read_length(transformer, task)
    settings = SentenceConfig(path)
    precision, stamp = _metadata(path / METADATA_FILE)
    return ModelFolder(
        path=path,
        transformer=transformer,
        architecture=architecture,
        config=config,
        pooling=pooling,
        head=head,
        precision=precision,
        max_seq_length=max_seq_length,
        max_seq_length_path=max_seq_length_path,
        do_lower_case=do_lower_case,
        prompts=settings.prompts(),
        default_prompt_name=settings.text("default_prompt_name"),
        similarity_fn_name=settings.similarity(),
        truncate_dim=settings.truncate_dim(),
        stamp=stamp,
        index_precision=settings.index_precision(),
    )


class SentenceConfig:
    """``config_sentence_transformers.json`` of a model folder; each value is checked when it is read.

    Raises:
        ValueError: a value is wrong; names the file and the key.
    """

    def __init__(self, folder: Path) -> None:
        """Read the file, if there is one."""
        self.path = folder / SETTINGS_FILE
        self.config = read_json(self.path) if present(self.path) else {}

    def _wrong(self, key: str, wanted: str) -> ValueError:
        return ValueError(f"{self.path}: {key} must be {wanted}, not {self.config[key]!r}")

    def prompts(self) -> dict[str, str]:
        """Name -> text of each prompt."""
        prompts = self.config.get("prompts") or {}
        if not isinstance(prompts, dict) or not all(
            isinstance(text, str | None) for text in prompts.values()
        ):
            raise self._wrong("prompts", "an object of texts")
        return {name: text or "" for name, text in prompts.items()}

    def text(self, key: str) -> str | None:
        """A string, or None."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def similarity(self) -> str | None:
        """``similarity_fn_name``; None also for one of other models (``maxsim``), as in sentence-transformers."""
        name = self.text("similarity_fn_name")
        return name if name in SIMILARITIES else None

    def index_precision(self) -> str | None:
        """``index_precision``, or None."""
        value = self.text("index_precision")
        if value not in (None, "int6", "int8", "fp32"):
            raise self._wrong("index_precision", "int6, int8 or fp32")
        return value

    def truncate_dim(self) -> int | None:
        """The number of dimensions to keep, or None for all."""
        value = self.config.get("truncate_dim")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise self._wrong("truncate_dim", "a positive integer")
        return value


def _metadata(path: Path) -> tuple[str, Stamp]:
    """The precision and the stamp of ``embedkit.json``; ``("fp32", Stamp())`` without that file."""
    if not present(path):
        return "fp32", Stamp()
    data = read_json(path)
    version = data.get("format")
    if version != FORMAT:
        raise ValueError(
            f"{path}: unknown format {version!r}; this embedkit reads format {FORMAT}. Upgrade embedkit."
        )
    precision = data.get("precision")
    if precision not in ("fp32", "int8"):
        raise ValueError(f"{path}: unknown precision {precision!r}; expected one of fp32, int8")
    hashes: dict[str, Any] = {}
    for key in ("fingerprint", "source_weights", "stored_weights"):
        hashes[key] = data.get(key)
        if not isinstance(hashes[key], str) or not re.fullmatch("[0-9a-f]{64}", hashes[key]):
            raise ValueError(f"{path}: {key} must be a SHA-256 in hexadecimal, not {hashes[key]!r}")
    return precision, Stamp(**hashes, ranges=read_ranges(path, data.get("embedding_ranges")))


def read_ranges(path: Path, value: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The ranges of embeddings in a file, checked; None for none."""
    if value is None:
        return None
    try:
        minima, maxima = (tuple(float(number) for number in row) for row in value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{path}: embedding_ranges must be two lists of numbers") from None
    if len(minima) != len(maxima) or not all(low <= high for low, high in zip(minima, maxima, strict=True)):
        raise ValueError(f"{path}: embedding_ranges must be minima and maxima of the same dimensions")
    return minima, maxima
