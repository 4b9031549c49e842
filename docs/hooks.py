"""What mkdocs generates: tables and figures of measured results, the recipes, the command lines, the changes.

A page asks with ``<!-- generated: NAME ARGUMENT... -->`` on a line of its own. Nothing here is typed twice: figures
come from ``benchmarks/results``, recipes from their YAML files and the docstrings of their objectives, options from
``--help``. A name that is not known ends the build.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
RECIPES = ROOT / "training" / "recipes"
OBJECTIVES = ROOT / "training" / "objectives"
_MARKER = re.compile(r"^<!-- generated: (?P<name>\S+)(?P<arguments>.*?) -->$", re.MULTILINE)
# What stands in the recipes' order of reading, which is not that of their names.
_ORDER = ("sbert", "simcse", "hpd", "linear_map", "cross_encoder", "dvbert", "minbert", "roformer_sim")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the figures of the benchmarks below ``figures/``."""
    for picture in sorted(RESULTS.rglob("*.png")):
        name = f"figures/{picture.relative_to(RESULTS).as_posix()}"
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in what a page asks for."""
    return fill(markdown)


def fill(markdown: str) -> str:
    """``markdown`` with all that it asks for."""

    def one(match: re.Match[str]) -> str:
        try:
            generate = GENERATE[match["name"]]
        except KeyError:
            raise PluginError(f"{match[0]}: known are {', '.join(sorted(GENERATE))}") from None
        return generate(*match["arguments"].split())

    return _MARKER.sub(one, markdown)


def _results(*names: str) -> str:
    """The tables of result files, as the READMEs have them; of those that exist."""
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


def _renderers() -> dict[str, Callable[[dict[str, Any]], str]]:
    """Name of a benchmark -> what makes its table, from the script that writes the READMEs."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return dict(import_module("readme").RENDER)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def _figure(name: str, *caption: str) -> str:
    """A picture of ``benchmarks/results``."""
    if not (RESULTS / name).is_file():
        return "*Not measured yet.*"
    return f"![{' '.join(caption)}](figures/{name})"


def _recipes() -> str:
    """Each objective with its equation and source, and its recipes."""
    recipes: dict[str, list[Path]] = {}
    for path in sorted(RECIPES.glob("*.yaml")):
        kind = yaml.safe_load(path.read_text(encoding="utf-8"))["objective"]["name"]
        recipes.setdefault(kind, []).append(path)
    sections = []
    for kind in sorted(recipes, key=lambda name: (*_ORDER, name).index(name)):
        tree = ast.parse((OBJECTIVES / f"{kind}.py").read_text(encoding="utf-8"))
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
    """A recipe as an item of a list: its name, its description and its comment."""
    text = path.read_text(encoding="utf-8")
    described = yaml.safe_load(text)["description"]
    comment = re.match(r"description: .*\n((?:# .*\n)+)", text)
    if comment is None:
        return f"- `{path.stem}`: {described}."
    lines = comment[1].replace("# ", "", 1).replace("\n# ", "\n").rstrip().split("\n")
    # a command that the comment shows is indented and may go on in the next lines
    told = "\n".join(lines)
    told = re.sub(r"\n  ((?:.*\\\n +)*.*)", lambda m: " `" + re.sub(r" *\\\n *", " ", m[1]) + "`\n", told)
    return f"- `{path.stem}`: {described}. {' '.join(told.split())}"


def _with_formulas(docstring: str) -> str:
    """A docstring as Markdown: its indented lines as they stand, its double backticks single."""
    return re.sub(r"``(.+?)``", r"`\1`", docstring.strip("\n"))


def _training() -> str:
    """The tables of the papers, as far as they are trained."""
    tables = []
    for path in sorted((RESULTS / "training").glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        tables.append(f"### {result['title']}\n\n{result['note']}\n")
        for part in dict.fromkeys(row["part"] for row in result["rows"]):
            rows = [row for row in result["rows"] if row["part"] == part]
            columns = [key for key in rows[0]["scores"] if any(row["scores"].get(key) for row in rows)]
            tables.append(f"| {part} | seeds | {' | '.join(columns)} |\n{'|---' * (len(columns) + 2)}|")
            for row in rows:
                scores = [_score(row["scores"].get(key), len(row["seeds"])) for key in columns]
                tables.append(f"| {row['name']} | {len(row['seeds'])} | {' | '.join(scores)} |")
            tables.append("")
        if path.with_suffix(".png").is_file():
            tables.append(f"![{result['title']}](figures/training/{path.stem}.png)\n")
        examples = path.with_suffix(".txt")  # what the models said
        if examples.is_file():
            tables.append(f"```text\n{examples.read_text(encoding='utf-8')}```\n")
    return "\n".join(tables)


def _score(score: dict[str, float] | None, seeds: int) -> str:
    if score is None:
        return ""
    return f"{score['mean']:.2f} ± {score['sd']:.2f}" if seeds > 1 else f"{score['mean']:.2f}"


def _help(*command: str) -> str:
    """What a command says of itself."""
    programs = {
        "embedkit-index": "embedkit.cli.main",
        "embedkit-model": "embedkit.cli.model",
        "embedkit-serve": "embedkit.cli.serve",
    }
    module = programs.get(command[0], "embedkit.training.cli")
    script = f"import sys; from {module} import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, *command[1:], "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        check=False,
    )
    if done.returncode != 0:
        raise PluginError(f"{' '.join(command)} --help: {done.stderr}")
    return f"```text\n{done.stdout.rstrip()}\n```"


def _models() -> str:
    """The models that are known to work."""
    from embedkit import list_models

    rows = ["| model | dimension | MB | tokens | language | licence | scores |", "|---" * 7 + "|"]
    for one in list_models():
        scores = ", ".join(f"{score:g} ({name})" for name, score in one.scores.items())
        rows.append(
            f"| `{one.name}` | {one.dimension} | {one.megabytes} | {one.max_length} | {one.language} | "
            f"{one.license} | {scores} |"
        )
    return "\n".join(rows)


def _changes() -> str:
    """CHANGELOG.md below its title."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n")[2]


def _limits() -> str:
    """The section of the README that says what has not been shown."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return f"## Limits\n{readme.split('## Limits', 1)[1].split(chr(10) + '## ', 1)[0]}"


GENERATE: dict[str, Callable[..., str]] = {
    "changes": _changes,
    "figure": _figure,
    "help": _help,
    "limits": _limits,
    "models": _models,
    "recipes": _recipes,
    "results": _results,
    "training": _training,
}
