"""Import: its cost, and the public names."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import embedkit

HEAVY = ("torch", "transformers", "faiss", "tqdm", "huggingface_hub", "tokenizers", "sentence_transformers")


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_import_loads_nothing_heavy() -> None:
    loaded = run("import sys, embedkit; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert not {*HEAVY, "numpy"} & set(loaded)


def test_encoding_loads_nothing_heavy(make_model: Callable[..., Path]) -> None:
    script = (
        "import sys; from embedkit import Encoder; Encoder(sys.argv[1]).encode(['a']); print(*sys.modules)"
    )
    loaded = set(run(script, str(make_model())).split())
    assert "numpy" in loaded and not {name for name in loaded if name.partition(".")[0] in HEAVY}
    of_devices = {name for name in loaded if name.startswith(("embedkit.kernels", "embedkit.backends."))}
    of_cpus = ("core_engine", "engine", "opening", "stage")
    assert of_devices <= {f"embedkit.backends.{name}" for name in of_cpus}


def test_a_progress_bar_that_nobody_sees_is_not_made(make_model: Callable[..., Path]) -> None:
    """Services log at level INFO; tqdm would start a thread."""
    script = (
        "import logging, sys, threading; logging.basicConfig(level=logging.INFO)\n"
        "from embedkit import Encoder; Encoder(sys.argv[1]).encode(['a', 'b'])\n"
        "print('tqdm' in sys.modules, threading.active_count())"
    )
    assert run(script, str(make_model())) == "False 1\n"


def test_a_subinterpreter_is_refused() -> None:
    """Loading the core there would hang."""
    script = (
        "try:\n    import _interpreters as interpreters\n"
        "except ImportError:\n    import _xxsubinterpreters as interpreters\n"
        "said = 'import sys\\n'\n"
        "said += 'try:\\n    import embedkit\\nexcept ImportError as error:\\n    print(error, flush=True)'\n"
        "interpreters.run_string(interpreters.create(), said)"
    )
    assert "cannot be imported in a subinterpreter; with mod_wsgi" in run(script)


def test_import_is_quick() -> None:
    script = "import time; start = time.process_time(); import embedkit; print(time.process_time() - start)"
    seconds = min(float(run(script)) for _ in range(5))
    assert seconds <= 0.2


@pytest.mark.parametrize("name", ["kernels", "training"])
def test_subpackages_are_imported_on_use(name: str) -> None:
    assert run(f"import embedkit; print(embedkit.{name}.__name__)").strip() == f"embedkit.{name}"


@pytest.mark.parametrize("name", ["distill", "load_recipe", "train"])
def test_training_names_what_to_install(name: str) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        f"try:\n    from embedkit.training import {name}\nexcept ImportError as error:\n    print(error)"
    )
    told = (
        rf"embedkit.training.{name} needs (torch|transformers), which is not installed: "
        r"pip install 'embedkit\[train\]'\n"
    )
    assert re.fullmatch(told, run(script))


def test_public_surface() -> None:
    functions = {"active_isa", "list_models", "paraphrase_mining", "semantic_search"}
    classes = {"CrossEncoder", "Document", "Encoder", "Index"}
    assert set(embedkit.__all__) == {*classes, "__version__", *functions} == set(dir(embedkit))
    assert embedkit.__version__ == __import__("importlib.metadata").metadata.version("embedkit")
    assert embedkit.active_isa() in embedkit._core.available_isas()
    with pytest.raises(AttributeError, match="'embedkit' has no attribute 'nothing'"):
        embedkit.nothing  # noqa: B018
