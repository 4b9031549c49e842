"""Questions that people asked, from public sets whose licenses allow a model for everybody."""

import csv
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Repository -> its license and the files to read. None of them is a set of test queries for search.
QUESTION_SETS = {
    "google-research-datasets/query-wellformedness": ("CC BY-SA 4.0", r"(train|dev|test)\.tsv"),
    "google-research-datasets/Disfl-QA": ("CC BY 4.0", r"(train|dev|test)\.json"),
    "uberspot/OpenTriviaQA": ("CC BY-SA 4.0", r"categories/.*"),
    "brmson/dataset-factoid-webquestions": ("CC BY 4.0", r"main/.*\.json"),
    "clinc/oos-eval": ("CC BY 3.0", r"data/data_full\.json"),
    "PolyAI-LDN/task-specific-datasets": ("CC BY 4.0", r"banking_data/.*\.csv"),
}
_ASKS = re.compile(
    r"(who|whom|whose|what|when|where|which|why|how|is|are|was|were|do|does|did|can|could|will|would|should"
    r"|has|have|had|may|am)(s|'s|'re|'d|'ll)? ",
    re.IGNORECASE,
)
_SPACE_BEFORE = re.compile(r" +(?=[?.,!;:])")


def question_sets(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Each set that is there, its license and its questions."""
    for name, (terms, wanted) in QUESTION_SETS.items():
        clone = folder / name.replace("/", "+") / "repo"
        if not clone.exists():
            print(f"left out: {name} is not in {folder}", flush=True)
            continue
        files = _git(clone, "ls-tree", "-r", "--name-only", "HEAD").split("\n")
        yield (
            name,
            terms,
            [
                tidy(text)
                for path in files
                if re.fullmatch(wanted, path)
                for text in _texts(path, _git(clone, "show", f"HEAD:{path}"))
            ],
        )


def tidy(text: str) -> str:
    """On one line, without a space before punctuation, and with its question mark."""
    text = _SPACE_BEFORE.sub("", " ".join(text.split()))
    return text + "?" if _ASKS.match(text) and text[-1].isalnum() else text


def _texts(path: str, content: str) -> Iterator[str]:
    if path.endswith(".tsv"):
        yield from (line.split("\t")[0] for line in content.splitlines())
    elif path.endswith(".csv"):
        yield from (row["text"] for row in csv.DictReader(content.splitlines()))
    elif path.endswith(".json"):
        yield from _strings(json.loads(content))
    else:
        yield from re.findall(r"^#Q (.+)$", content, re.MULTILINE)


def _strings(content: Any) -> Iterator[str]:
    """The question of each entry, whatever its shape in the three sets of JSON."""
    if isinstance(content, list) and len(content) == 2 and isinstance(content[0], str):
        yield content[0]  # oos-eval: a query and its intent
    elif isinstance(content, dict) and (text := content.get("qText") or content.get("original")):
        yield text  # WebQuestions; Disfl-QA
    elif isinstance(content, list | dict):
        for part in content.values() if isinstance(content, dict) else content:
            yield from _strings(part)


def _git(clone: Path, *command: str) -> str:
    done = subprocess.run(["git", "-C", str(clone), *command], capture_output=True, check=True)
    return done.stdout.decode("utf-8", "replace")
