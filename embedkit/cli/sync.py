"""``embedkit-index sync`` and ``reembed``: an index that follows its folder, and its model."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from ..documents.errors import InputError, OnError
from ..documents.folders import Files, Patterns
from ..index import Index
from ..index.build.resume import resumable_rows
from ..index.build.settings import Mode
from ..index.storage.manifest import ReadingEntry
from ..index.sync import FolderSettings, sync
from .common import (
    EXIT_OK,
    add_encoder,
    add_index_model,
    add_max_memory,
    add_threads,
    given,
    in_time,
    index_folder,
    load_encoder,
    load_index_encoder,
    plural,
    prompts_of,
    show,
)
from .outcome import Skipped, check_txt, explained
from .terminal import ProgressBar, printable

__all__ = ["add_commands"]

_SYNC = """Make an index match the folder it was built from: new and changed files are read, texts that are new or
changed are encoded, and what is gone is deleted; the first sync also deletes documents that were added
from elsewhere since the index was built; later syncs keep them. Files whose size and time are unchanged are skipped,
except by the first sync and the first one after any other change to the index, which read every file. If it is
interrupted, the same command goes on."""
_REEMBED = """Encode all documents of an index again with another model. The old vectors answer until all is
encoded; run the same command again to resume."""


def add_commands(commands: Any) -> None:
    """Add the commands to the parser."""
    follow = commands.add_parser("sync", help="make an index match its folder", description=_SYNC)
    follow.set_defaults(run=_sync)
    follow.add_argument(
        "folder", type=given, metavar="FOLDER", help="the folder that the index was built from"
    )
    follow.add_argument("index", metavar="INDEX", type=index_folder, help="index folder")
    same = "as for build (default: as the index was built)"
    follow.add_argument("--include", action="append", type=given, metavar="PATTERN", help=same)
    follow.add_argument(
        "--exclude", action="append", metavar="PATTERN", help=f"{same}; '' leaves nothing out"
    )
    follow.add_argument("--txt", choices=("lines", "whole"), help=same)
    follow.add_argument("--text-field", type=given, metavar="F", help=same)
    follow.add_argument("--id-field", type=given, metavar="F", help=same)
    follow.add_argument("--on-error", choices=("stop", "skip"), default="stop", help="as for build")
    follow.add_argument(
        "--checksum",
        action="store_true",
        help="compare the content of all files, also of those whose size and time have not changed",
    )
    follow.add_argument(
        "--moved", action="store_true", help="the folder was moved or renamed since the index was built of it"
    )
    add_index_model(follow)
    again = commands.add_parser(
        "reembed", help="encode all documents again with another model", description=_REEMBED
    )
    again.set_defaults(run=_reembed)
    again.add_argument("index", metavar="INDEX", type=index_folder, help="index folder")
    add_encoder(again, "; the same model keeps that of the index")
    again.add_argument("--max-length", type=int, metavar="TOKENS", help=same)
    again.add_argument("--on-overflow", choices=("truncate", "error", "window"), help=same)
    again.add_argument("--device", default="cpu", help="device to encode on: cpu (default), cuda, cuda:1, …")
    for command in (follow, again):
        command.add_argument(
            "--restart", action="store_true", help="discard what an interrupted command has encoded"
        )
        add_max_memory(command)
        add_threads(command)


def _left(path: str, mode: Mode) -> str:
    rows = resumable_rows(Path(path), mode)
    if not rows:
        return "nothing was changed"
    return f"{plural(rows, 'document')} are encoded; run the same command again to resume"


def _settings(arguments: argparse.Namespace, built: ReadingEntry, on_error: OnError) -> FolderSettings:
    """As the options say, otherwise as the index was built."""

    def option(name: str) -> Any:
        given = getattr(arguments, name)
        return getattr(built, name) if given is None else given

    txt = option("txt")
    return FolderSettings(
        Patterns(tuple(option("include")), tuple(option("exclude"))),
        None if txt is None else txt == "whole",
        option("text_field"),
        option("id_field"),
        built.vector_field,
        built.format,
        on_error,
    )


def _sync(arguments: argparse.Namespace) -> int:
    begin = time.perf_counter()
    skipped = Skipped(arguments.on_error)
    with (
        explained(
            arguments.index,
            lambda: _left(arguments.index, "sync"),
            f"{arguments.index} is changed; run the same command again for what is missing",
        ),
        Index.open(arguments.index, arguments.model, threads=arguments.threads) as index,
        ProgressBar(None) as bar,
    ):
        built = index.generation.manifest.reading or ReadingEntry()
        if built.alone is not None:
            raise InputError(
                str(arguments.index),
                f"was built with {built.alone}, which sync cannot follow: build it again with --overwrite",
            )
        check_txt(arguments.txt, built.format)
        load_index_encoder(index)
        done = sync(
            index,
            arguments.folder,
            _settings(arguments, built, skipped.on_error),
            restart=arguments.restart,
            checksum=arguments.checksum,
            moved=arguments.moved,
            max_memory=arguments.max_memory,
            progress=bar.update,
        )
        what = "passage" if index.generation.manifest.passages else "document"
        files = Files(left_out=done.left_out).told()
        show(
            f"{printable(arguments.index)}: {plural(done.files, 'file')}, {done.read:,} read; "
            f"{plural(done.written, what)} written, {done.replaced:,} replaced, {done.deleted:,} deleted "
            f"{in_time(time.perf_counter() - begin, 0)}{skipped.left_out(done.blank)}"
            f"{', ' + printable(files) if files else ''}; {len(index):,} in all"
        )
    return EXIT_OK


def _reembed(arguments: argparse.Namespace) -> int:
    begin = time.perf_counter()
    with (
        explained(
            arguments.index,
            lambda: _left(arguments.index, "reembed"),
            f"{arguments.index} is encoded again, and complete",
            skips=False,
        ),
        Index.open(arguments.index, threads=arguments.threads) as index,
        ProgressBar(None) as bar,
    ):
        built, length, overflow = index.generation.manifest, arguments.max_length, arguments.on_overflow
        encoder = load_encoder(
            arguments.model,
            arguments.precision,
            arguments.threads,
            arguments.device,
            max_length=built.max_length if length is None else length,
            on_overflow=overflow or ("error" if built.refuses_long else built.on_overflow),
            prompts=prompts_of(arguments.query_prompt, arguments.document_prompt),
            before=built,
        )
        before = index.info()["model"]
        written = index.reembed(
            encoder, restart=arguments.restart, max_memory=arguments.max_memory, progress=bar.update
        )
        show(
            f"{printable(arguments.index)}: {plural(written.documents, 'text')} encoded with "
            f"{printable(str(index.info()['model']))} instead of {printable(str(before))} "
            f"{in_time(time.perf_counter() - begin, written.documents)}"
        )
    return EXIT_OK
