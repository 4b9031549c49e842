"""``sentence_bert_config.json`` of a model folder, and what sentence-transformers does with text without it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .json_file import present, read_json

__all__ = ["SENTENCE_CONFIGS", "TASKS", "check_template", "read_length", "sentence_config"]

TASKS = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
    "text-generation": ("logits", "causal_logits"),
}
"""``transformer_task`` of sentence encoders and cross-encoders -> the output of the model, and the name it gets."""

_OF_PAIRS = ("sequence-classification", "text-generation")

SENTENCE_CONFIGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)

# Settings of sentence_bert_config.json that change token ids and that embedkit does not apply.
_LENGTHS = ("query_length", "document_length", "query_expansion")
_ARGUMENTS = ("processing_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
# Arguments that change no result: of the download, of padding, and of input that is not text.
_HARMLESS = {
    *(
        "trust_remote_code",
        "revision",
        "code_revision",
        "token",
        "cache_dir",
        "local_files_only",
        "subfolder",
    ),
    *("use_cache", "use_fast", "padding_side", "chat_template", "audio", "image", "video"),
}


def read_length(folder: Path, task: str = "feature-extraction") -> tuple[int | None, Path | None, bool]:
    """``max_seq_length`` and the file that sets it, and ``do_lower_case``.

    Args:
        folder: of the transformer.
        task: what it is run for, one of `TASKS`.

    Raises:
        ValueError: the file is damaged, or has a setting that embedkit does not apply.
    """
    config, path = sentence_config(folder)
    if path is None:
        return None, None, False
    _refuse_unread(config, path, task)
    length = config.get("max_seq_length")
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise ValueError(f"{path}: max_seq_length must be a positive integer, not {length!r}")
    lower = config.get("do_lower_case", False)
    if not isinstance(lower, bool):
        raise ValueError(f"{path}: do_lower_case must be true or false, not {lower!r:.80}")
    return length, None if length is None else path, lower


def sentence_config(folder: Path) -> tuple[dict[str, Any], Path | None]:
    """The content of ``sentence_bert_config.json``, or of its older name, and its path; empty without it."""
    for name in SENTENCE_CONFIGS:
        path = folder / name
        if present(path):
            return read_json(path), path
    return {}, None


def _refuse_unread(config: Mapping[str, Any], path: Path, task: str) -> None:
    """Refuse settings of ``sentence_bert_config.json`` that change the result and are not read here."""
    unread = {key: config.get(key) for key in _LENGTHS}
    for key in _ARGUMENTS:
        values = _object(config, key, path)
        unread |= {f"{key}.{name}": value for name, value in values.items() if name not in _HARMLESS}
    output, module_output = TASKS[task]
    modalities = _object(config, "modality_config", path)
    applied: dict[str, tuple[Mapping[str, Any], str]] = {
        "transformer_task": (config, task),
        "module_output_name": (config, module_output),
    }
    kinds = ("text", "message") if task in _OF_PAIRS else ("text",)
    if "message" not in kinds:
        unread["modality_config.message"] = modalities.get("message")  # the chat template around each text
    for kind in kinds:
        modality = _object(modalities, kind, path)
        applied[f"modality_config.{kind}.method"] = modality, "forward"
        applied[f"modality_config.{kind}.method_output_name"] = modality, output
    for name, (place, known) in applied.items():
        value = place.get(name.rpartition(".")[2])
        unread[name] = None if value == known else value
    for key, value in unread.items():
        if value not in (None, {}):
            raise ValueError(
                f"{path}: {key} is {value!r:.80}, which embedkit does not apply; remove it, or use "
                "sentence-transformers for this model"
            )


def _object(config: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    """An object, empty if it is missing or null."""
    values = config.get(key) or {}
    if not isinstance(values, dict):
        raise ValueError(f"{path}: {key} must be an object, not {values!r:.80}")
    return values


def check_template(folder: Path) -> None:
    """Refuse a chat template in the transformer's folder of a sentence encoder without ``modules.json``.

    (sentence-transformers puts each text of such a model through it; with ``modules.json``, modality_config tells.)

    Raises:
        ValueError: there is one; names the file.
    """
    path = folder / "tokenizer_config.json"
    template = folder / "chat_template.jinja"
    if present(path) and read_json(path).get("chat_template") is not None:
        template = path
    elif not present(template):
        further = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        if not further:
            return
        template = further[0]
    raise ValueError(
        f"{template}: the tokenizer has a chat template, which sentence-transformers puts around each text of a folder "
        "without modules.json, and embedkit does not. Remove the template to encode the plain texts, or use "
        "sentence-transformers for this model"
    )
