"""The weights of a model folder in the core's form, and their quantization to int8.

Int8 is symmetric with one scale per row: ``w ≈ int8 * scale[:, None]``, int8 in [-127, 127], where a row is an
output channel of a linear layer or one embedding. Biases, layer norms, token types and the head stay float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .architectures import TensorSpec
from .folder import ModelFolder
from .json_file import present, read_json
from .modules import Dense
from .safetensors_file import SafetensorsFile, to_bf16

__all__ = [
    "WEIGHTS_FILES",
    "converted_tensors",
    "core_classifier",
    "core_head",
    "core_logit_score",
    "core_tensors",
    "dequantize",
    "quantize",
    "stored_tensors",
    "weights_file",
]

Array = npt.NDArray[Any]

# int8 has its own file name: a reader of model.safetensors that ignores the scales would load the integers as
# weights and silently compute wrong vectors.
WEIGHTS_FILES = {"fp32": "model.safetensors", "int8": "model.int8.safetensors"}
_INDEX = "model.safetensors.index.json"


def weights_file(transformer: Path, precision: str) -> Path:
    """The file of a transformer's weights, or the index of their shards.

    Raises:
        FileNotFoundError: there are no safetensors weights; says what to do.
    """
    path, index = transformer / WEIGHTS_FILES[precision], transformer / _INDEX
    if present(path):
        return path
    if precision == "fp32" and present(index):
        return index
    raise _missing(path, transformer)


def stored_tensors(folder: ModelFolder, *, keep_bf16: bool = False) -> Iterator[tuple[str, Array]]:
    """Every tensor of the transformer as stored, checked, sorted by name.

    Tensors of fp32 folders (also stored as fp16 or bf16) are float32. Quantized tensors of int8 folders are int8,
    each followed by ``name + "_scale"`` (rows,) in float32. Arrays may be views of the mapped file.

    Args:
        folder: the model.
        keep_bf16: give the matrices that int8 quantizes as uint16, the bits of bfloat16, where they are stored so.

    Raises:
        FileNotFoundError: there are no safetensors weights.
        ValueError: a tensor is missing, has the wrong shape or type, or contains a value that is not finite.
    """
    if folder.static is not None:
        yield from folder.static.stored()
        return
    source = _Source(folder)
    for name, spec in sorted(folder.architecture.tensor_specs(folder.config).items()):
        if folder.precision == "int8" and spec.quantized:
            yield name, source.read(name, spec.shape, "I8")
            yield f"{name}_scale", source.read(f"{name}_scale", spec.shape[:1], "F32")
        else:
            yield name, source.read(name, spec.shape, "bits" if keep_bf16 and spec.quantized else "float")


def converted_tensors(
    folder: ModelFolder, precision: str, *, keep_bf16: bool = False
) -> Iterator[tuple[str, Array]]:
    """`stored_tensors` in ``precision``: ``"int8"``, else floats."""
    tensors = stored_tensors(folder, keep_bf16=keep_bf16)
    if precision == "int8" and folder.precision != "int8":
        return quantize(folder.architecture.tensor_specs(folder.config), tensors)
    if precision != "int8" and folder.precision == "int8":
        return dequantize(tensors)
    return tensors


def core_tensors(folder: ModelFolder, precision: str) -> dict[str, Array]:
    """The tensors that ``_core.Encoder`` takes for ``precision``, from those of the folder.

    The core packs the matrices of the layers into its own memory and keeps every other array as it is; those are
    copied here. A view would depend on the file: if it is truncated, for example by ``rsync --inplace``, the process
    dies with SIGBUS, and if it is overwritten, the vectors change.

    Matrices stored in bfloat16 stay so (uint16), with the same values in half the memory. With ``precision="bf16"``
    the tables of embeddings are rounded to it; the core rounds the matrices of the layers as it packs them.
    """
    if folder.static is not None:
        return folder.static.core(precision)
    specs = folder.architecture.tensor_specs(folder.config)
    layers = folder.architecture.layers
    arrays: dict[str, Array] = {}
    for name, tensor in converted_tensors(folder, precision, keep_bf16=precision != "int8"):
        if tensor.ndim == 2 and name.startswith(layers):
            arrays[name] = tensor
        elif precision == "bf16" and name in specs and specs[name].quantized and tensor.dtype == np.float32:
            arrays[name] = to_bf16(tensor)
        else:
            arrays[name] = _private(tensor)
    return arrays


def _private(tensor: Array) -> Array:
    """The array in memory of this process: a copy of a view of a mapped file, which is not writeable."""
    return tensor if tensor.flags.writeable else tensor.copy()


def quantize(
    specs: Mapping[str, TensorSpec], tensors: Iterator[tuple[str, Array]]
) -> Iterator[tuple[str, Array]]:
    """Quantize the tensors marked in ``specs``: each becomes an int8 array and its float32 ``_scale``."""
    for name, tensor in tensors:
        if not specs[name].quantized:
            yield name, tensor
            continue
        scale = np.abs(tensor).max(axis=1) / np.float32(127)
        # Rows of zeros, and rows so small that their scale rounds to zero, become zeros.
        divisor = np.where(scale > 0, scale, np.float32(1))
        rounded = np.rint(tensor / divisor[:, None])
        yield name, np.clip(rounded, -127, 127, out=rounded).astype(np.int8)
        yield f"{name}_scale", scale


def dequantize(tensors: Iterator[tuple[str, Array]]) -> Iterator[tuple[str, Array]]:
    """Float32 weights from int8 ones and their scales: ``int8 * scale[:, None]``."""
    for name, tensor in tensors:
        if tensor.dtype != np.int8:
            yield name, tensor
            continue
        _, scale = next(tensors)  # `stored_tensors` yields it next
        yield name, tensor.astype(np.float32) * scale[:, None]


def core_head(folder: ModelFolder) -> list[dict[str, Any]]:
    """The modules after the pooling in the form of ``_core.Encoder``."""
    head: list[dict[str, Any]] = []
    for module in folder.head:
        if not isinstance(module, Dense):
            head.append({"type": "normalize"})
            continue
        path = module.folder / WEIGHTS_FILES["fp32"]
        if not present(path):
            raise _missing(path, module.folder)
        file = SafetensorsFile(path)
        shape = (module.out_features, module.in_features)
        head.append(
            {
                "type": "dense",
                "weight": _checked(file, "linear.weight", shape, "float"),
                "bias": _checked(file, "linear.bias", shape[:1], "float") if module.bias else None,
                "activation": module.activation,
            }
        )
    return head


def core_classifier(folder: ModelFolder, classes: int) -> list[dict[str, Any]]:
    """The head of a sequence classifier, applied to the pooled token, in the form of ``_core.Encoder``.

    Raises:
        FileNotFoundError: there are no safetensors weights.
        ValueError: a tensor is missing, has the wrong shape or type, or contains a value that is not finite.
    """
    source, hidden = _Source(folder), folder.hidden_size
    architecture = folder.architecture
    inner, activation, outer = architecture.classifier
    layers = ((inner, hidden, activation or folder.config["hidden_act"]), (outer, classes, "identity"))
    head: list[dict[str, Any]] = [
        {
            "type": "dense",
            "weight": _private(source.read(f"{name}.weight", (rows, hidden), "float")),
            "bias": None
            if architecture.is_decoder or (name == inner and architecture.classifier_norm)
            else _private(source.read(f"{name}.bias", (rows,), "float")),
            "activation": function,
        }
        for name, rows, function in layers
        if name
    ]
    if architecture.classifier_norm:
        weight = _private(source.read(f"{architecture.classifier_norm}.weight", (hidden,), "float"))
        head.insert(1, {"type": "layer_norm", "weight": weight})
    return head


def core_logit_score(
    folder: ModelFolder, true: int, false: int | None, *, tied: bool
) -> list[dict[str, Any]]:
    """The difference of two tokens' logits, in the form of ``_core.Encoder``.

    Args:
        folder: of a language model.
        true: the id of the token whose logit counts.
        false: the id of the token whose logit is subtracted; None for none.
        tied: the rows are those of the table of embeddings.

    Raises:
        FileNotFoundError: there are no safetensors weights.
        ValueError: an id is not of the vocabulary, or a tensor is missing, has the wrong shape or type, or contains a
            value that is not finite.
    """
    vocabulary = int(folder.config["vocab_size"])
    ids = [true] if false is None else [true, false]
    if max(ids) >= vocabulary:
        raise ValueError(
            f"{folder.path}: the score reads the token {max(ids)}, and vocab_size in config.json is {vocabulary}; the "
            "files are of different models, fetch them again"
        )
    source = _Source(folder)
    # Where a file has both, transformers ties them only if they are equal.
    name = "embed_tokens.weight" if tied and not source.holds("lm_head.weight") else "lm_head.weight"
    rows = source.rows(name, (vocabulary, folder.hidden_size), ids)
    weight = rows[:1] if false is None else rows[:1] - rows[1:]
    return [{"type": "dense", "weight": weight, "bias": None, "activation": "identity"}]


def _missing(path: Path, folder: Path) -> FileNotFoundError:
    pickles = sorted(item.name for item in folder.glob("*.bin"))
    if pickles:
        return FileNotFoundError(
            f"{folder} holds its weights only as a pickle ({', '.join(pickles)}), which embedkit never "
            "opens, since a pickle can run any code. If you trust it, convert it once: load it with "
            "sentence-transformers and call save_pretrained(), which writes model.safetensors."
        )
    if any(item.suffix == ".onnx" for place in (folder, folder / "onnx") for item in place.glob("*")):
        return FileNotFoundError(
            f'{path} is missing: the folder holds an ONNX graph, which Encoder(FOLDER, backend="onnx") runs; for '
            "anything else, give the folder it was exported from"
        )
    return FileNotFoundError(
        f"{path} is missing: the model has no weights in safetensors form. If it has them only as a pickle "
        "(pytorch_model.bin), which embedkit neither fetches nor opens, load it with sentence-transformers and call "
        "save_pretrained(); otherwise fetch it again"
    )


# Checkpoints converted from TensorFlow name the layer norms' tensors gamma and beta.
_FORMER = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def _of_today(name: str) -> str:
    for part, former in _FORMER.items():
        name = name.replace(former, part)
    return name


class _Source:
    """Finds tensors in one file or in the shards of an index, with or without the model's prefix."""

    def __init__(self, folder: ModelFolder) -> None:
        self._architecture = folder.architecture
        self._config_path = folder.transformer / "config.json"
        self._prefixes = ("", folder.architecture.prefix, *folder.architecture.prefixes)
        self._path = weights_file(folder.transformer, folder.precision)
        if self._path.name == _INDEX:
            self._places = self._read_index(self._path)
        else:
            file = SafetensorsFile(self._path)
            self._places = dict.fromkeys(file, file)
        self._refuse_more_layers(folder)
        if folder.architecture.family:
            self._refuse_unknown(folder)

    def _bare(self, stored: str) -> str:
        """A stored name without the model's prefix."""
        for prefix in self._prefixes[1:]:
            stored = stored.removeprefix(prefix)
        return stored

    def _refuse_unknown(self, folder: ModelFolder) -> None:
        """Refuse a layer with tensors that the family lacks: its variant computes something else."""
        architecture = folder.architecture
        known: set[str] = set()
        for name in architecture.tensor_specs(folder.config):
            known.update((name, f"{name}_scale"), *architecture.other_names(name))
        starts = {
            architecture.layers,
            *(n for names in architecture.other_names(architecture.layers) for n in names),
        }
        for stored in self._places:
            name = _of_today(self._bare(stored))
            if (
                any(name.startswith(start) for start in starts)
                and name not in known
                and "inv_freq" not in name
            ):
                raise ValueError(
                    f"{self._path}: holds {stored!r:.80}, which {architecture.family} as embedkit computes it lacks; "
                    "the model is a variant that it does not run"
                )

    def _refuse_more_layers(self, folder: ModelFolder) -> None:
        """Refuse a file with more layers than config.json: it belongs to another model."""
        layers, key = folder.architecture.layers, folder.architecture.layer_count
        count = int(folder.config[key])
        numbers = set(map(str, range(count)))
        for stored in self._places:
            name = self._bare(stored)
            if name.startswith(layers) and name.removeprefix(layers).partition(".")[0] not in numbers:
                raise ValueError(
                    f"{self._path}: holds {stored!r:.80}, config.json makes {key} {count}; "
                    "the files are of different models, fetch them again"
                )

    def _read_index(self, path: Path) -> dict[str, SafetensorsFile]:
        places = read_json(path).get("weight_map")
        if not isinstance(places, dict):
            raise ValueError(f"{path}: weight_map is missing. Fetch the file again.")
        shards: dict[str, SafetensorsFile] = {}
        for name, shard in places.items():
            if not isinstance(shard, str) or not shard.endswith(".safetensors") or Path(shard).name != shard:
                raise ValueError(
                    f"{path}: tensor {name!r} is in {shard!r}, which is not a safetensors file in this folder"
                )
            if shard not in shards:
                if not present(path.parent / shard):
                    raise FileNotFoundError(f"{path.parent / shard} is missing; {path.name} names it")
                shards[shard] = SafetensorsFile(path.parent / shard)
        return {name: shards[shard] for name, shard in places.items()}

    def read(self, name: str, shape: tuple[int, ...], kind: str) -> Array:
        """A tensor by its canonical name.

        ``kind`` is ``"float"``, ``"bits"`` (uint16 if all of it is stored as BF16, else as float), ``"F32"``
        or ``"I8"``.
        """
        old = name
        for part, former in _FORMER.items():
            old = old.replace(part, former)
        for prefix in self._prefixes:
            for stored in (prefix + name, prefix + old):
                if stored in self._places:
                    return _checked(self._places[stored], stored, shape, kind)
            for parts in self._architecture.other_names(name):
                if all(prefix + part in self._places for part in parts):
                    return self._joined([prefix + part for part in parts], shape, kind)
        raise self._lacks(name)

    def _lacks(self, name: str) -> ValueError:
        code = read_json(self._config_path).get("auto_map")
        cause = "the file does not match config.json"
        if code:
            cause = "the model has code of its own (auto_map in config.json), which embedkit does not run"
        return ValueError(f"{self._path}: tensor {name!r} is missing; {cause}")

    def holds(self, name: str) -> bool:
        """Whether there is a tensor of this canonical name."""
        return any(prefix + name in self._places for prefix in self._prefixes)

    def rows(self, name: str, shape: tuple[int, ...], places: list[int]) -> Array:
        """Rows of a float matrix by its canonical name, without reading the others."""
        for stored in (prefix + name for prefix in self._prefixes):
            if stored in self._places:
                return _checked(self._places[stored], stored, shape, "float", places)
        raise self._lacks(name)

    def _joined(self, parts: list[str], shape: tuple[int, ...], kind: str) -> Array:
        """The rows of several tensors of one shape."""
        rows = (shape[0] // len(parts), *shape[1:])
        if kind == "bits" and any(self._places[part].dtype(part) != "BF16" for part in parts):
            kind = "float"
        return np.concatenate([_checked(self._places[part], part, rows, kind) for part in parts])


def _checked(
    file: SafetensorsFile, name: str, shape: tuple[int, ...], kind: str, rows: list[int] | None = None
) -> Array:
    if name not in file:
        raise ValueError(f"{file.path}: tensor {name!r} is missing; the file does not match its config.json")
    stored = file.dtype(name)
    floating = kind in ("float", "bits")
    if (floating and stored == "I8") or not (floating or kind == stored):
        wanted = "F32, F16 or BF16" if floating else kind
        raise ValueError(f"{file.path}: tensor {name!r} is stored as {stored}, expected {wanted}")
    if file.shape(name) != shape:
        raise ValueError(
            f"{file.path}: tensor {name!r} has the shape {list(file.shape(name))}, "
            f"config.json makes it {list(shape)}"
        )
    if kind == "bits" and stored == "BF16":
        bits = file.bits(name)
        if not ((bits & 0x7F80) == 0x7F80).any():  # the exponent of infinities and NaN
            return bits
    tensor = file[name] if rows is None else file.rows(name, rows)
    if stored == "I8":
        if tensor.min() < -127:
            raise ValueError(f"{file.path}: tensor {name!r} holds -128; int8 weights lie in [-127, 127]")
    elif not np.isfinite(tensor).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(tensor))[0])
        where = list(place) if rows is None else [rows[place[0]], *place[1:]]
        raise ValueError(
            f"{file.path}: tensor {name!r} holds {tensor[place]} at {where}; "
            "weights must be finite. The training diverged, or the file is damaged."
        )
    return tensor
