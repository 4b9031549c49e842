"""Reads the folder of a cross-encoder: a transformer with a classifier, or a language model that says yes or no.

The format is that of ``transformers.AutoModelForSequenceClassification`` or ``AutoModelForCausalLM``, and of
sentence-transformers' ``CrossEncoder``, any version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .architectures import Architecture
from .chat_template import ChatTemplate, read_chat_template
from .folder import SETTINGS_FILE, ModelFolder, assemble, check_folder, files_of, read_config
from .json_file import present, read_json
from .modules import ACTIVATIONS, LogitScore, Pooling, activation_of, read_logit_score, scorer_entries
from .tokenizer import token_ids
from .tokenizer_files import TokenizerSettings

__all__ = ["CrossEncoderFolder", "open_cross_encoder"]

_MAX_LABELS = 100_000
_ACTIVATIONS = ("identity", "sigmoid")
_CLASSIFIER_ACTIVATIONS = {
    **{name: name for name in ("gelu", "gelu_new", "relu", "silu", "tanh", "sigmoid")},
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_new",
}
_NAMED_ACTIVATIONS = {"modernbert": "classifier_activation", "deberta-v2": "pooler_hidden_act"}


@dataclass(frozen=True)
class CrossEncoderFolder:
    """The folder of a cross-encoder, checked, without its weights.

    Attributes:
        model: the transformer, pooled by the token that the classifier reads.
        labels: names of the classes in the order of the logits; one for a regression.
        activation: applied to the logits by default, ``"identity"`` or ``"sigmoid"``.
        prompt: put before the first text of each pair; mostly empty. A chat template has it as the system's message.
        token_types: whether the model takes token types, which mark the text that a token belongs to.
        score: of a language model in place of a classifier; None for a classifier.
        tied: the output of a language model is its table of embeddings.
        template: makes one text of a pair; None if the tokenizer joins the two.
        padding: the token that a decoder's classifier does not read; None for none, and for other models.
    """

    model: ModelFolder
    labels: tuple[str, ...]
    activation: str
    prompt: str
    token_types: bool
    score: LogitScore | None
    tied: bool
    template: ChatTemplate | None
    padding: int | None


def open_cross_encoder(path: Path) -> CrossEncoderFolder:
    """Read the folder of a cross-encoder without its weights.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ImportError: the folder has a chat template, and jinja2 is not installed.
        ValueError: a file is damaged or requires something that embedkit does not support, or the folder
            contains another kind of model.
    """
    check_folder(path)
    transformer, logit_score = scorer_entries(path)
    architecture, config, raw = read_config(path, transformer)
    where = transformer / "config.json"
    listed = present(path / "modules.json")
    score = _score(raw, where, logit_score, listed=listed)
    if score is None and not architecture.classifier[2]:
        raise ValueError(
            f"{where}: embedkit does not compute the classifier of {architecture.family} models; use "
            "sentence-transformers"
        )
    labels = _labels(raw, where) if score is None else ("LABEL_0",)
    settings = TokenizerSettings(transformer)
    typed = settings.uses_token_types(settings.class_of_transformers)
    model = assemble(
        path,
        transformer,
        architecture=_with_activation(architecture, raw, where),
        config=config,
        pooling=Pooling((_pooled(architecture, raw, where),)),
        task="sequence-classification" if score is None else "text-generation",
    )
    prompt = _prompt(model)
    template = read_chat_template(transformer, prompt, inferred=not listed)
    files = files_of({path, transformer, logit_score or path})
    return CrossEncoderFolder(
        model=model.with_files(files if template is None else (*files, template.path)),
        labels=labels,
        activation=_activation(path, raw, where) or ("sigmoid" if len(labels) == 1 else "identity"),
        prompt=prompt,
        token_types=typed and int(config.get("type_vocab_size", 0)) > 1,
        score=score,
        tied=bool(raw.get("tie_word_embeddings", raw["model_type"] == "gemma3_text")),
        template=template,
        padding=_padding(architecture, raw, where) if score is None else None,
    )


def _padding(architecture: Architecture, raw: Mapping[str, Any], where: Path) -> int | None:
    """The token that a decoder's classifier does not read."""
    value = raw.get("pad_token_id") if architecture.is_decoder else None
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{where}: pad_token_id must be the id of a token, not {value!r:.80}")
    return value


def _score(raw: Mapping[str, Any], where: Path, folder: Path | None, *, listed: bool) -> LogitScore | None:
    """The score of a language model; None for a classifier.

    Args:
        raw: config.json.
        where: its path.
        folder: of the module LogitScore.
        listed: the folder has modules.json; without it, any language model is asked for yes or no.
    """
    names = _architectures(raw)
    causal = bool(names) and names[0].endswith("ForCausalLM")
    if causal and (folder is not None or not listed):
        if raw.get("final_logit_softcapping") is not None:
            raise ValueError(
                f"{where}: embedkit does not apply final_logit_softcapping; use sentence-transformers"
            )
        return _yes_or_no(where.parent) if folder is None else read_logit_score(folder)
    if folder is not None:
        raise ValueError(
            f"{where}: architectures is {names!r:.80}; a LogitScore needs one that ends with ForCausalLM"
        )
    if names and not _classifies(names):
        raise ValueError(
            f"{where}: architectures is {names!r:.80}, not ...ForSequenceClassification: the folder holds no "
            "cross-encoder. A sentence encoder is opened with embedkit.Encoder."
        )
    return None


def _architectures(raw: Mapping[str, Any]) -> list[str]:
    """The classes of transformers that config.json names."""
    kinds = raw.get("architectures")
    return [str(kind) for kind in kinds] if isinstance(kinds, list) else []


def _classifies(names: list[str]) -> bool:
    return any(name.endswith("ForSequenceClassification") for name in names)


def _yes_or_no(transformer: Path) -> LogitScore:
    """The score that sentence-transformers gives a language model without a LogitScore."""
    true, false = token_ids(transformer, ("yes", "no"))
    if true is None or false is None:
        raise ValueError(
            f"{transformer}: a language model scores a pair by its logits of yes and no, and the tokenizer has no "
            f"token {'yes' if true is None else 'no'!r}. Add modules.json with a LogitScore that names the tokens, as "
            "sentence-transformers saves it"
        )
    return LogitScore(true, false)


def _with_activation(architecture: Architecture, raw: Mapping[str, Any], where: Path) -> Architecture:
    """The architecture with the activation that config.json names for its classifier, if it names one."""
    key = _NAMED_ACTIVATIONS.get(raw["model_type"])
    if key is None:
        return architecture
    name = raw.get(key, "gelu")
    if not isinstance(name, str) or name not in _CLASSIFIER_ACTIVATIONS:
        known = ", ".join(_CLASSIFIER_ACTIVATIONS)
        raise ValueError(f"{where}: unknown {key} {name!r:.80}; expected one of {known}")
    inner, _, outer = architecture.classifier
    return replace(architecture, classifier=(inner, _CLASSIFIER_ACTIVATIONS[name], outer))


def _prompt(model: ModelFolder) -> str:
    """The folder's default prompt."""
    name = model.default_prompt_name
    if name is not None and name not in model.prompts:
        raise ValueError(
            f"{model.path / SETTINGS_FILE}: default_prompt_name is {name!r:.80}, but the prompts are "
            f"{', '.join(map(repr, model.prompts)) or 'none'}; correct the file"
        )
    return "" if name is None else model.prompts[name]


def _pooled(architecture: Architecture, raw: Mapping[str, Any], where: Path) -> str:
    """What the classifier reads: a decoder's last token, else the first, or what ModernBERT's config.json says."""
    if architecture.is_decoder:
        return "lasttoken"
    mode = raw.get("classifier_pooling", "cls") if raw["model_type"] == "modernbert" else "cls"
    if mode not in ("cls", "mean"):
        raise ValueError(f"{where}: classifier_pooling must be 'cls' or 'mean', not {mode!r:.80}")
    return str(mode)


def _labels(raw: Mapping[str, Any], where: Path) -> tuple[str, ...]:
    """The names of ``id2label``, which transformers omits for two classes without names."""
    names = raw.get("id2label")
    if names is None:
        # sentence-transformers makes a reranker of a model that is no classifier yet
        count = raw.get("num_labels", 2 if _classifies(_architectures(raw)) else 1)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MAX_LABELS:
            raise ValueError(f"{where}: num_labels must be an integer from 1 to {_MAX_LABELS}, not {count!r}")
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(len(names))} or not names:
        raise ValueError(f"{where}: id2label must name the classes 0, 1, …, not {names!r:.80}")
    return tuple(str(names[str(i)]) for i in range(len(names)))


def _activation(path: Path, raw: Mapping[str, Any], where: Path) -> str | None:
    """The activation, looked up in three places in the order of sentence-transformers."""
    settings_path = path / SETTINGS_FILE
    settings = read_json(settings_path) if present(settings_path) else {}
    section = raw.get("sentence_transformers")
    for name, file in (
        (settings.get("activation_fn"), settings_path),
        (section.get("activation_fn") if isinstance(section, dict) else None, where),
        (raw.get("sbert_ce_default_activation_function"), where),
    ):
        if name is None:
            continue
        kind = activation_of(name)
        if kind not in _ACTIVATIONS:
            known = ", ".join(one for one, own in ACTIVATIONS.items() if own in _ACTIVATIONS)
            raise ValueError(f"{file}: unknown activation {name!r:.80}; expected one of {known}")
        return kind
    return None
