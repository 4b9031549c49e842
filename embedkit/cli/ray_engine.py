"""``embedkit-index build --engine ray``: encode the texts on a cluster."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from functools import partial

from ..arguments import check_positive
from ..index import Index
from ..index.storage.manifest import ReadingEntry
from .common import (
    EXIT_OK,
    EXIT_USAGE,
    TASKS,
    CommandError,
    given,
    in_time,
    integer,
    plural,
    prompts_of,
    show,
    size,
    warn_of_prompts,
)
from .outcome import OTHER_INPUTS, Skipped, build_settings, explained, show_choice
from .terminal import ProgressBar, printable

__all__ = ["add_options", "build", "check_options"]

_OF_RAY = ("address", "shards", "encoders", "encoder_threads", "shard_rows")
_NOT_OF_RAY = {
    "format": "--format",
    "vector_field": "--vector-field",
    "vectors": "--vectors",
    "passages": "--passages",
    "dedup": "--dedup",
    "max_length": "--max-length",
    "root": "--root",
    "txt": "--txt",
    "include": "--include",
    "exclude": "--exclude",
    "on_overflow": "--on-overflow",
}


def add_options(command: argparse.ArgumentParser) -> None:
    """Add ``--engine`` and the options of Ray."""
    command.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="ray encodes .jsonl and .parquet files (or URLs of them) on a Ray cluster; embedkit[ray]",
    )
    group = command.add_argument_group("with --engine ray")
    group.add_argument(
        "--address",
        metavar="A",
        help="address of the cluster, e.g. auto (default: RAY_ADDRESS, or this machine alone)",
    )
    group.add_argument(
        "--shards",
        type=given,
        metavar="URL",
        help="where to keep the vectors as parquet files: a folder that all machines share, or s3://… "
        "(default: INDEX.shards, until the index is complete)",
    )
    count = integer(partial(check_positive, "the number"))
    group.add_argument(
        "--encoders",
        type=count,
        metavar="N",
        help="number of encoders (default: as many as there is room for)",
    )
    group.add_argument(
        "--encoder-threads", type=count, metavar="N", help="threads per encoder (default: up to 4)"
    )
    group.add_argument(
        "--shard-rows", type=count, metavar="N", help="lines or rows per shard (default: 16384)"
    )


def check_options(arguments: argparse.Namespace) -> None:
    """Refuse options that do not apply to the engine."""
    if arguments.engine == "local":
        for name in _OF_RAY:
            if getattr(arguments, name) is not None:
                raise CommandError(EXIT_USAGE, f"--{name.replace('_', '-')} needs --engine ray")
        return
    for name, option in _NOT_OF_RAY.items():
        if getattr(arguments, name) not in (None, [], "truncate"):  # the last: as Ray's encoders do
            raise CommandError(
                EXIT_USAGE,
                f"{option} cannot be combined with --engine ray, which encodes .jsonl and .parquet",
            )


def build(arguments: argparse.Namespace) -> int:
    """Build the index that the options describe."""
    from ..integrations.ray_index import SHARD_ROWS, Cluster, build_index

    path = arguments.output
    begin = time.perf_counter()
    skipped = Skipped(arguments.on_error)
    whole = len(arguments.inputs) == 1 and os.path.isdir(arguments.inputs[0])
    kept = arguments.shards or f"{path}.shards"
    prompts = prompts_of(arguments.query_prompt, arguments.document_prompt)
    left = f"finished shards are kept in {kept}, and the same command resumes from there"
    with (
        explained(path, lambda: left, f"the index {path} is complete"),
        ProgressBar(None) as bar,
    ):
        built = build_index(
            path,
            arguments.inputs,
            arguments.model,
            {
                "precision": arguments.precision,
                "device": arguments.device,
                "prompts": prompts,
            },
            cluster=Cluster(
                arguments.address,
                arguments.shards,
                arguments.encoders,
                arguments.encoder_threads,
                arguments.shard_rows or SHARD_ROWS,
            ),
            settings=replace(
                build_settings(arguments, skipped.on_error),
                reading=ReadingEntry(
                    text_field=arguments.text_field,
                    id_field=arguments.id_field,
                    alone=None if whole else OTHER_INPUTS,
                ),
            ),
            text_field=arguments.text_field,
            id_field=arguments.id_field,
            progress=bar.update,
        )
    seconds = time.perf_counter() - begin
    with Index.open(path) as index:
        info = index.info()
    warn_of_prompts(info["model"], {task: info[f"{task}_prompt"] for task in TASKS}, prompts)
    show_choice(arguments, info)
    show(
        f"{printable(path)}: {plural(built.documents, 'document')} {in_time(seconds, built.documents)}, "
        f"{built.encoded:,} of them "
        f"encoded now{skipped.left_out(built.blank)}; "
        f"{info['factory']}, {info['dimension']} dimensions, {size(info['bytes'])}"
    )
    return EXIT_OK
