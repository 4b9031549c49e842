"""What teachers know together: what a student of theirs can learn at most, on the development sets of `card.py --dev`.

    python benchmarks/teachers.py NAME --teacher FOLDER --teacher FOLDER --teacher-weights 1,.75 --dim 256 \\
        --data DIR --work CACHE --json OUT.json

The arguments are those of ``embedkit-train distill``; a folder may occur twice, with a prompt and without. NAME is the
row in OUT.json, whose other rows are kept. Vectors are cached in --work.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
from card import Keywords, measure_dev
from hybrid import collections_of
from retrieval_data import Vectors, truncated

_FITTED_ON = 20_000


class TeacherView:
    """The teachers' components as unit vectors; queries are texts like others, as for the student."""

    def __init__(self, teachers: Any, fitted: Sequence[str], dimension: int, *, center: bool) -> None:
        self._teachers = teachers
        teachers.fit(fitted, dimension, center=center)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, dimension)."""
        vectors = np.asarray(self._teachers.targets(texts), np.float32)
        return truncated(vectors, vectors.shape[1])

    queries = encode


def main() -> None:
    """Measure one row, print and write it."""
    parser = common.parser(__doc__)
    parser.add_argument("name")
    parser.add_argument("--teacher", action="append", required=True)
    parser.add_argument("--prompt", action="append", help="once, or once for each teacher")
    parser.add_argument("--prompt-words", type=int)
    parser.add_argument("--teacher-weights", help="X,X")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--center", action="store_true")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    from embedkit.training.distillation.options import DistillOptions
    from embedkit.training.teacher import Teachers

    prompts = options.prompt or [""]
    weights = options.teacher_weights
    settings = DistillOptions(
        prompt=prompts[0] if len(prompts) == 1 else prompts,
        prompt_words=options.prompt_words,
        teacher_precision="int8",
        teacher_weights=[float(x) for x in weights.split(",")] if weights else None,
    )
    options.work.mkdir(parents=True, exist_ok=True)
    sentences = [row["text"] for row in common.records(options.data / "corpus_en" / "sentences_en.tsv.gz")]
    view: Any = TeacherView(
        Teachers(settings.teachers(options.teacher), options.work),
        sentences[:: len(sentences) // _FITTED_ON],
        options.dim,
        center=options.center,
    )
    collections = {name: (one, Keywords(one)) for name, one in collections_of(options.data).items()}
    rows: dict[str, Any] = {}
    if options.json is not None and options.json.is_file():
        rows = json.loads(options.json.read_text(encoding="utf-8"))["rows"]
    rows[options.name] = {
        "teachers": [Path(one).name for one in options.teacher],
        "prompts": prompts,
        "prompt_words": options.prompt_words,
        "weights": settings.teacher_weights,
        "dimension": options.dim,
        "centered": options.center,
        **measure_dev(view, collections, options.data),
    }
    print(f"{options.name}: {rows[options.name]}", flush=True)
    if options.json is not None:
        common.write_json(options.json, common.report("teachers", machine=common.machine_info(), rows=rows))


if __name__ == "__main__":
    main()
