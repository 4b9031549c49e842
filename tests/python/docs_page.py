"""Run the code blocks of a Markdown page in order: ``python docs_page.py PAGE``, in an empty working folder.

* ```` ```python ```` blocks share one namespace. A comment that starts with a shape, such as ``# (2, 384)``, is
  compared with the shape of the statement's value.
* ```` ```sh ```` blocks are run by bash, which stops at the first failing command, with the installed commands first
  on the path.
* Other blocks below ``<!-- file: NAME -->`` are written to that file.
* Blocks below ``<!-- not run: WHY -->`` or ``<!-- run by TEST-FILE: WHY -->``, and those between
  ``<!-- generated: … -->`` and ``<!-- /generated -->``, are skipped.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^( *)```(\S*)")
_MARKER = re.compile(r"^<!-- (not run|run by|file|generated)\b:? ?(.*?) -->$")
_SHAPE = re.compile(r"# (\((?:\d+, ?)*\d*\))")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the line of its first line of code, the code, and the marker above it."""

    language: str
    line: int
    code: str
    marker: str = ""
    argument: str = ""  # the text of the marker: a reason, a file


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page.

    Raises:
        ValueError: a block is indented, or has no end.
    """
    lines = page.split("\n")
    marker: tuple[str, str] = ("", "")
    number = generated = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            found = _MARKER.match(lines[number])
            marker = (found[1], found[2]) if found else marker if not lines[number].strip() else ("", "")
            if marker[0] == "generated":
                generated = _end_of_part(lines, number)
            number += 1
            continue
        if fence[1]:
            raise ValueError(f"line {number + 1}: a block must not be indented")
        try:
            end = lines.index("```", number + 1)
        except ValueError:
            raise ValueError(f"line {number + 1}: the block has no end") from None
        code = "\n".join(lines[number + 1 : end]) + "\n"
        yield Block(fence[2], number + 2, code, *(("generated", "") if number < generated else marker))
        marker = ("", "")
        number = end + 1


def _end_of_part(lines: list[str], begin: int) -> int:
    """The line that ends the generated part that begins at a line; 0 if the page does not hold it."""
    for number in range(begin + 1, len(lines)):
        if lines[number] == "<!-- /generated -->":
            return number
        if lines[number].startswith("<!-- generated"):
            break
    return 0


def run(page: Path, namespace: dict[str, Any]) -> None:
    """Run a page in the working directory."""
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.marker == "file":
            Path(block.argument).write_text(block.code, encoding="utf-8")
        elif block.marker:
            continue
        elif block.language == "python":
            _run_python(block, page, namespace)
        elif block.language == "sh":
            _run_shell(block, page)


def _run_python(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    lines = block.code.split("\n")
    # keep the line numbers of the page for tracebacks
    for statement in ast.parse("\n" * (block.line - 1) + block.code, str(page)).body:
        value = None
        if isinstance(statement, ast.Expr):
            code = compile(ast.Expression(statement.value), str(page), "eval")
            value = eval(code, namespace)
        else:
            exec(compile(ast.Module([statement], []), str(page), "exec"), namespace)
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                value = namespace[statement.targets[0].id]
        end = statement.end_lineno
        shape = _SHAPE.search(lines[end - block.line]) if end is not None else None
        if shape is not None and value is not None:
            assert tuple(value.shape) == ast.literal_eval(shape[1]), (
                f"{page}:{end}: the page says {shape[1]}, the shape is {tuple(value.shape)}"
            )


def _run_shell(block: Block, page: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", block.code], env={**os.environ, "PATH": path}, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{page}:{block.line}: this block ended with exit status {done.returncode}")


if __name__ == "__main__":
    run(Path(sys.argv[1]), {"__name__": "__main__"})
