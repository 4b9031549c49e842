"""Finds a model by name: a local folder, or a repository of the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from ..files import expanded
from .folder import BUILTIN
from .tokenizer_files import TOKENIZER_FILES

__all__ = ["HubOptions", "resolve"]

# No file that may contain a pickle, and no second copy of the weights in another format.
_SETTINGS = [
    "*config*.json",
    "modules.json",
    "embedkit.json",
    *TOKENIZER_FILES,
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "LICENSE*",
    "NOTICE*",
    "README.md",
]
_WEIGHTS = [
    "model.safetensors",
    "model.int8.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
]
_IGNORED = ["openvino/*", "runs/*", "checkpoint*/*"]
# Models of the Hub's first days, which have no organization before their names; of the families that run here.
_BARE = frozenset(
    """
    albert-base-v1 albert-base-v2 albert-large-v1 albert-large-v2 albert-xlarge-v1 albert-xlarge-v2 albert-xxlarge-v1
    albert-xxlarge-v2 bert-base-cased bert-base-chinese bert-base-german-cased bert-base-multilingual-cased
    bert-base-multilingual-uncased bert-base-uncased bert-large-cased bert-large-cased-whole-word-masking
    bert-large-uncased bert-large-uncased-whole-word-masking camembert-base distilbert-base-cased
    distilbert-base-german-cased distilbert-base-multilingual-cased distilbert-base-uncased distilroberta-base
    roberta-base roberta-large xlm-roberta-base xlm-roberta-large
    """.split()  # noqa: SIM905
)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class HubOptions:
    """Where and how a model of the Hugging Face Hub is fetched; named as in sentence-transformers."""

    revision: str | None = None
    cache_folder: str | os.PathLike[str] | None = None
    token: str | bool | None = None
    local_files_only: bool = False


def resolve(
    model: str | os.PathLike[str],
    hub: HubOptions = HubOptions(),
    *,
    graph: str | None = None,
    organization: str = "sentence-transformers",
) -> Path:
    """The folder of a model; the built-in one has a name; a repository that is not cached is downloaded.

    A name without an organization is one of ``organization``, as in sentence-transformers.

    Only JSON, vocabularies, chat templates and safetensors files are fetched, never code or a pickle; with ``graph``,
    the name of an ONNX file, that file and its companions instead of the weights.

    Raises:
        FileNotFoundError: the folder does not exist, the model is not cached and may not or cannot be fetched, or it
            has no such revision.
        ImportError: a download is needed and ``huggingface-hub`` is not installed.
        OSError: the download was interrupted.
    """
    name = os.fspath(model)
    path = expanded(model)
    if name and path.exists():
        return path
    if not _REPOSITORY.fullmatch(name) or isinstance(model, os.PathLike):
        raise FileNotFoundError(
            f"the model folder {name!r} does not exist; give a folder, "
            "or a name on the Hugging Face Hub such as 'sentence-transformers/all-MiniLM-L6-v2'"
        )
    if name == BUILTIN.name:  # as `describe` and `list_models` give it
        return BUILTIN
    repository = name if "/" in name or name in _BARE else f"{organization}/{name}"
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError as error:
        if error.name != "huggingface_hub":
            raise ImportError(
                f"fetching {repository!r} from the Hugging Face Hub needs huggingface-hub 0.25 or later; the one that "
                f"is installed cannot be used ({error}): pip install -U huggingface-hub"
            ) from error
        raise ImportError(
            f"no folder {name!r} exists, and fetching {repository!r} from the Hugging Face Hub needs the "
            "package huggingface-hub: pip install huggingface-hub"
        ) from None
    patterns, ignored = _patterns(graph)
    cache = hub.cache_folder or os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    try:
        return Path(
            snapshot_download(
                repository,
                revision=hub.revision,
                cache_dir=os.fspath(expanded(cache)) if cache else None,
                token=hub.token,
                local_files_only=hub.local_files_only,
                allow_patterns=patterns,
                ignore_patterns=ignored,
            )
        )
    except RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"no folder {name!r} exists, and the Hugging Face Hub has no model {repository!r} that this "
            "token may read; check the name, or give token="
        ) from error
    except RevisionNotFoundError as error:
        raise FileNotFoundError(
            f"{repository!r} on the Hugging Face Hub has no revision {hub.revision!r}; give revision= a branch, a tag "
            "or a commit that its page lists, or leave it out"
        ) from error
    except LocalEntryNotFoundError as error:
        reason = (
            "local_files_only=True forbids a download"
            if hub.local_files_only
            else "the Hub cannot be reached"
        )
        raise FileNotFoundError(
            f"no folder {name!r} exists, {repository!r} is not in the cache, and {reason}; connect once, "
            "or copy the model folder here and give its path"
        ) from error
    except (ImportError, AttributeError, TypeError, ValueError):
        raise
    except Exception as error:  # of the HTTP library, which is another one in every few versions
        if isinstance(error, OSError) and not type(error).__module__.startswith("requests."):
            raise  # of the disk, or with a message of huggingface_hub
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise OSError(
            f"the download of {repository!r} was interrupted ({reason}); run it again to resume"
        ) from error


def _patterns(graph: str | None) -> tuple[list[str], list[str]]:
    """Patterns of the files to fetch, and of those to ignore."""

    def anywhere(names: list[str]) -> list[str]:  # old folders have the transformer in 0_Transformer
        return [*names, *(f"*/{name}" for name in names)]

    if graph is None:
        return anywhere([*_SETTINGS, *_WEIGHTS]), ["onnx/*", *_IGNORED]
    name = escape(graph.replace("\\", "/"))
    # The weights may be beside the graph, embedkit's description is, and the Dense layers are small.
    files = [f"{name}*", f"{name.removesuffix('.onnx')}.embedkit.json"]
    return [*anywhere([*_SETTINGS, *files]), "*/model.safetensors"], _IGNORED
