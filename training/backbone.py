"""The transformers model that is trained: found, loaded, shortened or created."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..model_folder.architectures import auto_class, counts_from_padding
from ..model_folder.folder import open_folder
from ..model_folder.modules import module_entries
from ..model_folder.weights import WEIGHTS_FILES, stored_tensors, weights_file
from .dropout import replace_dropout

if TYPE_CHECKING:
    from .model import ModelOptions

__all__ = [
    "check_length",
    "freeze_embeddings",
    "layer_numbers",
    "load_backbone",
    "needs_first",
    "position_offset",
    "quiet",
    "readable_weights",
    "root_folder",
    "saved_in_int8",
    "transformer_folder",
]

_LOG = logging.getLogger("embedkit")
_OF_ENCODER = re.compile(r"layers?\.\d+\.|embeddings\.")
_DROPOUTS = (  # of embeddings, hidden states and attention, as the families of transformers name them
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "hidden_dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
    "residual_dropout",
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "dropout_rate",
)


def load_backbone(options: ModelOptions, folder: Path, kind: str = "AutoModel", **extra: Any) -> Any:
    """The transformers model of ``options``: an ``AutoModel`` or another of its auto classes, in fp32."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    unknown = sorted(set(options.config) - set(config.to_dict()) - set(extra))
    if unknown:
        raise ValueError(f"model.config: {unknown[0]!r} is not a key of {folder / 'config.json'}")
    with _overridden(options.config):
        config.update({**options.config, **extra})
    check_length("model.max_length", options.max_length, config, folder)
    if options.dropout is not None:
        names = [name for name in _DROPOUTS if hasattr(config, name)]
        if not names:
            raise ValueError(f"model.dropout: {folder} ({config.model_type}) has no dropout; remove it")
        config.update(dict.fromkeys(names, options.dropout))
    bare = kind == "AutoModel"
    auto = getattr(transformers, auto_class(config.model_type) if bare else kind)
    arguments = {"add_pooling_layer": False} if bare and _has_pooling_layer(config) else {}
    if options.random:
        if options.layers is not None:
            raise ValueError(
                "model.layers selects layers of trained weights; with model.random, set "
                f"config.{config.attribute_map.get('num_hidden_layers', 'num_hidden_layers')}"
            )
        with _overridden(options.config):
            model = auto.from_config(config, **arguments).float()
    else:
        with quiet(), _overridden(options.config), readable_weights(folder):
            if saved_in_int8(folder):
                model = _from_int8(auto.from_config(config, **arguments), options)
            else:
                try:
                    model, report = auto.from_pretrained(
                        folder,
                        config=config,
                        ignore_mismatched_sizes=True,
                        output_loading_info=True,
                        **arguments,
                    )
                except OSError:
                    weights_file(folder, "fp32")  # transformers' message has no remedy
                    raise
                model = model.float()
                _check_sizes(model, report, folder, new_head="id2label" in extra)
        if options.layers is not None:
            _keep_layers(model, layer_numbers("model.layers", options.layers, int(config.num_hidden_layers)))
    replace_dropout(model)
    return model


@contextmanager
def _overridden(config: Mapping[str, Any]) -> Iterator[None]:
    """Name ``model.config`` in the errors of any class by which transformers refuses its values."""
    try:
        yield
    except (OSError, ImportError, ValueError, MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        if not config:
            raise
        reason = " ".join(str(error).split())
        raise ValueError(
            f"model.config: transformers makes no model of {dict(config)} ({type(error).__name__}: {reason})"
        ) from error


def _check_sizes(model: Any, report: Mapping[str, Any], folder: Path, *, new_head: bool) -> None:
    """Refuse a folder whose tensors are not the model's; with ``new_head`` the head's may have other sizes."""
    for name, saved, own in sorted(report["mismatched_keys"]):
        if not new_head or name.startswith(f"{model.base_model_prefix}."):
            raise ValueError(
                f"{folder}: the tensor {name} has the shape {tuple(saved)} and not {tuple(own)}; model.config must "
                "leave the sizes as they are, unless model.random is true"
            )
        _LOG.info("%s: %s is new, since it has the shape %s", folder, name, tuple(own))
    # a pooler or a head may be new, a layer or a table of embeddings would stay random
    parameters = {name for name, _ in model.named_parameters()}
    lacking = sorted(name for name in parameters & set(report["missing_keys"]) if _OF_ENCODER.search(name))
    if lacking:
        raise ValueError(
            f"{folder}: the weights lack {lacking[0]}, which transformers' {type(model).__name__} has; config.json or "
            "model.config is of another model"
        )


@contextmanager
def readable_weights(folder: Path) -> Iterator[None]:
    """Raise ValueError for a damaged safetensors file in ``folder``."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"{folder}: its weights are damaged ({error}); fetch them again") from None


def saved_in_int8(folder: Path) -> bool:
    """Whether a transformer's folder has int8 weights only, as the built-in model."""
    return (folder / WEIGHTS_FILES["int8"]).is_file() and not (folder / WEIGHTS_FILES["fp32"]).is_file()


def _from_int8(model: Any, options: ModelOptions) -> Any:
    """The model with the weights of an int8 folder, as floats; a head that the folder lacks stays random."""
    root = root_folder(options.path)
    folder = open_folder(root)
    base = getattr(model, model.base_model_prefix, model)
    # of LoRA the layers count as trained: its additions are merged into them
    trained = "" if _trains_embeddings(base, options) else folder.architecture.layers
    state = {name: torch.from_numpy(tensor) for name, tensor in _dithered(stored_tensors(folder), trained)}
    missing, unknown = base.load_state_dict(state, strict=False)
    parameters = {name for name, _ in base.named_parameters()}
    lacking = sorted(name for name in parameters & set(missing) if _OF_ENCODER.search(name))
    if lacking or unknown:
        raise ValueError(
            f"{root}: its int8 weights do not fit transformers' {type(base).__name__}: {[*lacking, *unknown][0]}; "
            "train the fp32 model that it was made from"
        )
    return model.float()


def _trains_embeddings(base: Any, options: ModelOptions) -> bool:
    """Whether the training changes embeddings; of LoRA those that a target names, as peft compares it."""
    if options.freeze_embeddings:
        return False
    if options.lora is None:
        return True
    tables = [name for name, module in base.named_modules() if isinstance(module, nn.Embedding)]
    return any(f".{name}".endswith(f".{target}") for name in tables for target in options.lora.targets)


def _dithered(
    tensors: Iterator[tuple[str, npt.NDArray[Any]]], trained: str
) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Float32 weights from int8 ones: a random value that rounds to the integer, if the name starts with ``trained``.

    Training moves most weights by less than half a step. If they started at their integers, saving in int8 again
    would undo that. From random places, a move by a fifth of a step changes a fifth of the integers, and the mean
    move is kept (dither, Roberts 1962). The places are the same in each call.
    """
    places = np.random.default_rng(0)
    for name, tensor in tensors:
        if tensor.dtype != np.int8:
            yield name, np.array(tensor, np.float32)
            continue
        weights = tensor.astype(np.float32)
        if name.startswith(trained):
            weights += places.random(tensor.shape, np.float32) - np.float32(0.5)
        _, scale = next(tensors)  # `stored_tensors` yields it next
        weights *= scale[:, None]
        yield name, weights


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


def check_length(name: str, length: int, config: Any, folder: Path) -> None:
    """Refuse more tokens than the positions of a folder; ``name`` is that of the option."""
    positions = getattr(config, "max_position_embeddings", length + 2) - position_offset(config)
    if length > positions:
        raise ValueError(
            f"{name} is {length}, and {folder} has {positions} positions; set {name} to at most {positions}"
        )


def layer_numbers(name: str, layers: int | list[int], total: int) -> list[int]:
    """The layers to keep of ``total``; ``name`` is that of the option."""
    numbers = (
        layers if isinstance(layers, list) else [round(x) for x in np.linspace(0, total - 1, max(0, layers))]
    )
    if not numbers or sorted(set(numbers)) != numbers or not 0 <= numbers[0] <= numbers[-1] < total:
        raise ValueError(f"{name} {layers!r} must choose from the backbone's {total} layers, in order")
    return numbers


def _keep_layers(model: Any, numbers: list[int]) -> None:
    """Drop the other layers."""
    base, config = getattr(model, model.base_model_prefix, model), model.config
    owner, name = _stack(base)
    every = getattr(owner, name)
    if numbers[0] and needs_first(base):
        raise ValueError(
            f"model.layers: the first layer of {type(base).__name__} is made for its place; keep it"
        )
    kept = nn.ModuleList([every[i] for i in numbers])
    setattr(owner, name, kept)
    config.num_hidden_layers = len(numbers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in numbers]
    for place, layer in enumerate(kept):
        modules: Iterator[Any] = layer.modules()
        for module in modules:
            if hasattr(module, "layer_idx"):
                module.layer_idx = place


def needs_first(base: Any) -> bool:
    """Whether the first layer differs from the others, as in ModernBERT and T5, so that it must be kept."""
    owner, name = _stack(base)
    first = getattr(owner, name)[0]
    inner = [one for one, _ in first.named_modules() if one.endswith("relative_attention_bias")]  # T5
    return bool(inner) or any(isinstance(one, nn.Identity) for one in first.children())


def _stack(base: Any) -> tuple[Any, str]:
    """The module that holds the layers, and its name for them."""
    inner = getattr(base, "encoder", None) or getattr(base, "transformer", None) or base
    for name in ("layer", "layers", "block"):
        if isinstance(getattr(inner, name, None), nn.ModuleList):
            return inner, name
    raise ValueError(
        f"model.layers: {type(base).__name__} has no list of layers to choose from; leave model.layers out"
    )


def freeze_embeddings(base: Any) -> None:
    """Do not train the embeddings of a model without a head: all of them, or those of words, if it has no others."""
    getattr(base, "embeddings", base.get_input_embeddings()).requires_grad_(False)


def position_offset(config: Any) -> int:
    """The position of a text's first token."""
    return int(config.pad_token_id) + 1 if counts_from_padding(config.model_type) else 0


def transformer_folder(path: str) -> Path:
    """The transformer's folder in a sentence-transformers folder, a transformers folder or a Hub repository.

    Raises:
        ValueError: the model is another one.
    """
    kind, folder = module_entries(root_folder(path))[0]
    if kind != "Transformer":
        raise ValueError(
            f"{path} is a model of the kind {kind}, and training starts from a transformer: name one "
            "(model.path; --student of distill)"
        )
    return folder


def root_folder(path: str) -> Path:
    """The folder of a model, given by its path or its name on the Hub."""
    from ..model_folder.hub import resolve

    return resolve(path)
