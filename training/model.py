"""The sentence encoder that is trained: a transformers backbone, pooling and a projection."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AutoConfig

from ..model_folder.architectures import graph_config
from ..model_folder.folder import SentenceConfig, Settings, read_length
from ..model_folder.json_file import read_json
from ..model_folder.modules import Dense, Normalize, module_entries, read_head, read_pooling
from ..model_folder.modules import Pooling as PoolingModule
from ..model_folder.safetensors_file import write_errors
from ..model_folder.saving import DenseWeights, Modules, copy_tokenizer, write_modules, write_settings
from ..model_folder.sentence_settings import sentence_config
from ..model_folder.tokenizer_files import TokenizerSettings
from . import packed
from .backbone import (
    freeze_embeddings,
    load_backbone,
    position_offset,
    quiet,
    readable_weights,
    root_folder,
    transformer_folder,
)
from .lora import LoraOptions, add_lora, merged
from .pooling import Activation, Pooling, pool_project_normalize

__all__ = [
    "ModelOptions",
    "Projection",
    "SentenceModel",
    "by_length",
    "inference",
    "load_backbone",
    "options_of",
    "own_length",
    "pack",
    "quiet",
    "transformer_folder",
]

# A packed row is padded to a multiple of this many tokens: oneDNN compiles a kernel for each number of rows and keeps
# about a thousand of them.
_ROW_MULTIPLE = 64

_LOG = logging.getLogger("embedkit")


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
        path: folder or Hub name of the backbone, a transformers or sentence-transformers folder. The weights of an
            int8 folder become floats, each at a random place in the step that its integer stands for (embeddings that
            are frozen, or not trained by ``lora``, at the integer).
        layers: the number of layers to keep, spread evenly from first to last, or their indices; None for all.
        config: overrides of keys in config.json; with ``random`` they define the new backbone.
        random: start from random weights of that configuration instead of the folder's weights.
        pooling: ``mean``, ``max`` or ``cls``.
        projection: a linear layer after the pooling, or None.
        normalize: whether vectors are scaled to length 1, in training and in the saved folder.
        max_length: maximum number of tokens in a text, special tokens included.
        dropout: of embeddings, hidden states and attention; None for the backbone's own.
        freeze_embeddings: do not train the word, position and type embeddings.
        prompts: name -> text, written into the model folder. The prompt of training data is ``data.TASK.prompts``; dev
            sets of queries and documents use ``query`` and ``document``.
        keep_prompts: whether the backbone's own prompts and its default stay beside them.
        default_prompt: the name of the prompt that the trained model uses when none is given; None for the backbone's.
        lora: train low-rank additions to the backbone instead of its weights; they are merged when it is saved.
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
    prompts: dict[str, str] = field(default_factory=dict)
    keep_prompts: bool = True
    default_prompt: str | None = None
    lora: LoraOptions | None = None

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
        projection_started: it is the Dense module of the backbone's folder, not random.
        tokenizer_folder: the folder of the tokenizer's files.
        autocast: type of the backbone's products in mixed precision, None for fp32; pooling, heads and losses are
            always fp32.
        settings: prompts, similarity and length that `save` writes.
        include_prompt: whether a prompt's tokens are pooled by readers of the saved folder.
        lowercase_first: text is lower-cased before the tokenizer's own normalization, as its folder says.
    """

    def __init__(self, options: ModelOptions, folder: Path, backbone: Any) -> None:
        """Wrap a loaded backbone; usually called by `load`."""
        super().__init__()
        self.options = options
        self.tokenizer_folder = folder
        self.backbone = backbone
        self.projection = None
        self.projection_started = False
        if options.projection is not None:
            self.projection = nn.Linear(self.hidden_size, options.projection.dimension)
        if options.freeze_embeddings:
            freeze_embeddings(backbone)
        self.autocast: torch.dtype | None = None
        self.settings = Settings({}, None, options.max_length, None, "cosine")
        self.include_prompt = True
        self.lowercase_first = sentence_config(folder)[0].get("do_lower_case") is True
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
        backbone = load_backbone(options, folder)
        if options.lora is not None:
            backbone = add_lora(backbone, options.lora)
        model = cls(options, folder, backbone)
        model.continue_from_folder()
        model.add_prompts()
        # Layers without the prompts are those of a teacher, for a student that is another encoder.
        if not options.random and (options.layers is None or options.keep_prompts):
            model.tell_left_out()
        return model

    def continue_from_folder(self) -> None:
        """Keep the prompts and the similarity of the backbone's folder; start the projection from its Dense module.

        A random backbone takes nothing from its folder.

        Raises:
            ValueError: a file of the folder is damaged.
        """
        if self.options.random:
            return
        root = root_folder(self.options.path)
        config, entries = SentenceConfig(root), module_entries(root)
        self.settings = replace(
            self.settings,
            prompts=config.prompts(),
            default_prompt_name=config.text("default_prompt_name"),
            similarity_fn_name=config.similarity() or "cosine",
        )
        if len(entries) > 1:
            self.include_prompt = read_pooling(entries[1][1], self.hidden_size).include_prompt
        self.projection_started = self._start_projection()

    def _start_projection(self) -> bool:
        """Start the projection from the Dense module of the backbone's folder, if that has its size and activation.

        It must be in the projection's place, straight after one pooling mode.

        Raises:
            ValueError: a file of the folder is damaged.
        """
        from safetensors.torch import load_file

        wanted, path = self.options.projection, self.options.path
        entries = module_entries(root_folder(path))
        if self.projection is None or wanted is None or len(entries) == 1:
            return False
        modes = read_pooling(entries[1][1], self.hidden_size).modes
        head = read_head(entries[2:], len(modes) * self.hidden_size)
        dense = next((module for module in head if isinstance(module, Dense)), None)
        if dense is None or (dense.out_features, dense.activation) != (wanted.dimension, wanted.activation):
            return False
        if dense is not head[0] or len(modes) > 1:
            _LOG.info(
                "%s: its Dense module is not straight after one pooling mode; the projection does not start from it",
                path,
            )
            return False
        with readable_weights(dense.folder):
            tensors = load_file(dense.folder / "model.safetensors")
        with torch.no_grad():
            self.projection.weight.copy_(tensors["linear.weight"])
            self.projection.bias.copy_(tensors.get("linear.bias", torch.zeros(wanted.dimension)))
        return True

    def tell_left_out(self) -> None:
        """Log what of a whole encoder, the backbone's folder, the training leaves out, and how to keep it."""
        options = self.options
        try:
            own = options_of(options.path)
        except ValueError as error:
            _LOG.info(
                "the vectors of %s are made otherwise and cannot be trained as they are: %s",
                options.path,
                error,
            )
            return
        left_out, kept = [], []
        if own.pooling != options.pooling:
            left_out.append("pooling")
            kept.append(f"model.pooling={own.pooling}")
        if own.projection is not None and own.projection != options.projection:
            left_out.append("projection")
            kept += [
                f"model.projection.dimension={own.projection.dimension}",
                f"model.projection.activation={own.projection.activation}",
            ]
        if own.normalize and not options.normalize:
            left_out.append("normalization")
            kept.append("model.normalize=true")
        length = own_length(self.tokenizer_folder)
        if length > options.max_length:
            left_out.append(f"length of {length} tokens")
            kept.append(f"model.max_length={length}")
        if kept:
            _LOG.info(
                "%s: training leaves out its %s; to keep what it had: %s",
                options.path,
                " and ".join(left_out),
                " ".join(kept),
            )
        truncated = SentenceConfig(root_folder(options.path)).truncate_dim()
        if truncated is not None and truncated < self.dimension:
            _LOG.info(
                "%s: training leaves out its truncate_dim; to keep what it had: Encoder(..., truncate_dim=%d)",
                options.path,
                truncated,
            )

    @property
    def similarity_fn_name(self) -> str:
        """By which its vectors are compared, as `Encoder.similarity_fn_name`."""
        return self.settings.similarity_fn_name or "cosine"

    def add_prompts(self) -> None:
        """Add the prompts of the options to those of the backbone's folder, or put them in their place.

        Raises:
            ValueError: the default is none of them.
        """
        options = self.options
        prompts, default = options.prompts, options.default_prompt
        if options.keep_prompts:
            prompts = {**self.settings.prompts, **prompts}
            default = default or self.settings.default_prompt_name
        else:
            self.include_prompt = True
        if default is not None and default not in prompts:
            raise ValueError(
                f"model.default_prompt {default!r} is none of the prompts {', '.join(prompts) or '(none)'}; "
                "add it to model.prompts"
            )
        self.settings = replace(self.settings, prompts=prompts, default_prompt_name=default)

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
        with torch.autocast(input_ids.device.type, self.autocast, enabled=self.autocast is not None):
            if self._packed:
                starts = cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff())
                positions = torch.arange(len(input_ids), device=input_ids.device) - starts
                positions = positions + position_offset(self.backbone.config)
                idle = (0, -len(input_ids) % _ROW_MULTIPLE)
                output = self.backbone(
                    input_ids=nn.functional.pad(input_ids, idle)[None],
                    position_ids=nn.functional.pad(positions, idle)[None],
                    grid=packed.blocks_of(cu_seqlens),
                )
                return output.last_hidden_state[0, : len(input_ids)].float()
            grid = packed.passes_of(cu_seqlens)
            blocks = packed.pad(input_ids, grid, self.backbone.config.pad_token_id or 0)
            masks = packed.pad(torch.ones_like(input_ids), grid, 0)
            hidden = [
                self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
                for ids, mask in zip(blocks, masks, strict=True)
            ]
        return packed.collect(hidden, grid).float()

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

    def encode_query(self, sentences: str | Sequence[str]) -> npt.NDArray[np.float32]:
        """`encode` with the prompt "query", which every model has, possibly empty, as `Encoder.encode_query`."""
        return self.encode(sentences, prompt=self.settings.prompts.get("query", ""))

    def encode_document(self, sentences: str | Sequence[str]) -> npt.NDArray[np.float32]:
        """`encode` with the prompt "document", which every model has, as `Encoder.encode_document`."""
        return self.encode(sentences, prompt=self.settings.prompts.get("document", ""))

    def encode(
        self, sentences: str | Sequence[str], batch_tokens: int = 4096, *, prompt: str | None = None
    ) -> npt.NDArray[np.float32]:
        """Vectors (n, dimension) of texts, in order, without dropout; for dev scores. One text has one vector.

        ``prompt`` is put before each text; None for that of ``settings.default_prompt_name``. A backbone that leaves
        prompts out of its pooling is scored without one.
        """
        from .data.store import TextStore

        if isinstance(sentences, str):
            only: npt.NDArray[np.float32] = self.encode([sentences], batch_tokens, prompt=prompt)[0]
            return only
        if prompt is None:
            prompt = self.settings.prompts.get(self.settings.default_prompt_name or "", "")
        if prompt and self.include_prompt:
            sentences = [prompt + sentence for sentence in sentences]
        store = TextStore(
            self.tokenizer_folder,
            sentences,
            self.options.max_length,
            vectors=self.backbone.config.vocab_size,
            lowercase_first=self.lowercase_first,
        )
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
        own = self.backbone.config._attn_implementation
        self.backbone.config._attn_implementation = None  # the next reader picks its own
        try:
            with quiet(), write_errors(folder):
                merged(self.backbone).save_pretrained(folder)
        finally:
            self.backbone.config._attn_implementation = own
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
        modules = Modules(self.hidden_size, pooling, tuple(head), do_lower_case=self.lowercase_first)
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


def options_of(path: str) -> ModelOptions:
    """The options with which a folder was written: pooling, projection, normalization and length.

    Raises:
        ValueError: the folder has other modules than a transformer, one pooling mode, a projection and a
            normalization, or ones that training does not have.
    """
    entries = module_entries(root_folder(path))
    transformer = entries[0][1]
    config = transformer / "config.json"
    hidden_size = int(graph_config(read_json(config), str(config))["hidden_size"])
    modes = read_pooling(entries[1][1], hidden_size).modes if len(entries) > 1 else ("mean",)
    modules = read_head(entries[2:], len(modes) * hidden_size)
    dense = [module for module in modules if isinstance(module, Dense)]
    if len(dense) > 1 or len(modes) > 1 or (dense and not isinstance(modules[0], Dense)):
        raise ValueError(f"{path}: expected one pooling mode, then at most one Dense and one Normalize")
    for given, known in ((modes[:1], Pooling), ([one.activation for one in dense], Activation)):
        for name in given:
            if name not in get_args(known):
                raise ValueError(f"{path}: training has no {name}, only {', '.join(get_args(known))}")
    length, _, _ = read_length(transformer)
    return ModelOptions(
        path=path,
        pooling=cast(Pooling, modes[0]),
        projection=Projection(dense[0].out_features, cast(Activation, dense[0].activation))
        if dense
        else None,
        normalize=any(isinstance(module, Normalize) for module in modules),
        max_length=ModelOptions.max_length if length is None else length,
    )


def own_length(folder: Path, task: str = "feature-extraction") -> int:
    """The maximum tokens of a text that a transformer's folder sets, as its reader takes it; see `read_length`."""
    length, _, _ = read_length(folder, task)
    own = length or TokenizerSettings(folder).model_max_length
    config = AutoConfig.from_pretrained(folder)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None:
        positions -= position_offset(config)
    return min(filter(None, (own, positions)), default=ModelOptions.max_length)
