"""Balanced parts of the texts of `builtin_texts.py`: ``python benchmarks/builtin_mix.py texts.jsonl -o FOLDER``.

Three quarters of those texts' words are documentation of software, which users' texts are not: in a mix each kind has a
quota. The built-in model read two, one after the other, and no text twice. Of 200,000 texts that were not balanced a
student learned to find less in abstracts than it did before; of 200,000 with 30,000 questions among them, to tell
Quora's questions apart less well.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path

from builtin_questions import QUESTION_SETS
from builtin_texts import ABSTRACTS, is_question

#: For each mix: texts of a kind, at most, of more than `_SHORT` words and of fewer.
QUOTAS: tuple[dict[str, tuple[int, int]], ...] = (
    {
        "questions": (1_500, 88_500),
        "sentences": (1_300, 33_700),
        "textbooks": (12_000, 20_000),
        "wordnet": (400, 17_600),
        "dictionary": (2_100, 9_900),
        "documentation": (3_100, 6_900),
        "speeches": (2_600, 3_400),
        "computing": (2_700, 2_300),
    },
    {
        "abstracts": (40_000, 45_000),
        "textbooks": (25_000, 25_000),
        "documentation": (8_000, 10_000),
        "questions": (0, 25_000),
        "sentences": (0, 20_000),
        "wordnet": (0, 8_000),
        "dictionary": (5_000, 5_000),
        "speeches": (4_000, 2_000),
        "computing": (4_000, 1_000),
    },
)
_SHORT = 32
_KINDS = {
    ABSTRACTS: "abstracts",
    "state_union": "speeches",
    "inaugural": "speeches",
    "wordnet": "wordnet",
    "dict-gcide": "dictionary",
    "dict-foldoc": "computing",
    "dict-jargon": "computing",
    "dict-vera": None,
}


def kind_of(source: str, text: str) -> str | None:
    """The kind of a text; None for one that is left out (of acronyms, without a sentence)."""
    if source in QUESTION_SETS or (source != ABSTRACTS and is_question(text)):
        return "questions"
    if source.startswith("nli_"):
        return "sentences"
    if source.startswith("openstax/"):
        return "textbooks"
    return _KINDS.get(source, "documentation")


def main() -> None:
    """Put each text into the first mix that has room for its kind and length, and shuffle the mixes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="folder of mix-1.jsonl and mix-2.jsonl"
    )
    options = parser.parse_args()
    mixes: list[list[str]] = [[] for _ in QUOTAS]
    texts: list[Counter[tuple[str, bool]]] = [Counter() for _ in QUOTAS]
    with options.texts.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            kind = kind_of(row["source"], row["text"])
            if kind is None:
                continue
            short = len(row["text"].split()) <= _SHORT
            for mix, counts, quotas in zip(mixes, texts, QUOTAS, strict=True):
                if counts[kind, short] < quotas.get(kind, (0, 0))[short]:
                    counts[kind, short] += 1
                    mix.append(line)
                    break
    options.output.mkdir(parents=True, exist_ok=True)
    for number, (mix, counts, quotas) in enumerate(zip(mixes, texts, QUOTAS, strict=True), 1):
        random.Random(number).shuffle(mix)
        file = options.output / f"mix-{number}.jsonl"
        file.write_text("".join(mix), encoding="utf-8")
        print(f"{file}: {len(mix):,} texts")
        for kind in quotas:
            print(f"  {kind}: {counts[kind, False]:,} over {_SHORT} words, {counts[kind, True]:,} others")


if __name__ == "__main__":
    main()
