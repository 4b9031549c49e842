"""The sample corpus in examples/."""

import json
import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_corpus_is_what_the_script_writes() -> None:
    script = runpy.run_path(str(EXAMPLES / "make_corpus.py"))
    documents = [json.loads(line) for line in (EXAMPLES / "corpus.jsonl").read_text("utf-8").splitlines()]
    assert list(script["corpus"]()) == documents
    assert len(documents) > 2000
    assert len({document["id"] for document in documents}) == len(documents)
    assert len({document["text"] for document in documents}) == len(documents)
    assert len({document["lang"] for document in documents}) > 25
    assert (EXAMPLES / "corpus.jsonl").stat().st_size < 1_000_000
