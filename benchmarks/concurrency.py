"""Sentences per second of many threads or processes at once, against one encoder with all threads.

    python benchmarks/concurrency.py TEXTS.txt --model FOLDER --callers 8 --json OUT.json

The same texts are encoded three ways, in alternating rounds: in one call; by ``--callers`` threads that share an
encoder, each with its part; and by as many processes, each with an encoder of its own with the same number of
threads. A round of processes ends when the last of them has encoded its part. Models are opened before.
"""

import argparse
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import common

from embedkit import Encoder


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__)
    common.add_text_arguments(parser, default_limit=4096)
    common.add_model(parser)
    parser.add_argument("--precision", default="auto")
    common.add_threads(parser)
    parser.add_argument(
        "--callers", type=common.positive, default=8, help="threads or processes at once (default: 8)"
    )
    parser.add_argument("--rounds", type=common.positive, default=5, help="alternating rounds (default: 5)")
    parser.add_argument("--json", type=Path, help="write the results here")
    return parser.parse_args()


def serve(pipe: Connection, options: argparse.Namespace, texts: list[str]) -> None:
    """A process: encodes its texts each time it is told to, until the pipe is closed."""
    encoder = Encoder(options.model, precision=options.precision, threads=options.threads)
    encoder.encode(texts[:64])
    pipe.send(True)
    try:
        while pipe.recv():
            encoder.encode(texts)
            pipe.send(True)
    except EOFError:
        pass


def main() -> None:
    """Measure, print and write."""
    options = arguments()
    machine, found = common.machine_info(), common.versions(["embedkit", "numpy"])
    texts = common.texts_of(options)
    parts = [texts[i :: options.callers] for i in range(options.callers)]
    encoder = Encoder(options.model, precision=options.precision, threads=options.threads)
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for part in parts:
        mine, other = context.Pipe()
        process = context.Process(target=serve, args=(other, options, part), daemon=True)
        process.start()
        other.close()
        pipes.append(mine)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()

    def in_processes() -> None:
        for pipe in pipes:
            pipe.send(True)
        for pipe in pipes:
            pipe.recv()

    encoder.encode(texts[:64])
    with ThreadPoolExecutor(options.callers) as pool:
        taken = common.alternate(
            {
                "one call": common.timed(lambda: encoder.encode(texts)),
                f"{options.callers} threads": common.timed(lambda: list(pool.map(encoder.encode, parts))),
                f"{options.callers} processes": common.timed(in_processes),
            },
            options.rounds,
        )
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join()
    rates = {name: common.Spread.of([len(texts) / s for s in seconds]) for name, seconds in taken.items()}
    print(common.show_machine(machine, found))
    one = rates["one call"].median
    rows = [(name, f"{rate.median:,.0f}", f"{rate.median / one:.2f}") for name, rate in rates.items()]
    print(common.table(["", "sentences/s", "of one call"], rows))
    if options.json:
        described = encoder.describe()
        result = common.report(
            "concurrency",
            machine=machine,
            versions=found,
            model=described["model"],
            **common.built_in(options.model),
            precision=described["precision"],
            isa=described["isa"],
            threads=options.threads,
            texts=len(texts),
            sentences_per_s=rates,
        )
        common.write_json(options.json, result)


if __name__ == "__main__":
    main()
