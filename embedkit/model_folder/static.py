"""Static models: ``StaticEmbedding`` of sentence-transformers and Model2Vec's folders.

Such a model has no layers: a text's vector is the mean of the rows of its tokens in one table. Model2Vec
(https://github.com/MinishLab/model2vec) writes the table as ``embeddings``, beside it in some models ``mapping``
(vocabulary,), each token's row where several share one, and ``weights`` (vocabulary,), a factor for each token; it
leaves unknown tokens out of the mean. sentence-transformers writes ``embedding.weight`` alone and counts unknown tokens
in, and so does embedkit with each one's folders. Texts are cut by tokens in both; Model2Vec cuts by characters first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .architectures import Architecture, CoreConfig
from .json_file import present, read_json
from .safetensors_file import SafetensorsFile, to_bf16

__all__ = ["STATIC", "StaticFiles", "is_model2vec", "read_static"]

Array = npt.NDArray[Any]

STATIC = Architecture(
    prefix="", integers=(), fixed={}, classifier=("", None, ""), layers="", tensors={}, family="static"
)
"""Has no tensors of its own: `StaticFiles` reads them."""

_POSITIONS = 1_000_000  # tokens of a text; there are no positions that would limit them
_MODEL2VEC_LENGTH = 512  # Model2Vec's own default
_MOST_TOKENS = 10_000_000


def is_model2vec(folder: Path) -> bool:
    """Whether ``config.json`` is Model2Vec's."""
    path = folder / "config.json"
    if not present(path):
        return False
    config = read_json(path)
    return config.get("model_type") == "model2vec" or config.get("architectures") == ["StaticModel"]


@dataclass(frozen=True)
class StaticFiles:
    """The weights of a static model.

    Attributes:
        path: the safetensors file.
        table: the name of the table in it.
        dtype: its type there: ``"F32"``, ``"F16"``, ``"BF16"`` or ``"I8"``.
        max_length: of Model2Vec's ``config.json``; None for no limit, or a folder of sentence-transformers.
    """

    path: Path
    table: str
    dtype: str
    max_length: int | None

    @property
    def model2vec(self) -> bool:
        """Whether Model2Vec's rules apply."""
        return self.table == "embeddings"

    def stored(self) -> Iterator[tuple[str, Array]]:
        """The tensors by the names of the core, sorted; a table of 16 bits as float32, int8 with its scales.

        Raises:
            ValueError: a tensor has another type or a value that is not finite.
        """
        file = SafetensorsFile(self.path)
        if "mapping" in file:
            yield "table.mapping", self._mapping(file)
        table = file[self.table]
        self._check_finite(self.table, table)
        yield "table.weight", table
        if self.dtype == "I8":
            yield "table.weight_scale", self._scale(file, len(table))
        if "weights" in file:
            yield "table.weights", self._weights(file)

    def core(self, precision: str) -> dict[str, Array]:
        """The tensors that ``_core.Encoder`` takes, in memory of their own.

        In ``"fp32"`` the table keeps its type: sums are float32. bfloat16 is passed as its bits.
        """
        tensors = dict(self.stored())
        table = tensors["table.weight"]
        if precision == "int8" and self.dtype != "I8":
            scale = np.abs(table).max(axis=1, initial=0) / np.float32(127)
            rounded = np.rint(table / np.where(scale > 0, scale, np.float32(1))[:, None])
            tensors["table.weight"] = np.clip(rounded, -127, 127).astype(np.int8)
            tensors["table.weight_scale"] = scale
        elif precision == "bf16" and self.dtype != "I8":
            tensors["table.weight"] = to_bf16(table)
        elif self.dtype == "F16":
            tensors["table.weight"] = table.astype(np.float16)  # exactly the values of the file
        elif self.dtype == "BF16":
            tensors["table.weight"] = to_bf16(table)
        return {name: tensor if tensor.flags.writeable else tensor.copy() for name, tensor in tensors.items()}

    def saved(self, precision: str) -> dict[str, Array]:
        """The tensors of a folder to be written, by its names: fp32 keeps float16 and int8, if stored so."""
        tensors = self.core(precision)
        table = tensors["table.weight"]
        if table.dtype == np.uint16:  # numpy has no type that safetensors would write as bfloat16
            tensors["table.weight"] = (table.astype(np.uint32) << 16).view(np.float32)
        if self.dtype == "I8" and precision == "fp32":
            scale = tensors.pop("table.weight_scale")
            if (scale != 1).any():
                tensors["table.weight"] = tensors["table.weight"] * scale[:, None]
        names = {
            "table.weight": self.table,
            "table.weight_scale": f"{self.table}_scale",
            "table.weights": "weights",
            "table.mapping": "mapping",
        }
        return {names[name]: tensor for name, tensor in tensors.items()}

    def _scale(self, file: SafetensorsFile, rows: int) -> Array:
        name = f"{self.table}_scale"
        if name not in file:  # Model2Vec's int8 has one scale for all, which it drops
            return np.ones(rows, np.float32)
        if file.dtype(name) != "F32" or file.shape(name) != (rows,):
            raise ValueError(f"{self.path}: tensor {name!r} must hold {rows} F32 numbers")
        scale = file[name]
        self._check_finite(name, scale)
        return scale

    def _weights(self, file: SafetensorsFile) -> Array:
        weights = file.numbers("weights").astype(np.float32)
        self._check_finite("weights", weights)
        return weights

    def _mapping(self, file: SafetensorsFile) -> Array:
        mapping = file.numbers("mapping")
        rows = file.shape(self.table)[0]
        if mapping.dtype.kind not in "iu" or (
            mapping.size and not 0 <= mapping.min() <= mapping.max() < rows
        ):
            raise ValueError(f"{self.path}: tensor 'mapping' must hold integers from 0 to {rows - 1}")
        return mapping.astype(np.int32)

    def _check_finite(self, name: str, tensor: Array) -> None:
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise ValueError(f"{self.path}: tensor {name!r} holds values that are not finite")


def read_static(folder: Path, weights: str) -> tuple[StaticFiles, CoreConfig]:
    """The files of a static model, checked, and its configuration for the core; no large tensor is read.

    Args:
        folder: with the weights and ``tokenizer.json``.
        weights: the name of the file with the weights.

    Raises:
        FileNotFoundError: the weights or ``tokenizer.json`` are missing.
        ValueError: a file is damaged, or the table does not fit the tokenizer.
    """
    path, tokenizer = folder / weights, folder / "tokenizer.json"
    for needed in (path, tokenizer):
        if not present(needed):
            raise FileNotFoundError(f"{needed} is missing; fetch the model again")
    file = SafetensorsFile(path)
    table = next((name for name in ("embedding.weight", "embeddings") if name in file), None)
    if table is None:
        raise ValueError(f"{path}: holds neither 'embedding.weight' nor 'embeddings'; fetch the model again")
    shape, dtype = file.shape(table), file.dtype(table)
    if (
        dtype not in ("F32", "F16", "BF16", "I8")
        or len(shape) != 2
        or not 0 < shape[1] <= 65536
        or not shape[0]
    ):
        raise ValueError(
            f"{path}: tensor {table!r} is {dtype} of the shape {list(shape)}; "
            "expected (tokens, dimension) as F32, F16, BF16 or I8"
        )
    tokens = shape[0]
    for name in ("mapping", "weights"):
        if name in file:
            if len(file.shape(name)) != 1 or not file.shape(name)[0]:
                raise ValueError(
                    f"{path}: tensor {name!r} has the shape {list(file.shape(name))}, expected one row"
                )
            if name == "mapping":
                tokens = file.shape(name)[0]
            elif file.shape(name)[0] != tokens:
                raise ValueError(f"{path}: 'weights' has {file.shape(name)[0]} entries for {tokens} tokens")
    if max(tokens, shape[0]) > _MOST_TOKENS:
        raise ValueError(f"{path}: {max(tokens, shape[0])} tokens are too many")
    model2vec = table == "embeddings"
    config: CoreConfig = {
        "hidden_size": shape[1],
        "num_hidden_layers": 0,
        "num_attention_heads": 1,
        "intermediate_size": 1,
        "vocab_size": tokens,
        "max_position_embeddings": _POSITIONS,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "static_rows": shape[0],
        "ignored_id": _unknown_id(tokenizer) if model2vec else -1,
    }
    return StaticFiles(path, table, dtype, _max_length(folder) if model2vec else None), config


def _max_length(folder: Path) -> int | None:
    path = folder / "config.json"
    if not present(path):
        return _MODEL2VEC_LENGTH
    value = read_json(path).get("max_length", _MODEL2VEC_LENGTH)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{path}: max_length must be a positive integer or null, not {value!r:.80}")
    return None if value is None else int(value)


def _unknown_id(path: Path) -> int:
    """The id that Model2Vec leaves out, -1 for none."""
    model = read_json(path).get("model")
    if not isinstance(model, dict):
        raise ValueError(f'{path}: there is no "model". Fetch the file again.')
    name, number = model.get("unk_token"), model.get("unk_id")
    if isinstance(name, str):
        vocabulary = model.get("vocab")
        number = vocabulary.get(name) if isinstance(vocabulary, dict) else None
    return number if type(number) is int else -1
