"""Passages against whole texts, on development collections.

    python benchmarks/passages.py --data DIR --json OUT.json

`embedkit.Index` of each collection (Cranfield, MED and CACM; `retrieval` and `retrieval_dev` of the data folder), built
of whole texts, and of passages of several lengths, whose hits are grouped by document. nDCG@10 of vectors alone and of
the default, hybrid search, and the median milliseconds of a query.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import common
import numpy as np
from hybrid import COLLECTIONS, collections_of, measured

LENGTHS = (None, "96:24", "120:30", "160:30", "200:30")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = common.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with retrieval/ and retrieval_dev/")
    common.add_model(parser)
    parser.add_argument("--threads", type=common.positive, default=1)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args(argv)
    machine, found = common.machine_info(), common.versions(("embedkit", "numpy", "faiss-cpu"))
    from embedkit import Encoder

    encoder = Encoder(options.model, device="cpu", threads=options.threads)
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for name, judged in collections_of(options.data).items():
            for passages in LENGTHS:
                one = measured(judged, encoder, Path(work) / f"{name}-{passages}".replace(":", "-"), passages)
                rows.append({"collection": name, "passages": passages or "whole", **one})
    cells = []
    for kind in dict.fromkeys(row["passages"] for row in rows):
        mine = {row["collection"]: row for row in rows if row["passages"] == kind}
        for name in ("vectors", "hybrid"):
            values = [mine[one][name] for one in COLLECTIONS]
            times = np.mean([mine[one][f"{name}_ms"] for one in COLLECTIONS])
            cells.append(
                [kind, name, *(f"{value:.3f}" for value in values), f"{np.mean(values):.3f}", f"{times:.1f}"]
            )
    print(common.table(["passages", "search", *COLLECTIONS, "mean", "ms"], cells))
    if options.json:
        common.write_json(
            options.json,
            common.report(
                "passages",
                machine=machine,
                versions=found,
                **common.built_in(options.model),
                passages=rows,
            ),
        )


if __name__ == "__main__":
    main()
