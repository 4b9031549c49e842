"""The chat template of a cross-encoder: it makes one text of the two of a pair, as sentence-transformers does.

The first text is a message of the role "query", the second one of the role "document", and a prompt one of the role
"system" before both. Templates are Jinja's, rendered in its sandbox as transformers renders them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from .json_file import present, read_json
from .sentence_settings import sentence_config
from .tokenizer_files import ROLES, TokenizerSettings, damaged

__all__ = ["ChatTemplate", "read_chat_template"]

# What sentence-transformers looks for to tell whether a template reads contents that are lists of parts; it takes named
# templates for such.
_STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
# Arguments of transformers' apply_chat_template that are not the template's -> the values that change nothing here.
_NOT_VARIABLES: dict[str, tuple[Any, ...]] = {
    "restore_suffix": (True,),
    "truncation": (True,),
    "padding": (True,),
    "return_tensors": ("pt",),
    **dict.fromkeys(
        ("continue_final_message", "sanitize_control_tokens", "return_assistant_tokens_mask"), (False,)
    ),
    **dict.fromkeys(("max_length", "chat_template", "tokenizer_kwargs"), ()),
    **dict.fromkeys(("tokenize", "return_dict", "conversation", "messages"), ()),
}


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
        try:
            first.encode()
        except UnicodeEncodeError:
            raise damaged(path, "the chat template writes a lone surrogate") from None
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
                f"{path}: {key}.chat_template is set, which embedkit does not read; write it into chat_template.jinja"
            )
    source, file, named = _source(folder)
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
    shown = named or any(part in source for part in _STRUCTURED)
    return ChatTemplate(
        source,
        file,
        structured=layout == "structured" or (layout == "auto" and shown),
        prompt=prompt,
        variables={**_special_tokens(folder), "add_generation_prompt": False, **_arguments(config, path)},
    )


def _source(folder: Path) -> tuple[str | None, Path, bool]:
    """The template, its file, and whether it is one of several by their names.

    A file counts for more than tokenizer_config.json, and a template that is named default for more than the only one.
    """
    named = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    path = named.get("default", folder / "chat_template.jinja")
    if present(path):
        try:
            return path.read_text(encoding="utf-8"), path, bool(set(named) - {"default"})
        except UnicodeDecodeError as error:
            raise damaged(path, f"it is not UTF-8 ({error})") from None
    if named:
        raise damaged(folder / "additional_chat_templates", "no chat template is named default")
    path = folder / "tokenizer_config.json"
    value = read_json(path).get("chat_template") if present(path) else None
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, dict)]
        value = {str(entry.get("name")): entry.get("template") for entry in entries}
    several = isinstance(value, dict)
    if isinstance(value, dict):
        value = value.get("default")
        if value is None:
            raise damaged(path, "no chat template is named default")
    if value is not None and not isinstance(value, str):
        raise damaged(path, f"chat_template is {value!r:.80}, not a text")
    return value, path, several


def _arguments(config: Mapping[str, Any], path: Path | None) -> dict[str, Any]:
    """The variables in ``processing_kwargs.chat_template``, which say how the model was trained."""
    processing = config.get("processing_kwargs") or {}
    values = (processing.get("chat_template") or {}) if isinstance(processing, dict) else processing
    if not isinstance(values, dict):
        raise ValueError(f"{path}: processing_kwargs.chat_template must be an object, not {values!r:.80}")
    for name, usual in _NOT_VARIABLES.items():
        if values.get(name) not in (None, *usual):
            raise ValueError(
                f"{path}: processing_kwargs.chat_template.{name} is {values[name]!r:.80}, which embedkit does not "
                "apply; remove it, or use sentence-transformers for this model"
            )
    return {name: value for name, value in values.items() if name not in _NOT_VARIABLES}


def _special_tokens(folder: Path) -> dict[str, str]:
    """The special tokens by the names of their roles."""
    settings = TokenizerSettings(folder)
    tokens = {role: settings.token(role) for role in ROLES}
    return {role: str(token["content"]) for role, token in tokens.items() if token is not None}


def _compiled(source: str, path: Path) -> Callable[[dict[str, Any]], str]:
    """A function that renders the template."""
    try:
        import jinja2
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ImportError(f"{path}: chat templates need jinja2: pip install 'jinja2>=3.1.6'") from None
    if tuple(int(part) for part in re.findall(r"\d+", jinja2.__version__)[:3]) < (3, 1, 6):
        raise ImportError(
            f"{path}: chat templates need jinja2 3.1.6 or newer, since the sandbox of older ones has holes; this is "
            f"{jinja2.__version__}: pip install -U jinja2"
        )

    class Generation(Extension):
        """``{% generation %}`` marks what an assistant wrote, for training."""

        tags = {"generation"}  # noqa: RUF012 - as its base has it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    try:
        template = environment.from_string(source)
    except Exception as error:  # Python's own for what Jinja writes: too deep, a break outside of a loop
        raise damaged(path, f"the chat template is broken ({error})") from None

    def render(variables: dict[str, Any]) -> str:
        try:
            return template.render({"tools": None, "documents": None, **variables})
        except Exception as error:  # a template may do anything
            raise ValueError(
                f"{path}: the chat template fails on a query and a document ({str(error) or type(error).__name__}). "
                "Take a folder whose template shows both"
            ) from None

    return render
