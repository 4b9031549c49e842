"""Reads the files of a tokenizer; errors name the file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from .json_file import present, read_json

__all__ = [
    "ROLES",
    "TOKENIZER_FILES",
    "TokenizerSettings",
    "added_token",
    "check_types",
    "damaged",
    "template_ids",
    "typed",
]

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The special tokens that settings name."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)
"""Every file that a tokenizer may be read from."""

# transformers writes 1e30 for "no limit".
_NO_LIMIT = 1_000_000_000

# Classes of transformers that return token types without "model_input_names".
_TYPED_CLASSES = {
    "BertTokenizer",
    "DebertaV2Tokenizer",
    "ElectraTokenizer",
    "MobileBertTokenizer",
    "ConvBertTokenizer",
    "SqueezeBertTokenizer",
    "RoFormerTokenizer",
}

# Model types whose folders need not name the class of their tokenizer.
_CLASSES = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "nomic_bert": "BertTokenizer",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "roformer": "RoFormerTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
    "data2vec-text": "RobertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "ernie": "BertTokenizer",
    "t5": "T5Tokenizer",
    "mt5": "T5Tokenizer",
    "gte": "XLMRobertaTokenizer",
    "gemma3_text": "GemmaTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
}

# Model types whose class transformers takes whatever their folders name, unless that is code of the model's own.
_SETTLED = {"qwen2"}

# Model types of which transformers takes tokenizer.json as it is, as many of their folders name a wrong class.
_AS_WRITTEN = {"modernbert", "mistral"}

Value = TypeVar("Value")

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


class TokenizerSettings:
    """tokenizer_config.json and the older files beside it; all are optional."""

    def __init__(self, folder: Path) -> None:
        """Read the files of `folder` that exist."""
        self.path = folder / "tokenizer_config.json"
        self.values = _read_optional(self.path)
        self.special_path = folder / "special_tokens_map.json"
        self.special = _read_optional(self.special_path)
        self.added_path = folder / "added_tokens.json"
        self.added = _read_optional(self.added_path)
        self._config_path = folder / "config.json"

    @property
    def tokenizer_class(self) -> str:
        """Without the "Fast" of its name; empty if unknown."""
        return typed(self.values, "tokenizer_class", str, "", self.path).removesuffix("Fast")

    @property
    def has_own_code(self) -> bool:
        """Whether the folder names a class of its own beside that of transformers."""
        code = self.values.get("auto_map")  # older files have the list of "AutoTokenizer" itself
        return isinstance(code, list) or (isinstance(code, dict) and "AutoTokenizer" in code)

    @property
    def class_of_transformers(self) -> str:
        """The class that transformers takes: mostly the named one or, without a name, that of the model type."""
        config = _read_optional(self._config_path)
        model_type = str(config.get("model_type"))
        if model_type in _AS_WRITTEN:
            return ""
        registered = _CLASSES.get(model_type, "")
        if model_type in _SETTLED and not self.has_own_code:
            return registered
        name = typed(config, "tokenizer_class", str, "", self._config_path).removesuffix("Fast")
        return self.tokenizer_class or name or registered

    def special_tokens(self, vocabulary: Collection[str]) -> list[dict[str, Any]]:
        """The special tokens without a role, in the form of tokenizer.json.

        A setting such as "query_token" is one if its token is in ``vocabulary``; a new one would have no embedding. So
        are the tokens that T5 has unless tokenizer_config.json has a list.
        """
        files = [(self.values, self.path)]
        if "added_tokens_decoder" not in self.values:  # beside which transformers reads no older file
            files.append((self.special, self.special_path))
        plain: dict[str, dict[str, Any]] = {}
        named: dict[str, dict[str, Any]] = {}
        tokens: list[dict[str, Any]] = []
        listed = False
        for values, path in files:
            for name, value in values.items():
                if name.endswith("_token") and name not in ROLES and name not in plain and _is_token(value):
                    plain[name] = added_token(value, path, special=True)
            extra = values.get("extra_special_tokens")
            if isinstance(extra, dict):
                named |= {name: added_token(value, path, special=True) for name, value in extra.items()}
            else:
                tokens += _special_tokens(extra, path)
            if not listed and (not extra or isinstance(extra, dict)):  # a list replaces the older name's
                tokens += _special_tokens(values.get("additional_special_tokens"), path)
            listed = isinstance(extra, list) or "additional_special_tokens" in values
        own_list = not isinstance(self.values.get("extra_special_tokens", {}), dict)
        own_list = own_list or "additional_special_tokens" in self.values
        if not own_list and self.class_of_transformers == "T5Tokenizer":
            # A file may name any number, and the vocabulary has no more.
            count = min(typed(self.values, "extra_ids", int, 100, self.path), len(vocabulary))
            names = [f"<extra_id_{i}>" for i in range(count)]
            plain |= {name: added_token(name, self.path, special=True) for name in names}
        known = {name: token for name, token in plain.items() if token["content"] in vocabulary}
        return [*{**known, **named}.values(), *tokens]

    @property
    def model_max_length(self) -> int | None:
        """In tokens; None without a limit."""
        value = self.values.get("model_max_length", self.values.get("max_len"))  # the latter in old files
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1:
            raise damaged(self.path, f'"model_max_length" is {value!r}, not a positive number')
        return int(value) if value < _NO_LIMIT else None

    def truncation_side(self, default: str = "right") -> Literal["left", "right"]:
        """The end that is cut; `default` is that of tokenizer.json."""
        side = typed(self.values, "truncation_side", str, default, self.path).lower()
        if side not in ("left", "right"):
            raise damaged(self.path, f'"truncation_side" is {side!r}, neither "left" nor "right"')
        return "left" if side == "left" else "right"

    def uses_token_types(self, default_class: str) -> bool:
        """Whether transformers passes the token types of pairs to the model.

        Args:
            default_class: the model's tokenizer class, for a folder that names none.
        """
        names = typed(self.values, "model_input_names", list, [], self.path)
        if names:
            return "token_type_ids" in names
        return (self.tokenizer_class or default_class) in _TYPED_CLASSES

    def token(self, name: str, default: str | None = None) -> dict[str, Any] | None:
        """The added token of a role such as "pad_token", in the form of tokenizer.json."""
        files = [(self.special, self.special_path), (self.values, self.path)]
        # The older file counts for more, but is not read beside the list that newer ones have.
        for values, path in files[1:] if "added_tokens_decoder" in self.values else files:
            value = values.get(name)
            if value is not None:
                return added_token(value, path, special=True)
        return None if default is None else added_token(default, self.path, special=True)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean of tokenizer_config.json."""
        return typed(self.values, name, bool, default, self.path)

    def optional_flag(self, name: str) -> bool | None:
        """A boolean or null of tokenizer_config.json."""
        return None if self.values.get(name) is None else self.flag(name, False)


def template_ids(value: Any, path: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a post-processor adds before and after a single text."""
    if value is None:
        return (), ()
    if not isinstance(value, dict):
        raise damaged(path, '"post_processor" is not an object')
    kind = value.get("type")
    try:
        if kind == "ByteLevel":
            return (), ()
        if kind in ("BertProcessing", "RobertaProcessing"):
            return (int(value["cls"][1]),), (int(value["sep"][1]),)
        if kind == "Sequence":
            prefix: tuple[int, ...] = ()
            suffix: tuple[int, ...] = ()
            for step in value["processors"]:  # a later one wraps the former
                before, after = template_ids(step, path)
                prefix, suffix = before + prefix, suffix + after
            return prefix, suffix
        if kind == "TemplateProcessing":
            sides: tuple[list[int], list[int]] = ([], [])
            texts = 0
            for part in value["single"]:
                if "Sequence" in part:
                    texts += 1
                    typed(part, "Sequence", dict, None, path)
                else:
                    special = value["special_tokens"][part["SpecialToken"]["id"]]
                    sides[texts > 0].extend(int(i) for i in special["ids"])
            if texts == 1:
                return tuple(sides[0]), tuple(sides[1])
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise damaged(path, f"the post-processor {kind} is incomplete ({error!r})") from None
    raise ValueError(f"{path}: the post-processor {kind!r} is not supported for single texts.")


def check_types(value: Any, path: Path) -> None:
    """Refuse a post-processor, checked by `template_ids`, that gives a single text another token type than 0.

    Raises:
        ValueError: it does; embedkit's encoders run texts of type 0 only.
    """
    if not isinstance(value, dict):
        return
    for step in value["processors"] if value.get("type") == "Sequence" else ():
        check_types(step, path)
    for part in value["single"] if value.get("type") == "TemplateProcessing" else ():
        kind = part.get("Sequence", part.get("SpecialToken")).get("type_id", 0)
        if kind != 0:
            raise ValueError(
                f"{path}: the post-processor gives a single text the token type {kind!r:.80}; embedkit runs type 0. "
                "Use sentence-transformers for this model"
            )


def added_token(value: Any, path: Path, *, special: bool) -> dict[str, Any]:
    """An added token from its content or from an object with flags."""
    if isinstance(value, str):
        value = {"content": value, "special": special}
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise damaged(path, f"{value!r} is not an added token")
    special = typed(value, "special", bool, special, path)
    token: dict[str, Any] = {"content": value["content"]}
    for name in _FLAGS:
        token[name] = typed(value, name, bool, name == "normalized" and not special, path)
    return token


def _is_token(value: Any) -> bool:
    """Whether a setting is a token; "add_bos_token" is a flag."""
    return isinstance(value, str) or (isinstance(value, dict) and "content" in value)


def _special_tokens(values: Any, path: Path) -> list[dict[str, Any]]:
    """A list of special tokens."""
    if not isinstance(values, list | None):
        raise damaged(path, f"the special tokens are {values!r:.80}, not a list")
    return [added_token(value, path, special=True) for value in values or []]


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if present(path) else {}


def typed(
    values: Mapping[str, Any], name: str, kind: type[Value], default: Value | None, path: Path
) -> Value:
    """`values[name]`, checked; if missing or null, the default, or an error if that is None."""
    value = values.get(name)
    if value is None:
        if default is None:
            raise damaged(path, f'"{name}" is missing')
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise damaged(path, f'"{name}" is {value!r:.80}, not {kind.__name__}')
    return value


def damaged(path: Path, problem: str) -> ValueError:
    """The error to raise: the file, the problem and the remedy."""
    return ValueError(f"{path}: {problem}. Fetch the model again, or save its tokenizer again.")
