"""Sentences/s of `Encoder` on a GPU by the tokens of a batch.

    python benchmarks/gpu_budgets.py TEXTS.txt --model FOLDER --json OUT.json

More tokens a batch mean fewer launches and copies, and more memory. Each budget has an encoder of its own; their runs
alternate, after a first one that captures the graphs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common

BUDGETS = (8192, 16384, 32768)


def measure(
    opened: Callable[[], Any], texts: list[str], budgets: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """A row for each budget: sentences/s, and the memory of its batches.

    ``opened``: opens an encoder, whose stage takes `packed_stage.BUDGET`.
    """
    from embedkit.backends import packed_stage

    encoders = {}
    for budget in budgets:
        packed_stage.BUDGET = budget
        encoders[budget] = opened()
        encoders[budget].encode(texts)  # captures the graphs
    runs = {
        budget: common.timed(lambda one=encoder: one.encode(texts)) for budget, encoder in encoders.items()
    }
    return [
        {
            "budget": encoders[budget].describe()["token_budget"],
            "sentences_per_s": common.Spread.of([len(texts) / one for one in seconds]),
            "batch_memory_mb": round(encoders[budget].describe()["batch_memory_bytes"] / 1e6),
        }
        for budget, seconds in common.alternate(runs, rounds).items()
    ]


def main() -> None:
    """Measure, print, write."""
    parser = common.parser(__doc__)
    common.add_text_arguments(parser, default_limit=65_536)
    common.add_model(parser, fp32=True)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rounds", type=common.positive, default=3)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    from embedkit import Encoder

    machine, found = common.machine_info(), common.versions(["embedkit", "torch", "triton"])
    print(common.show_machine(machine, found))
    rows = measure(
        lambda: Encoder(options.model, device="cuda", precision=options.precision),
        common.texts_of(options),
        BUDGETS,
        options.rounds,
    )
    cells = [[row["budget"], row["sentences_per_s"], row["batch_memory_mb"]] for row in rows]
    print(common.table(["tokens of a batch", "sentences/s", "MB"], cells))
    result = common.report("gpu-budgets", machine=machine, versions=found, rows=rows)
    common.write_json(options.json, result)


if __name__ == "__main__":
    main()
