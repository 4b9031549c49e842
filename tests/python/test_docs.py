"""Every code block of the documentation and the README runs, or says why it does not; every cited test exists."""

from __future__ import annotations

import ast
import doctest
import functools
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from docs_page import blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
_NAMES = [page.name for page in PAGES]
CITING = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
_DATA = ("json", "yaml", "text")  # languages of blocks that are written to files


@pytest.fixture(params=PAGES, ids=_NAMES)
def page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(params=CITING, ids=lambda path: str(path.relative_to(ROOT)))
def cited(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_blocks_run(page: Path, tmp_path: Path) -> None:
    for module in ("faiss", "onnxruntime", "sklearn", "torch", "transformers", "triton"):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed: the pages use all extras")
    found = list(blocks(page.read_text(encoding="utf-8")))
    if all(block.marker not in ("", "file") for block in found):
        return
    corpus = (ROOT / "examples" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:300]
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "corpus.jsonl").write_text("\n".join(corpus) + "\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "docs_page.py"), str(page)],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        where = f"{page.name}:{block.line}"
        assert block.language in ("python", "sh", *_DATA), f"{where}: unknown language {block.language!r}"
        if block.marker == "not run":
            assert len(block.argument) >= 10, f"{where}: say why this block is not run"
        elif block.marker == "run by":
            test, _, why = block.argument.partition(": ")
            assert (ROOT / test).is_file(), f"{where}: there is no {test}"
            assert why, f"{where}: say why this block is run elsewhere"
        elif block.language in _DATA and block.marker != "generated":
            assert block.marker == "file", f"{where}: name the file, <!-- file: NAME -->"


def test_tests_that_a_page_cites_exist(cited: Path) -> None:
    text = cited.read_text(encoding="utf-8")
    for file, name in re.findall(r"`(tests/[\w./-]+?)(?:::(\w+))?`", text):
        assert (ROOT / file).exists(), f"{cited.name}: there is no {file}"
        if name:
            assert name in _functions(ROOT / file), f"{cited.name}: {file} has no test {name}"


@functools.cache
def _functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", _prose(page)):
        found = page.parent / target if target else page
        assert found.exists(), f"{page.name}: there is no {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", _prose(found), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings]
            assert anchor in anchors, f"{page.name}: {target or page.name} has no heading #{anchor}"


def _prose(page: Path) -> str:
    """A page without its fenced blocks, whose comments look like headings."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("module", ["embedkit", "embedkit.index", "embedkit.training"])
def test_the_reference_has_every_public_name(module: str) -> None:
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    for name in import_module(module).__all__:
        # a part of its own, as a name of this package or of another one, or a line in the list of the errors
        listed = rf"^(<!-- generated: reference embedkit[.\w]*\.{name} |- `{name}`: )"
        assert name == "__version__" or re.search(listed, reference, re.MULTILINE), name


def test_every_page_is_in_the_navigation() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- .+: (\w+\.md)$", site, re.MULTILINE)
    assert sorted(listed) == sorted(name for name in _NAMES if name != "README.md")


def test_a_page_is_readable_in_the_repository(page: Path) -> None:
    # directives of mkdocstrings are made by `generated: reference`, which has a summary in the page itself
    assert not re.search(r"^:::", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_extras_that_a_page_names_are_listed(page: Path) -> None:
    table = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    listed = {
        name
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`([\w-]+)`", row)
    }
    for extras in re.findall(r"(?:embedkit|\.)\[([\w,-]+)\]", page.read_text(encoding="utf-8")):
        assert set(extras.split(",")) - {"bench", "dev"} <= listed  # these two are for work on a checkout


def test_a_broken_block_is_reported_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    script = str(Path(__file__).parent / "docs_page.py")
    for code, said in (
        ("```python\nx = 1\nx / 0\n```\n", f'"{page}", line 5'),
        ("```sh\ntrue\nfalse\n```\n", f"{page}:4"),
        ("```python\nimport numpy\nnumpy.ones(3)  # (2,)\n```\n", f"{page}:5: the page says (2,)"),
        (" ```python\n ```\n", "line 3: a block must not be indented"),
    ):
        page.write_text(f"# Page\n\n{code}", encoding="utf-8")
        done = subprocess.run(
            [sys.executable, script, str(page)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert said in done.stderr, done.stderr


def test_examples_of_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed: the example is an index")
    from embedkit import Encoder, Index

    monkeypatch.chdir(tmp_path)
    (test,) = doctest.DocTestFinder(recurse=False).find(Index, "Index", globs={})
    test.globs.update(Index=Index, encoder=Encoder())
    assert doctest.DocTestRunner().run(test) == (0, len(test.examples))


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="argparse prints options differently in other versions"
)
def test_generated_pages_are_up_to_date() -> None:
    for module in ("faiss", "onnxruntime", "torch", "transformers", "triton", "yaml"):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed: the pages describe all modules")
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "hooks.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_page_keeps_what_is_generated_between_its_lines() -> None:
    spec = spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = module_from_spec(spec)
    spec.loader.exec_module(hooks)
    hooks.GENERATE["number"] = lambda value: f"number {value}"
    old = "<!-- generated: number 2 -->\nold\n<!-- /generated -->"
    page = f"# A\n\n<!-- generated: number 1 -->\n\ntext\n\n{old}\n\nend\n"
    kept = hooks.fill(page, keep=True)
    assert hooks.fill(kept, keep=True) == kept
    assert hooks.fill(kept) == hooks.fill(page) == "# A\n\nnumber 1\n\ntext\n\nnumber 2\n\nend\n"
    assert (
        kept.count("\nnumber 1\n") == kept.count("\nnumber 2\n") == 1 and "old" not in kept and "text" in kept
    )
