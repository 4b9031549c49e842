"""The sentence encoder that is trained: a transformers backbone, pooling and a projection."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..model_folder.architectures import counts_from_padding, graph_config
from ..model_folder.folder import SentenceConfig, Settings, read_length
from ..model_folder.json_file import read_json
from ..model_folder.modules import Dense, Normalize, module_entries, read_head, read_pooling
from ..model_folder.modules import Pooling as PoolingModule
from ..model_folder.saving import DenseWeights, Modules, copy_tokenizer, write_modules, write_settings
from . import packed
from .pooling import Activation, Pooling, pool_project_normalize

__all__ = [
    "ModelOptions",
    "Projection",
    "SentenceModel",
    "by_length",
    "inference",
    "load_backbone",
    "options_of",
    "pack",
    "quiet",
    "transformer_folder",
]

# A packed row is padded to a multiple of this many tokens: oneDNN compiles a kernel for each number of rows and keeps
# about a thousand of them.
_ROW_MULTIPLE = 64


@dataclass(frozen=True)
class Projection:
    """A linear layer after the pooling: ``activation(W x + b)``, W (dimension, hidden_size)."""

    dimension: int
    activation: Activation = "identity"

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise ValueError(f"model.projection.dimension must be positive, not {self.dimension}")


@dataclass(frozen=True)
class ModelOptions:
    """The ``model`` section of a recipe.

    Attributes:
        path: folder or Hub name of the backbone: a transformers or sentence-transformers folder.
        layers: the number of layers to keep, spread evenly from first to last, or their indices; None for all.
        config: overrides of keys in config.json; with ``random`` they define the new backbone.
        random: start from random weights of that configuration instead of the folder's weights.
        pooling: ``mean``, ``max`` or ``cls``.
        projection: a linear layer after the pooling, or None.
        normalize: whether vectors are scaled to length 1, in training and in the saved folder.
        max_length: maximum number of tokens in a text, special tokens included.
        dropout: of hidden states and attention; None for the backbone's own.
        freeze_embeddings: do not train the word, position and type embeddings.
    """

    path: str
    layers: int | list[int] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    random: bool = False
    pooling: Pooling = "mean"
    projection: Projection | None = None
    normalize: bool = False
    max_length: int = 128
    dropout: float | None = None
    freeze_embeddings: bool = False

    def __post_init__(self) -> None:
        if self.max_length < 3:
            raise ValueError(
                f"model.max_length must leave room for a token between the special ones, not {self.max_length}"
            )
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must be from 0 to below 1, not {self.dropout}")


class SentenceModel(nn.Module):
    """Packed token ids to sentence vectors.

    Attributes:
        backbone: a transformers encoder.
        projection: the layer after the pooling, or None.
        tokenizer_folder: the folder of the tokenizer's files.
        autocast: type of the backbone's products in mixed precision, None for fp32; pooling, heads and losses are
            always fp32.
        settings: prompts, similarity and length that `save` writes.
        include_prompt: whether a prompt's tokens are pooled by readers of the saved folder.
    """

    def __init__(self, options: ModelOptions, folder: Path, backbone: Any) -> None:
        """Wrap a loaded backbone; usually called by `load`."""
        super().__init__()
        self.options = options
        self.tokenizer_folder = folder
        self.backbone = backbone
        self.projection = None
        if options.projection is not None:
            self.projection = nn.Linear(self.hidden_size, options.projection.dimension)
        if options.freeze_embeddings:
            backbone.embeddings.requires_grad_(False)
        self.autocast: torch.dtype | None = None
        self.settings = Settings({}, None, options.max_length, None, "cosine")
        self.include_prompt = True
        self._packed = packed.supports(backbone)
        if self._packed:
            packed.register()
            backbone.config._attn_implementation = packed.NAME

    @classmethod
    def load(cls, options: ModelOptions) -> SentenceModel:
        """Load, shorten or create the backbone that ``options`` describe; see `continue_from_folder`.

        Raises:
            FileNotFoundError: the folder does not exist.
            ValueError: the options do not fit the backbone.
        """
        folder = transformer_folder(options.path)
        model = cls(options, folder, load_backbone(options, folder))
        model.continue_from_folder()
        return model

    def continue_from_folder(self) -> None:
        """Keep the prompts and the similarity of the backbone's folder; start the projection from its Dense module.

        A random backbone takes nothing from its folder, and the projection takes only a Dense module of its own size
        and activation.

        Raises:
            ValueError: a file of the folder is damaged.
        """
        from safetensors.torch import load_file

        if self.options.random:
            return
        root = _root_folder(self.options.path)
        config, entries = SentenceConfig(root), module_entries(root)
        self.settings = replace(
            self.settings,
            prompts=config.prompts(),
            default_prompt_name=config.text("default_prompt_name"),
            similarity_fn_name=config.similarity() or "cosine",
        )
        if len(entries) > 1:
            self.include_prompt = read_pooling(entries[1][1], self.hidden_size).include_prompt
        wanted = self.options.projection
        if self.projection is None or wanted is None:
            return
        for module in read_head(entries[2:], self.hidden_size):
            if not isinstance(module, Dense):
                continue
            if (module.out_features, module.activation) == (wanted.dimension, wanted.activation):
                tensors = load_file(module.folder / "model.safetensors")
                with torch.no_grad():
                    self.projection.weight.copy_(tensors["linear.weight"])
                    self.projection.bias.copy_(tensors.get("linear.bias", torch.zeros(wanted.dimension)))
            return

    def bare(self) -> SentenceModel:
        """The same backbone without projection, normalization and prompts: its vectors are the pooled ones."""
        options = replace(self.options, projection=None, normalize=False)
        return SentenceModel(options, self.tokenizer_folder, self.backbone)

    def project_by(self, weight: npt.NDArray[np.float32], bias: npt.NDArray[np.float32]) -> None:
        """Set the projection to ``weight^T x + bias``, weight (hidden_size, dimension)."""
        assert self.projection is not None
        with torch.no_grad():
            self.projection.weight.copy_(torch.from_numpy(weight.T))
            self.projection.bias.copy_(torch.from_numpy(bias))

    @property
    def hidden_size(self) -> int:
        """Width of the token vectors."""
        return int(self.backbone.config.hidden_size)

    @property
    def dimension(self) -> int:
        """Width of the sentence vectors."""
        return self.hidden_size if self.options.projection is None else self.options.projection.dimension

    def hidden(self, input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Token vectors (tokens, hidden_size), fp32, of ``input_ids (tokens,)`` cut at ``cu_seqlens (n + 1,)``."""
        grid = packed.blocks_of(cu_seqlens) if self._packed else packed.grid_of(cu_seqlens)
        arguments: dict[str, Any]
        if self._packed:
            starts = cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff())
            positions = torch.arange(len(input_ids), device=input_ids.device) - starts
            positions = positions + _position_offset(self.backbone.config)
            idle = (0, -len(input_ids) % _ROW_MULTIPLE)
            arguments = {
                "input_ids": nn.functional.pad(input_ids, idle)[None],
                "position_ids": nn.functional.pad(positions, idle)[None],
                "grid": grid,
            }
        else:
            arguments = {
                "input_ids": packed.pad(input_ids, grid, self.backbone.config.pad_token_id or 0),
                "attention_mask": packed.pad(torch.ones_like(input_ids), grid, 0),
            }
        with torch.autocast(input_ids.device.type, self.autocast, enabled=self.autocast is not None):
            output = self.backbone(**arguments).last_hidden_state
        return (output[0, : len(input_ids)] if self._packed else packed.collect([output], grid)).float()

    def forward(self, input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Sentence vectors (n, dimension) of a packed batch."""
        return self.pool(self.hidden(input_ids, cu_seqlens), cu_seqlens)

    def pool(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Token vectors (tokens, hidden_size) to sentence vectors (n, dimension)."""
        projection = self.options.projection
        return pool_project_normalize(
            hidden,
            cu_seqlens,
            pooling=self.options.pooling,
            weight=None if self.projection is None else self.projection.weight.t(),
            bias=None if self.projection is None else self.projection.bias,
            activation="identity" if projection is None else projection.activation,
            normalize=self.options.normalize,
        )

    def encode(self, sentences: Sequence[str], batch_tokens: int = 4096) -> npt.NDArray[np.float32]:
        """Vectors (n, dimension) of texts, in order, without dropout; for dev scores."""
        from .data.store import TextStore

        store = TextStore(self.tokenizer_folder, sentences, self.options.max_length)
        vectors = np.empty((len(store.lengths), self.dimension), np.float32)
        with inference(self) as device:
            for rows in by_length(store.lengths, batch_tokens):
                ids, cu_seqlens = pack([store.ids(row) for row in rows])
                vectors[rows] = self(ids.to(device), cu_seqlens.to(device)).cpu().numpy()
        return vectors[store.rows]

    def save(self, folder: Path) -> None:
        """Write a model folder that `embedkit.Encoder` and sentence-transformers load.

        ``folder`` must exist; files in it are replaced.
        """
        self.backbone.config._attn_implementation = None  # the next reader picks its own
        try:
            with quiet():
                self.backbone.save_pretrained(folder)
        finally:
            if self._packed:
                self.backbone.config._attn_implementation = packed.NAME
        copy_tokenizer(self.tokenizer_folder, folder)
        head: list[DenseWeights | Normalize] = []
        if self.projection is not None and self.options.projection is not None:
            weight, bias = (
                x.detach().float().cpu().numpy() for x in (self.projection.weight, self.projection.bias)
            )
            head.append(DenseWeights(weight, bias, self.options.projection.activation))
        if self.options.normalize:
            head.append(Normalize())
        pooling = PoolingModule((self.options.pooling,), self.include_prompt)
        modules = Modules(self.hidden_size, pooling, tuple(head))
        write_modules(folder, modules)
        write_settings(folder, modules, self.settings)


def pack(rows: Sequence[npt.NDArray[np.int32]]) -> tuple[Tensor, Tensor]:
    """Token ids of several texts to ``input_ids (tokens,)`` int64 and ``cu_seqlens (n + 1,)`` int64."""
    cu_seqlens = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=cu_seqlens[1:])
    return torch.from_numpy(np.concatenate(rows).astype(np.int64)), torch.from_numpy(cu_seqlens)


def by_length(lengths: npt.NDArray[np.integer[Any]], batch_tokens: int) -> Iterator[npt.NDArray[np.int64]]:
    """Rows in batches of about ``batch_tokens`` tokens, the shortest first; ``lengths (n,)`` are in tokens."""
    order = np.argsort(lengths, kind="stable")
    cuts = np.flatnonzero(np.diff(np.cumsum(lengths[order]) // batch_tokens)) + 1
    yield from (rows for rows in np.split(order, cuts) if len(rows))


@contextmanager
def inference(model: nn.Module) -> Iterator[torch.device]:
    """Run the block without dropout and gradients; gives the model's device."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield next(model.parameters()).device
    finally:
        model.train(was_training)


def load_backbone(options: ModelOptions, folder: Path, kind: str = "AutoModel", **extra: Any) -> Any:
    """The transformers model of ``options``: an ``AutoModel`` or another of its auto classes, in fp32."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    unknown = sorted(set(options.config) - set(config.to_dict()) - set(extra))
    if unknown:
        raise ValueError(f"model.config: {unknown[0]!r} is not a key of {folder / 'config.json'}")
    config.update({**options.config, **extra})
    positions = getattr(config, "max_position_embeddings", options.max_length + 2)
    positions -= _position_offset(config)
    if options.max_length > positions:
        raise ValueError(
            f"model.max_length is {options.max_length}, and {folder} has {positions} positions; "
            f"set model.max_length to at most {positions}"
        )
    if options.dropout is not None:
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
            if hasattr(config, name):
                setattr(config, name, options.dropout)
    auto = getattr(transformers, kind)
    arguments = {"add_pooling_layer": False} if kind == "AutoModel" and _has_pooling_layer(config) else {}
    if options.random:
        if options.layers is not None:
            raise ValueError(
                "model.layers selects layers of trained weights; with model.random, set config.num_hidden_layers"
            )
        return auto.from_config(config, **arguments).float()
    with quiet():
        model = auto.from_pretrained(folder, config=config, **arguments).float()
    if options.layers is not None:
        _keep_layers(model, _layer_numbers(options.layers, int(config.num_hidden_layers)))
    return model


def _has_pooling_layer(config: Any) -> bool:
    """Whether the architecture has an optional pooler (BERT and MPNet do, RoFormer does not)."""
    import transformers

    try:
        architecture: Any = transformers.MODEL_MAPPING[type(config)]
    except KeyError:
        return False
    return "add_pooling_layer" in inspect.signature(architecture).parameters


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bar and its report of unused tensors."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def _layer_numbers(layers: int | list[int], total: int) -> list[int]:
    numbers = layers if isinstance(layers, list) else [round(x) for x in np.linspace(0, total - 1, layers)]
    if not numbers or sorted(set(numbers)) != numbers or not 0 <= numbers[0] <= numbers[-1] < total:
        raise ValueError(f"model.layers {layers!r} must choose from the backbone's {total} layers, in order")
    return numbers


def _keep_layers(model: Any, numbers: list[int]) -> None:
    """Drop the other layers."""
    base = getattr(model, model.base_model_prefix, model)
    stack = getattr(base, "encoder", None) or base.transformer  # DistilBERT calls it transformer
    stack.layer = nn.ModuleList([stack.layer[i] for i in numbers])
    model.config.num_hidden_layers = len(numbers)


def _position_offset(config: Any) -> int:
    """The position of a text's first token."""
    return int(config.pad_token_id) + 1 if counts_from_padding(config.model_type) else 0


def options_of(path: str) -> ModelOptions:
    """The options with which a folder was written: pooling, projection, normalization and length.

    Raises:
        ValueError: the folder has other modules than a transformer, one pooling mode, a projection and a
            normalization.
    """
    entries = module_entries(_root_folder(path))
    transformer = entries[0][1]
    config = transformer / "config.json"
    hidden_size = int(graph_config(read_json(config), str(config))["hidden_size"])
    modes = read_pooling(entries[1][1], hidden_size).modes if len(entries) > 1 else ("mean",)
    modules = read_head(entries[2:], hidden_size)
    dense = [module for module in modules if isinstance(module, Dense)]
    if len(dense) > 1 or len(modes) > 1 or (dense and not isinstance(modules[0], Dense)):
        raise ValueError(f"{path}: expected one pooling mode, then at most one Dense and one Normalize")
    length, _, _ = read_length(transformer)
    return ModelOptions(
        path=path,
        pooling=cast(Pooling, modes[0]),  # checked by ModelOptions
        projection=Projection(dense[0].out_features, cast(Activation, dense[0].activation))
        if dense
        else None,
        normalize=any(isinstance(module, Normalize) for module in modules),
        max_length=ModelOptions.max_length if length is None else length,
    )


def transformer_folder(path: str) -> Path:
    """The transformer's folder in a sentence-transformers folder, a transformers folder or a Hub repository."""
    root = _root_folder(path)
    return module_entries(root)[0][1] if (root / "modules.json").is_file() else root


def _root_folder(path: str) -> Path:
    from ..model_folder.hub import resolve

    return resolve(path, revision=None, cache_folder=None, token=None, local_files_only=False)
