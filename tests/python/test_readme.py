"""The README does what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tour_runs(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed: the tour searches an index")
    corpus = (ROOT / "examples" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:300]
    (tmp_path / "corpus.jsonl").write_text("\n".join(corpus) + "\n", encoding="utf-8")
    section = README.split("## Thirty seconds")[1].split("\n## ")[0]
    tour = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert len(tour) == 1
    build = (
        "import sys; from embedkit.cli import main; "
        "sys.exit(main(['build', 'corpus.jsonl', '-o', 'demo-index']))"
    )
    for script in (build, tour[0]):
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 3
    assert "lentils" in done.stdout


def test_the_encode_example_runs(tmp_path: Path) -> None:
    section = README.split("## Encoder")[1].split("\n## ")[0]
    (example,) = (
        block for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL) if "texts =" in block
    )
    done = subprocess.run(
        [sys.executable, "-c", f"from embedkit import Encoder\nenc = Encoder()\n{example}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(2, 384)\n"
    assert (tmp_path / "my-model" / "modules.json").is_file()


def test_the_integrations_examples_run() -> None:
    pytest.importorskip("faiss", reason="faiss is not installed: it searches")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: the example is a pipeline of it")
    section = README.split("## Integrations")[1].split("\n## ")[0]
    pipeline, searches = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    start = 'from embedkit import Encoder\nenc, texts = Encoder(), ["a text", "another text"]\n'
    end = '\nassert topics.predict(["Salt the soup."]) == ["food"]\n'
    done = subprocess.run(
        [sys.executable, "-c", start + searches + pipeline + end], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_commands_of_the_make_targets_are_spelled_out() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in (
        "embedkit-index build examples/corpus.jsonl -o",
        '"why is the sky blue" "I cannot log in to my account" "what to cook with lentils" -k 3',
        "install -c constraints.txt '.[cpu,dev,train]'",
        "-G Ninja && cmake --build --preset",
    ):
        assert command in README
        assert command in makefile.replace("install -q", "install")


def test_files_that_the_readme_names_exist() -> None:
    for name in re.findall(r"\]\(([\w./-]+)\)|`((?:benchmarks|examples)/[\w./-]+\.\w+)`", README):
        assert (ROOT / (name[0] or name[1])).exists(), name
