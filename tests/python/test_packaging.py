"""The installed package: its content, its exports, and the cost of importing it."""

import importlib
import json
import re
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

import embedkit

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["torch", "transformers", "sentence_transformers", "faiss", "tokenizers", "huggingface_hub", "triton"]


def run(script: str, folder: Path) -> str:
    """The output of a script in a fresh interpreter, away from the repository."""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["embedkit.kernels", "embedkit.training"])
def test_top_level_folders_are_mapped_into_the_package(name: str) -> None:
    assert importlib.import_module(name).__doc__


@pytest.mark.parametrize("name", ["kernels", "training", "csrc", "benchmarks", "tests"])
def test_no_other_top_level_name_is_claimed(name: str) -> None:
    files = metadata.files("embedkit") or []
    assert not [f for f in files if f.parts[0] == name]


def test_type_marker_and_stubs_are_installed() -> None:
    package = resources.files("embedkit")
    assert (package / "py.typed").is_file()
    assert (package / "_core.pyi").is_file()


def test_every_exported_name_exists_and_is_listed() -> None:
    assert len(set(embedkit.__all__)) == len(embedkit.__all__)
    for name in embedkit.__all__:
        assert getattr(embedkit, name) is not None
    assert set(embedkit.__all__) <= set(dir(embedkit))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = embedkit.no_such_name


def test_import_loads_nothing_heavy(tmp_path: Path) -> None:
    script = f"import json, sys, embedkit; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    assert json.loads(run(script, tmp_path)) == []


def test_encoding_with_the_built_in_model_loads_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import json, sys; from embedkit import Encoder; assert Encoder().encode('a text').ndim == 1; "
        f"print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    )
    assert json.loads(run(script, tmp_path)) == []


def test_version_is_the_distributions_and_pyprojects() -> None:
    assert embedkit.__version__ == metadata.version("embedkit")
    line = next(s for s in (ROOT / "pyproject.toml").read_text().splitlines() if s.startswith("version = "))
    assert line == f'version = "{embedkit.__version__}"'


def test_the_newest_entry_of_the_changes_is_this_version() -> None:
    headings = re.findall(
        r"^## (\S+), (unreleased|\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert headings
    assert headings[0][0] == embedkit.__version__
    assert all(date != "unreleased" for _, date in headings[1:])


def test_license_is_installed() -> None:
    assert metadata.metadata("embedkit")["License-Expression"] == "Apache-2.0"
    assert "LICENSE" in {f.name for f in metadata.files("embedkit") or [] if ".dist-info" in str(f)}


def test_built_in_model_is_installed_with_its_license_and_notice() -> None:
    folders = [f for f in (resources.files("embedkit") / "models").iterdir() if (f / "config.json").is_file()]
    assert folders
    for folder in folders:
        assert (folder / "LICENSE").is_file()
        assert (folder / "NOTICE").is_file()
        assert sum(f.stat().st_size for f in Path(str(folder)).rglob("*") if f.is_file()) <= 24e6


def test_command_is_installed() -> None:
    commands = {e.name: e.value for e in metadata.entry_points(group="console_scripts")}
    assert all(
        commands[name].startswith("embedkit.")
        for name in ("embedkit-index", "embedkit-model", "embedkit-serve")
    )


def test_system_headers_are_included_in_one_file_of_the_core() -> None:
    system = re.compile(r"#include <(sys/|linux/|mach/|sched|pthread|unistd|fcntl|dlfcn|signal)")
    sources = [path for pattern in ("*.cc", "*.h") for path in (ROOT / "csrc").rglob(pattern)]
    found = {str(path.relative_to(ROOT)) for path in sources if system.search(path.read_text("utf-8"))}
    assert found == {"csrc/base/platform.cc"}
