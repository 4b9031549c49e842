"""embedkit: sentence embeddings and semantic search on a compiled core, without PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core import active_isa
    from .cross_encoder import CrossEncoder
    from .encoder import Encoder
    from .index import Document, Index
    from .model_folder.catalog import list_models
    from .vector_search import paraphrase_mining, semantic_search

    __version__: str

__all__ = [
    "CrossEncoder",
    "Document",
    "Encoder",
    "Index",
    "__version__",
    "active_isa",
    "list_models",
    "paraphrase_mining",
    "semantic_search",
]


def _main_interpreter_only() -> None:
    """Refuse to be imported in a subinterpreter, where loading the core would hang.

    Raises:
        ImportError: this is one; says what to set.
    """
    from importlib import import_module

    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, and before
        try:
            interpreters = import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError(
                "embedkit cannot be imported in a subinterpreter; with mod_wsgi, set WSGIApplicationGroup %{GLOBAL}"
            )


_main_interpreter_only()


def _not_a_bare_checkout() -> None:
    """Refuse to be imported from the folder of a checkout for which nothing was compiled.

    Raises:
        ImportError: this is one; says what to do.
    """
    from importlib.util import find_spec
    from os.path import dirname, isdir, join

    folder = __path__[0]
    # An installation ends here, and an editable one below: it has these sources, and the core elsewhere.
    if not isdir(join(dirname(folder), "csrc")) or find_spec(f"{__name__}._core") is not None:
        return
    raise ImportError(
        f"{folder} is a checkout without the compiled parts of embedkit, and Python imports it because it lies in "
        "the folder that Python was started in (or on PYTHONPATH). To use the installed one, start Python in another "
        "folder, or as `python -P` (from 3.11 on); to use the checkout, install it: pip install -e .",
        name=f"{__name__}._core",
    )


_not_a_bare_checkout()

# Imported on first use, so that importing the package is cheap: a program that only searches does not load the
# encoder, one that only encodes does not load the index.
_MODULES = {
    "CrossEncoder": "cross_encoder",
    "Document": "documents",
    "Encoder": "encoder",
    "Index": "index",
    "active_isa": "_core",
    "list_models": "model_folder.catalog",
    "paraphrase_mining": "vector_search",
    "semantic_search": "vector_search",
}


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        from importlib.metadata import version

        value = version("embedkit")
    elif name in _MODULES:
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    elif name in ("kernels", "training"):
        from importlib import import_module

        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
