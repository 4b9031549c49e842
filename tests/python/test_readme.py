"""The commands and files that the README names exist; test_docs.py runs its code blocks."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_commands_of_the_make_targets_are_spelled_out() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in (
        "embedkit-index build examples/corpus.jsonl -o",
        '"largest animal on earth" "I cannot log in to my account" "what to cook with lentils" -k 3',
        "install -c constraints.txt '.[cpu,dev,train]'",
        "-G Ninja && cmake --build --preset",
    ):
        assert command in README
        assert command in makefile.replace("install -q", "install")


def test_files_that_the_readme_names_exist() -> None:
    for name in re.findall(r"`((?:benchmarks|examples)/[\w./-]+\.\w+)`", README):
        assert (ROOT / name).exists(), name
