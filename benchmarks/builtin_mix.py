"""A balanced part of the texts of `builtin_texts.py`: ``python benchmarks/builtin_mix.py texts.jsonl -o mix.jsonl``.

Three quarters of those texts' words are documentation of software, which users' texts are not. In the mix each kind has
a quota; sentences and questions are all in. Of 200,000 texts that were not balanced a student learned to find less in
abstracts than it did before.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from builtin_texts import is_question

#: Texts of a kind, at most: None for all.
QUOTAS = {
    "sentences": None,
    "questions": None,
    "speeches": 24_000,
    "wordnet": 60_000,
    "dictionary": 30_000,
    "computing": 14_300,
    "textbooks": 60_000,
    "documentation": 36_000,
}
_KINDS = {
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
    if is_question(text):
        return "questions"
    if source.startswith("nli_"):
        return "sentences"
    if source.startswith("openstax/"):
        return "textbooks"
    return _KINDS.get(source, "documentation")


def main() -> None:
    """Write the first texts of each kind, in the order of the file, which is random."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    texts, words = Counter[str](), Counter[str]()
    with options.texts.open(encoding="utf-8") as lines, options.output.open("w", encoding="utf-8") as output:
        for line in lines:
            row = json.loads(line)
            kind = kind_of(row["source"], row["text"])
            quota = None if kind is None else QUOTAS[kind]
            if kind is None or (quota is not None and texts[kind] >= quota):
                continue
            texts[kind] += 1
            words[kind] += len(row["text"].split())
            output.write(line)
    for kind in QUOTAS:
        print(f"{kind}: {texts[kind]:,} texts, {words[kind]:,} words")
    print(f"{options.output}: {texts.total():,} texts, {words.total():,} words")


if __name__ == "__main__":
    main()
