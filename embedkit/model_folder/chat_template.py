"""The chat template of a cross-encoder: it makes one text of the two of a pair, as sentence-transformers does.

The first text is a message of the role "query", the second one of the role "document", and a prompt one of the role
"system" before both. Templates are Jinja's, rendered in its sandbox as transformers renders them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .json_file import present, read_json
from .sentence_settings import sentence_config
from .tokenizer_files import TokenizerSettings, damaged

__all__ = ["ChatTemplate", "read_chat_template"]

# What sentence-transformers looks for to tell whether a template reads contents that are lists of parts.
_STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """A compiled template with its arguments.

    Attributes:
        path: the file it comes from, for messages.
    """

    def __init__(
        self, source: str, path: Path, *, structured: bool, prompt: str, variables: Mapping[str, Any]
    ) -> None:
        """Compile the template, and check that it shows both texts of a pair.

        Args:
            source: in Jinja.
            structured: contents are lists of parts, ``[{"type": "text", "text": …}]``.
            prompt: of the system; empty for none.
            variables: what the template gets besides the messages.

        Raises:
            ImportError: jinja2 is not installed.
            ValueError: the template is broken, or ignores a text.
        """
        self.path = path
        self._structured = structured
        self._system = [self._message("system", prompt)] if prompt else []
        self._variables = dict(variables)
        self._render = _compiled(source, path)
        first, *others = (
            self(*pair) for pair in (("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot"))
        )
        lost = [role for role, other in zip(("query", "document"), others, strict=True) if other == first]
        if lost:
            raise ValueError(
                f"{path}: the chat template leaves out what the role {' and the role '.join(map(repr, lost))} says. "
                "Take a folder whose template shows both texts, or write them into this one"
            )

    def __call__(self, query: str, document: str) -> str:
        """The text of a pair.

        Raises:
            ValueError: the template fails; names its file.
        """
        messages = [*self._system, self._message("query", query), self._message("document", document)]
        return self._render({**self._variables, "messages": messages})

    def _message(self, role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": [{"type": "text", "text": text}] if self._structured else text}


def read_chat_template(folder: Path, prompt: str, *, inferred: bool) -> ChatTemplate | None:
    """The chat template that the pairs of a cross-encoder go through, or None.

    Args:
        folder: of the transformer.
        prompt: of the system.
        inferred: without a ``modality_config``, any template of the tokenizer applies.

    Raises:
        ImportError: there is a template, and jinja2 is not installed.
        ValueError: a file is damaged, or the template cannot be used.
    """
    config, path = sentence_config(folder)
    modalities = config.get("modality_config")
    message = modalities.get("message") if isinstance(modalities, dict) else None
    if not (inferred if modalities is None else message):
        return None
    for key in ("tokenizer_args", "processor_kwargs"):
        if isinstance(config.get(key), dict) and config[key].get("chat_template") is not None:
            raise ValueError(
                f"{path}: {key}.chat_template is set; embedkit reads the template of chat_template.jinja"
            )
    source, file = _source(folder)
    if source is None:
        if modalities is None:
            return None
        raise ValueError(
            f'{path}: modality_config has "message", but {folder} has no chat template; fetch it again'
        )
    layout = message.get("format", "auto") if isinstance(message, dict) else "auto"
    if layout not in ("auto", "flat", "structured"):
        raise ValueError(
            f"{path}: modality_config.message.format must be flat or structured, not {layout!r:.80}"
        )
    structured = layout == "structured" or (layout == "auto" and any(part in source for part in _STRUCTURED))
    return ChatTemplate(
        source,
        file,
        structured=structured,
        prompt=prompt,
        variables={**_special_tokens(folder), "add_generation_prompt": False, **_arguments(config, path)},
    )


def _source(folder: Path) -> tuple[str | None, Path]:
    """The template and its file; chat_template.jinja counts for more than tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if present(path):
        try:
            return path.read_text(encoding="utf-8"), path
        except UnicodeDecodeError as error:
            raise damaged(path, f"it is not UTF-8 ({error})") from None
    path = folder / "tokenizer_config.json"
    value = read_json(path).get("chat_template") if present(path) else None
    if isinstance(value, list):  # of named templates
        value = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
    if isinstance(value, dict):
        value = value.get("default")
        if value is None:
            raise damaged(path, "no chat template is named default")
    if value is not None and not isinstance(value, str):
        raise damaged(path, f"chat_template is {value!r:.80}, not a text")
    return value, path


def _arguments(config: Mapping[str, Any], path: Path | None) -> dict[str, Any]:
    """The arguments of the template in ``processing_kwargs``, which say how the model was trained."""
    processing = config.get("processing_kwargs") or {}
    values = processing.get("chat_template") or {} if isinstance(processing, dict) else processing
    if not isinstance(values, dict):
        raise ValueError(f"{path}: processing_kwargs.chat_template must be an object, not {values!r:.80}")
    for name in ("padding", "truncation", "max_length", "return_tensors", "restore_suffix", "chat_template"):
        if values.get(name) not in (None, name == "restore_suffix"):
            raise ValueError(
                f"{path}: processing_kwargs.chat_template.{name} is {values[name]!r:.80}, which embedkit does not "
                "apply; remove it, or use sentence-transformers for this model"
            )
    return {name: value for name, value in values.items() if name != "restore_suffix"}


def _special_tokens(folder: Path) -> dict[str, str]:
    """The special tokens by the names of their roles."""
    settings = TokenizerSettings(folder)
    tokens = {role: settings.token(role) for role in _ROLES}
    return {role: str(token["content"]) for role, token in tokens.items() if token is not None}


def _compiled(source: str, path: Path) -> Callable[[dict[str, Any]], str]:
    """A function that renders the template."""
    try:
        import jinja2
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ImportError(f"{path}: chat templates need jinja2: pip install jinja2") from None

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = refuse
    errors = (jinja2.TemplateError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError)
    try:
        template = environment.from_string(source)
    except errors as error:
        raise damaged(path, f"the chat template is broken ({error})") from None

    def render(variables: dict[str, Any]) -> str:
        try:
            return template.render(variables)
        except errors as error:
            raise ValueError(
                f"{path}: the chat template fails on a query and a document ({error}). Take a folder whose template "
                "shows both"
            ) from None

    return render
