"""Generated parts of the site: tables and figures of results, recipes, command lines, the changelog.

A page requests one with ``<!-- generated: NAME ARGUMENT... -->`` on a line of its own. Figures come from
``benchmarks/results``, recipes from their YAML files and the docstrings of their objectives, options from ``--help``,
so that nothing is typed twice. An unknown name fails the build.

What lies between this line and ``<!-- /generated -->`` is replaced. `PAGES` hold their generated parts, so that they
can be read where the repository is: ``python docs/hooks.py`` writes them anew, and with ``--check`` exits with 1 if one
is not up to date (options are printed differently by other versions of Python than `PYTHON`).
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import yaml

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

try:
    from mkdocs.exceptions import PluginError
except ImportError:  # the pages are written without it

    class PluginError(Exception):  # type: ignore[no-redef]
        """A part cannot be generated."""


ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
RECIPES = ROOT / "training" / "recipes"
PAGES = ("commands", "kernels", "models", "reference", "scope", "speed", "train")
PYTHON = (3, 11)
_MARKER = re.compile(
    r"^<!-- generated: (?P<name>\S+)(?P<arguments>.*?) -->$"
    r"(?:\n(?:(?!<!-- generated: ).*\n)*?<!-- /generated -->$)?",
    re.MULTILINE,
)
# The order of objectives on the page.
_ORDER = ("sbert", "simcse", "hpd", "linear_map", "cross_encoder", "dvbert", "minbert", "roformer_sim")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the plots of the benchmarks to the site, below ``figures/``."""
    from mkdocs.structure.files import File

    for picture in sorted(RESULTS.rglob("*.png")):
        name = f"figures/{picture.relative_to(RESULTS).as_posix()}"
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the generated parts of a page."""
    return fill(markdown)


def fill(markdown: str, *, keep: bool = False) -> str:
    """Return ``markdown`` with its generated parts filled in; ``keep``: between their lines, for a page of `PAGES`."""

    def one(match: re.Match[str]) -> str:
        known = {**GENERATE, **IN_PAGES} if keep else GENERATE
        try:
            generate = known[match["name"]]
        except KeyError:
            raise PluginError(f"{match[0]}: expected one of {', '.join(sorted(GENERATE))}") from None
        content = generate(*match["arguments"].split())
        first = match[0].split("\n", 1)[0]
        if keep:  # as the page in the repository reaches the plots
            content = content.replace("](figures/", "](../benchmarks/results/")
        return f"{first}\n\n{content.strip()}\n\n<!-- /generated -->" if keep else content

    return _MARKER.sub(one, markdown)


def _results(*names: str) -> str:
    """The tables of the result files that exist, rendered as in the READMEs."""
    render = _renderers()
    tables = []
    for name in names:
        path = RESULTS / f"{name}.json"
        if path.is_file():
            result = json.loads(path.read_text(encoding="utf-8"))
            tables.append(render[result["benchmark"]](result))
    if not tables:
        return "*Not measured yet.*"
    return "\n\n".join(tables)


def _benchmark(name: str) -> ModuleType:
    """A module of ``benchmarks``."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def _renderers() -> dict[str, Callable[[dict[str, Any]], str]]:
    """Name of a benchmark -> function that renders its table, from ``benchmarks/readme.py``."""
    return dict(_benchmark("readme").RENDER)


def _roofline() -> str:
    """The time of a batch on a GPU by arithmetic, beside what was measured there."""
    roofline = _benchmark("roofline")
    measured = json.loads((RESULTS / "gpu-h100-terms.json").read_text(encoding="utf-8"))["seconds"]
    terms = roofline.model(roofline.Shape(), 16384, 16, roofline.GPUS["H100"])
    lines = [roofline.HEADERS, ["---"] * len(roofline.HEADERS), *roofline.rows(terms, measured)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _gpu_training() -> str:
    """How near the losses of the recipes on a GPU are to a CPU's."""
    result = json.loads((RESULTS / "gpu-h100-training.json").read_text(encoding="utf-8"))
    differences, left_out = result["differences"], result["not_compared"]
    steps = len(next(iter(result["losses"].values())))
    return (
        f"With {len(differences)} recipes (tiny models, no dropout, fp32) the loss of each of {steps} steps on an H100 "
        f"differs from a CPU's by at most {max(differences.values()):.2g} of its value; {len(left_out)} draw random "
        "numbers on the device and were not compared (`benchmarks/gpu_training.py`)."
    )


def _figure(name: str, *caption: str) -> str:
    """A plot from ``benchmarks/results``."""
    if not (RESULTS / name).is_file():
        return "*Not measured yet.*"
    return f"![{' '.join(caption)}](figures/{name})"


def _recipes() -> str:
    """Each objective with its equation and source, and its recipes."""
    recipes: dict[str, list[Path]] = {}
    modules: dict[str, Path] = {}
    for path in sorted(RECIPES.glob("*.yaml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        section = "postprocess" if "postprocess" in content else "objective"
        kind = content[section]["name"]
        recipes.setdefault(kind, []).append(path)
        module = "postprocess.py" if section == "postprocess" else f"objectives/{kind}.py"
        modules[kind] = ROOT / "training" / module
    sections = []
    for kind in sorted(recipes, key=lambda name: (*_ORDER, name).index(name)):
        tree = ast.parse(modules[kind].read_text(encoding="utf-8"))
        title, _, rest = (ast.get_docstring(tree) or "").partition("\n")
        sections += [
            f"### {title.rstrip(':.')}",
            "",
            _with_formulas(rest),
            "",
            *map(_recipe, recipes[kind]),
            "",
        ]
    return "\n".join(sections)


def _recipe(path: Path) -> str:
    """A recipe as a list item: name, description and comment."""
    text = path.read_text(encoding="utf-8")
    described = yaml.safe_load(text)["description"]
    comment = re.match(r"description: .*\n((?:# .*\n)+)", text)
    if comment is None:
        return f"- `{path.stem}`: {described}."
    lines = comment[1].replace("# ", "", 1).replace("\n# ", "\n").rstrip().split("\n")
    # a command in the comment is indented and may continue on the next lines
    text = "\n".join(lines)
    text = re.sub(r"\n  ((?:.*\\\n +)*.*)", lambda m: " `" + re.sub(r" *\\\n *", " ", m[1]) + "`\n", text)
    return f"- `{path.stem}`: {described}. {' '.join(text.split())}"


def _with_formulas(docstring: str) -> str:
    """A docstring as Markdown: double backticks become single ones, indented lines stay."""
    return re.sub(r"``(.+?)``", r"`\1`", docstring.strip("\n"))


def _training() -> str:
    """The tables of the papers, as far as they have been reproduced."""
    text = _benchmark("papers.text")
    tables = []
    for path in sorted((RESULTS / "training").glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        tables.append(f"### {result['title']}\n\n{text.note_text(result)}\n")
        tables += [*text.table_lines(result)[1:], "", *text.claim_lines(result), ""]
        if path.with_suffix(".png").is_file():
            tables.append(f"![{result['title']}](figures/training/{path.stem}.png)\n")
        if path.with_name(f"{path.stem}-curve.png").is_file():
            tables.append(f"![Dev scores over the steps](figures/training/{path.stem}-curve.png)\n")
        examples = path.with_suffix(".txt")  # examples of generated texts
        if examples.is_file():
            tables.append(f"```text\n{examples.read_text(encoding='utf-8')}```\n")
    return "\n".join(tables)


def _help(*command: str) -> str:
    """The ``--help`` of a command."""
    programs = {
        "embedkit-index": "embedkit.cli.main",
        "embedkit-model": "embedkit.cli.model",
        "embedkit-serve": "embedkit.cli.serve",
    }
    main = import_module(programs.get(command[0], "embedkit.training.cli")).main
    printed = io.StringIO()
    with patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"), redirect_stdout(printed):
        code = main([*command[1:], "--help"])
    if code != 0:
        raise PluginError(f"{' '.join(command)} --help ended with {code}")
    return f"```text\n{printed.getvalue().rstrip()}\n```"


def _models() -> str:
    """The known models."""
    from embedkit import list_models

    rows = ["| model | dimension | MB | tokens | language | license | compared | scores |", "|---" * 8 + "|"]
    for one in list_models():
        scores = ", ".join(f"{score:g} ({name})" for name, score in one.scores.items())
        rows.append(
            f"| `{one.name}` | {one.dimension} | {one.megabytes} | {one.max_length} | {one.language} | "
            f"{one.license} | {one.checked} | {scores} |"
        )
    return "\n".join(rows)


def _needs() -> str:
    """Which model for which need."""
    from embedkit.model_folder.catalog import list_needs

    rows = ["| need | model | measured | |", "|---" * 4 + "|"]
    for one in list_needs():
        rows.append(f"| {one.need} | `{one.model}` | {one.figures or 'layout tried'} | {one.note} |")
    return "\n".join(rows)


def _changes() -> str:
    """CHANGELOG.md without its title."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n")[2]


def _limits() -> str:
    """The section Limits of the README, with its links as they are in this folder."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.split("## Limits", 1)[1].split("\n## ", 1)[0].strip()
    return f"## Limits\n\n{section}".replace("](docs/", "](")


GENERATE: dict[str, Callable[..., str]] = {
    "changes": _changes,
    "figure": _figure,
    "gpu-training": _gpu_training,
    "help": _help,
    "limits": _limits,
    "models": _models,
    "needs": _needs,
    "recipes": _recipes,
    "results": _results,
    "roofline": _roofline,
    "training": _training,
}


def _reference(name: str, *flags: str) -> str:
    """The directive of mkdocstrings for an object, from whose docstring it makes a page."""
    lines = [f"::: {name}"]
    if flags:
        lines += ["    options:", *(f"      {flag.replace('=', ': ')}" for flag in flags)]
    return "\n".join(lines)


def _summary(name: str, *_: str) -> str:
    """What an object is, in a few lines: the first line of its docstring and of its methods'."""
    if name.startswith("embedkit.integrations."):  # the libraries that these are for need not be installed
        path, _, kind = name.rpartition(".")
        tree = ast.parse((ROOT / f"{path.replace('.', '/')}.py").read_text(encoding="utf-8"))
        found = next(one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == kind)
        first = (ast.get_docstring(found) or "").partition("\n\n")[0].replace("\n", " ")
        return f"`{name}`: {_with_formulas(first)}"
    found = _object(name)
    if getattr(found, "__module__", None) == "embedkit._core":  # what is compiled is described in its stub
        tree = ast.parse((ROOT / "embedkit" / "_core.pyi").read_text(encoding="utf-8"))
        stub = next(
            one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == found.__name__
        )
        first = (ast.get_docstring(stub) or "").partition("\n\n")[0].replace("\n", " ")
        return f"`{name}()`\n\n{_with_formulas(first)}"
    if inspect.ismodule(found):
        members = [getattr(found, one) for one in getattr(found, "__all__", ())]
        return "\n".join(f"- `{one.__name__}`: {_first_line(one)}" for one in members if callable(one))
    lines = [f"`{name}{_parameters(found)}`", "", _first_line(found)]
    if inspect.isclass(found) and not issubclass(found, (BaseException, tuple)):
        members = {key: value for key, value in inspect.getmembers(found) if not key.startswith("_")}
        methods = {key: value for key, value in members.items() if callable(value) and _first_line(value)}
        owned = {
            key: value
            for key, value in methods.items()
            if "embedkit" in (getattr(value, "__module__", "") or "")
        }
        lines += [
            "",
            *(f"- `{key}{_parameters(value)}`: {_first_line(value)}" for key, value in owned.items()),
        ]
    return "\n".join(lines)


def _object(name: str) -> Any:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return found
    raise PluginError(f"there is no {name}")


def _first_line(found: Any) -> str:
    return _with_formulas((inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " "))


def _parameters(found: Any) -> str:
    """Names of parameters, in parentheses."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return ""
    names, keyword = [], False
    for one in parameters:
        if one.name in ("self", "cls") or one.name.startswith("_"):
            continue
        if one.kind == one.KEYWORD_ONLY and not keyword:
            names.append("*")
            keyword = True
        if one.kind == one.VAR_POSITIONAL:
            keyword = True
        prefix = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        names.append(f"{prefix}{one.name}")
    return f"({', '.join(names)})" if names or not inspect.isclass(found) else ""


GENERATE["reference"] = _reference

IN_PAGES: dict[str, Callable[..., str]] = {"reference": _summary}
"""What stands in the pages themselves, where the site has something else."""


def main(arguments: Sequence[str]) -> int:
    """Write the generated parts of `PAGES`, or with ``--check`` compare; returns the exit code."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() not in (ROOT, ROOT / "docs")]
    old = []
    for name in PAGES:
        path = ROOT / "docs" / f"{name}.md"
        before = path.read_text(encoding="utf-8")
        after = fill(before, keep=True)
        if after != before:
            old.append(path.name)
            if "--check" not in arguments:
                path.write_text(after, encoding="utf-8")
    if "--check" in arguments and old:
        print(f"not up to date: {', '.join(old)}; run: python docs/hooks.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
