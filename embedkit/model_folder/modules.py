"""The modules of a sentence-transformers folder that follow the transformer: Pooling, Dense, Normalize."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from .json_file import load_json, present, read_json
from .static import is_model2vec

__all__ = [
    "ACTIVATIONS",
    "POOLING_FLAGS",
    "Dense",
    "LogitScore",
    "Normalize",
    "Pooling",
    "activation_of",
    "check_route",
    "module_entries",
    "module_folder",
    "module_kind",
    "plain_pooling",
    "read_head",
    "read_logit_score",
    "read_pooling",
    "scorer_entries",
    "without_dropout",
]

# Name in sentence-transformers -> name in the core.
_POOLING_MODES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "lasttoken",
}
# Flags of folders written before sentence-transformers 6, in the order in which they are concatenated.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.SiLU": "silu",
}
"""Class in torch, as folders name it -> name in the core."""
_CLASSES = {name.rpartition(".")[2]: kind for name, kind in ACTIVATIONS.items()}

_MODULES = (
    "Transformer",
    "StaticEmbedding",
    "Router",
    "Pooling",
    "Dense",
    "Dropout",
    "Normalize",
    "LogitScore",
)
_OF_PAIRS = (["Transformer"], ["Transformer", "LogitScore"])
"""The modules of a cross-encoder."""
_MAX_PATH = 1000  # characters; file systems allow about 4000, including the folder
_REMEDY = (
    "embedkit runs one Transformer, one Pooling, then any number of Dense and Normalize, or one StaticEmbedding in "
    "place of the first two, or a Router of such rows."
)


@dataclass(frozen=True)
class Pooling:
    """How token vectors become one vector; several ``modes`` are concatenated in this order."""

    modes: tuple[str, ...] = ("mean",)
    include_prompt: bool = True


@dataclass(frozen=True)
class Dense:
    """A linear layer after the pooling; its weights (out_features, in_features) are in ``folder``."""

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str


@dataclass(frozen=True)
class Normalize:
    """Scale to length 1."""


@dataclass(frozen=True)
class LogitScore:
    """The score of a pair by a language model: the logit of one token minus that of another, if there is one.

    Attributes:
        true: the id of the token that says yes.
        false: the id of the token that says no, or None.
    """

    true: int
    false: int | None


def module_entries(root: Path) -> list[tuple[str, Path]]:
    """The ``(kind, folder)`` of each entry of ``modules.json``, in order, checked.

    A folder without that file is a plain transformers folder, pooled as `plain_pooling` says. Or it is Model2Vec's of
    an old version.

    Raises:
        ValueError: a kind or an order is not supported, or a path leaves the folder.
    """
    path = root / "modules.json"
    entries = _listed(root, path)
    if entries is None:
        if not is_model2vec(root):
            return [("Transformer", root)]
        normalize = read_json(root / "config.json").get("normalize", False)
        return [("StaticEmbedding", root), *([("Normalize", root / "1_Normalize")] if normalize else [])]
    if (kinds := [kind for kind, _ in entries]) in _OF_PAIRS:
        raise ValueError(
            f"{path}: the modules are {', '.join(kinds)}, those of a cross-encoder; open it with embedkit.CrossEncoder."
        )
    if not entries or entries[0][0] != "Router":  # whose modules are checked with those of each route
        check_route(entries, path)
    return entries


def check_route(entries: list[tuple[str, Path]], path: Path) -> None:
    """Raise ValueError, naming the file ``path``, unless embedkit runs modules of these kinds in this order."""
    kinds = [kind for kind, _ in entries]
    first = 1 if kinds[:1] == ["StaticEmbedding"] else 2
    if (first == 2 and kinds[:2] != ["Transformer", "Pooling"]) or set(kinds[first:]) - {
        "Dense",
        "Normalize",
    }:
        raise ValueError(f"{path}: the modules are {', '.join(kinds) or 'none'}. {_REMEDY}")


def scorer_entries(root: Path) -> tuple[Path, Path | None]:
    """The folders of a cross-encoder's Transformer and of its LogitScore, if it has one; ``root`` without modules.json.

    Raises:
        ValueError: the folder has other modules, or a path that leaves it.
    """
    path = root / "modules.json"
    entries = _listed(root, path)
    if entries is None:
        return root, None
    kinds = [kind for kind, _ in entries]
    if kinds not in _OF_PAIRS:
        raise ValueError(
            f"{path}: the modules are {', '.join(kinds) or 'none'}; a cross-encoder is one Transformer, or a "
            "Transformer and a LogitScore. A sentence encoder is opened with embedkit.Encoder."
        )
    return entries[0][1], entries[1][1] if len(entries) > 1 else None


def read_logit_score(folder: Path) -> LogitScore:
    """Read ``1_LogitScore/config.json``.

    Raises:
        FileNotFoundError: it is missing.
        ValueError: a value is wrong.
    """
    path = folder / "config.json"
    config = read_json(path)
    true: Any = config.get("true_token_id")
    false: Any = config.get("false_token_id")
    for key, value in (("true_token_id", true), ("false_token_id", false)):
        integer = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not integer and (value is not None or key == "true_token_id"):
            raise ValueError(
                f"{path}: {key} must be the id of a token, not {value!r:.80}. Fetch the file again."
            )
    name = config.get("module_input_name", "causal_logits")
    if name != "causal_logits":
        raise ValueError(f"{path}: module_input_name must be causal_logits, not {name!r:.80}")
    return LogitScore(true, false)


def _listed(root: Path, path: Path) -> list[tuple[str, Path]] | None:
    """The entries of ``modules.json`` in any order; None without that file."""
    if not present(path):
        return None
    modules = load_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ValueError(f"{path}: expected a list of modules. Fetch the file again.")
    entries: list[tuple[str, Path]] = []
    for module in modules:
        type_name, relative = module.get("type"), module.get("path", "")
        if not isinstance(type_name, str) or not isinstance(relative, str):
            raise ValueError(f"{path}: a module has no type or path: {module!r}. Fetch the file again.")
        entries.append((module_kind(type_name, path), module_folder(root, relative, path)))
    return without_dropout(entries)


def without_dropout(entries: list[tuple[str, Path]]) -> list[tuple[str, Path]]:
    """The modules but those of Dropout, which do nothing after training."""
    return [entry for entry in entries if entry[0] != "Dropout"]


def module_kind(type_name: Any, path: Path) -> str:
    """The last part of a module's type, checked; ``path`` is the file that names it."""
    kind = type_name.rpartition(".")[2] if isinstance(type_name, str) else ""
    if (
        not isinstance(type_name, str)
        or not type_name.startswith("sentence_transformers.")
        or kind not in _MODULES
    ):
        raise ValueError(f"{path}: unknown module {type_name!r}; expected one of {', '.join(_MODULES)}.")
    return kind


def module_folder(root: Path, relative: str, path: Path) -> Path:
    """The folder of a module below ``root``; ``path`` is the file that names it."""
    parts = PurePosixPath(relative.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in relative or "\0" in relative:
        raise ValueError(f"{path}: the path {relative!r:.80} leaves the model folder; it is not opened.")
    if len(relative) > _MAX_PATH:
        raise ValueError(f"{path}: the path {relative!r:.80}… is too long. Fetch the file again.")
    return root / parts


def plain_pooling(config: Mapping[str, Any]) -> Pooling:
    """The pooling of a folder without ``modules.json``, as in sentence-transformers; ``config`` is its config.json.

    It is the mean, but the last token of a causal language model, as its architectures name it.
    """
    kinds = config.get("architectures")
    causal = isinstance(kinds, list) and str([*kinds, ""][0]).endswith("ForCausalLM")
    return Pooling(("lasttoken",) if causal and config.get("is_causal", True) else ("mean",))


def read_pooling(folder: Path, hidden_size: int) -> Pooling:
    """Read ``1_Pooling/config.json``: flags of old folders or ``pooling_mode`` of new ones."""
    path = folder / "config.json"
    config = read_json(path)
    width = config.get("embedding_dimension", config.get("word_embedding_dimension", hidden_size))
    if width != hidden_size:
        raise ValueError(f"{path}: the pooling takes {width!r} dimensions, the transformer has {hidden_size}")
    include_prompt = config.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise ValueError(f"{path}: include_prompt must be true or false, not {include_prompt!r}")
    named = config.get("pooling_mode")
    if named is None:
        for flag in POOLING_FLAGS:
            if not isinstance(config.get(flag, False), bool):
                raise ValueError(f"{path}: {flag} must be true or false, not {config[flag]!r:.80}")
        modes = [mode for flag, mode in POOLING_FLAGS.items() if config.get(flag)]
        return Pooling(tuple(modes or ["mean"]), include_prompt)
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not names:
        raise ValueError(f"{path}: pooling_mode must be a name or a list of names, not {named!r:.80}")
    for name in names:
        if not isinstance(name, str) or name not in _POOLING_MODES:
            raise ValueError(
                f"{path}: unknown pooling_mode {name!r:.80}; expected one of {', '.join(_POOLING_MODES)}"
            )
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: pooling_mode names a mode twice. Name each once: {names!r:.80}")
    return Pooling(tuple(_POOLING_MODES[name] for name in names), include_prompt)


def read_head(entries: list[tuple[str, Path]], dimension: int) -> tuple[Dense | Normalize, ...]:
    """The modules after the pooling, whose output has ``dimension`` dimensions."""
    head: list[Dense | Normalize] = []
    for kind, folder in entries:
        if kind == "Dense":
            dense = _read_dense(folder)
            if dense.in_features != dimension:
                raise ValueError(
                    f"{folder / 'config.json'}: in_features is {dense.in_features}, "
                    f"the module before it has {dimension} dimensions"
                )
            dimension = dense.out_features
            head.append(dense)
        else:
            _check_feature(folder / "config.json", required=False)
            head.append(Normalize())
    return tuple(head)


def _read_dense(folder: Path) -> Dense:
    path = folder / "config.json"
    config = _check_feature(path, required=True)
    sizes = [config.get("in_features"), config.get("out_features")]
    if not all(
        isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= 1 << 20 for size in sizes
    ):
        raise ValueError(f"{path}: in_features and out_features must be positive integers, not {sizes}")
    bias = config.get("bias", True)
    if not isinstance(bias, bool):
        raise ValueError(f"{path}: bias must be true or false, not {bias!r}")
    if config.get("use_residual", False):
        raise ValueError(f"{path}: use_residual is not supported; retrain the head without it")
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    kind = activation_of(activation)
    if kind is None:
        known = ", ".join(_CLASSES)
        raise ValueError(f"{path}: unknown activation_function {activation!r:.80}; expected one of {known}")
    return Dense(folder, int(sizes[0] or 0), int(sizes[1] or 0), bias, kind)


def activation_of(name: Any) -> str | None:
    """The name in the core of an activation by its class in torch, also in short (``torch.nn.Tanh``); None: unknown."""
    if not isinstance(name, str):
        return None
    return ACTIVATIONS.get(name) or (_CLASSES.get(name[9:]) if name.startswith("torch.nn.") else None)


def _check_feature(path: Path, *, required: bool) -> dict[str, Any]:
    """Refuse a Dense or Normalize whose input or output is not the sentence embedding."""
    if not required and not present(path):
        return {}  # Normalize had no file before sentence-transformers 5.
    config = read_json(path)
    for key in ("module_input_name", "module_output_name"):
        feature = config.get(key)
        if feature not in (None, "sentence_embedding"):
            raise ValueError(f"{path}: unknown {key} {feature!r}; embedkit runs 'sentence_embedding'")
    return config
