"""What the commands share: exit codes, messages, options and numbers."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO

from ..arguments import check_threads
from ..files import expanded
from ..inputs import TextsWarning, check_unicode
from .interrupts import EXIT_INTERRUPTED, exit_code, sigterm_like_ctrl_c
from .terminal import printable

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from .. import CrossEncoder, Encoder, Index
    from ..index.storage.manifest import Manifest

__all__ = [
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_OK",
    "EXIT_USAGE",
    "FAILURES",
    "TASKS",
    "CommandError",
    "Parser",
    "add_encoder",
    "add_index_model",
    "add_language",
    "add_max_memory",
    "add_prompts",
    "add_threads",
    "byte_size",
    "complain",
    "duration",
    "given",
    "given_path",
    "in_time",
    "index_folder",
    "integer",
    "load_encoder",
    "load_index_encoder",
    "note_old_words",
    "open_closed_streams",
    "open_reranker",
    "plural",
    "print_json",
    "prompts_of",
    "prompts_of_models",
    "run",
    "show",
    "show_result",
    "size",
    "told",
    "warn_of_prompts",
]

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
FAILURES: tuple[type[Exception], ...] = (ImportError, OSError, RuntimeError, TypeError)

TASKS: tuple[Literal["query", "document"], ...] = ("query", "document")
"""What a prompt is for."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?|[kmg]i)b?", re.IGNORECASE)


class Parser(argparse.ArgumentParser):
    """Tells what is wrong with the arguments in a line, and where help is, without a screen of usage."""

    def error(self, message: str) -> NoReturn:
        """Print ``message`` and exit."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\ntry '{self.prog} --help'\n")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Print help, the version or an error, which `argparse` leaves to this method."""
        super()._print_message(_encodable(message, file or sys.stderr), file)


class CommandError(Exception):
    """Ends the command with a message and an exit code."""

    def __init__(self, code: int, message: str) -> None:
        """``code``: exit code of the process; ``message``: for stderr."""
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message


class ReaderGoneError(BrokenPipeError):
    """Nobody reads stdout any more: head, or less, has seen enough."""


def open_closed_streams() -> None:
    """Open the null device as stdout and stderr where the caller has closed them, as by ``>&-``."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def run(
    program: str,
    parse: Callable[[], argparse.Namespace],
    *,
    usage: tuple[type[Exception], ...],
    failed: tuple[type[Exception], ...] = FAILURES,
    interrupted: str = "interrupted",
    remedies: Mapping[tuple[str, str], str] | None = None,
) -> int:
    """Run a command of ``program``, turn its errors into messages on stderr, and return the exit code.

    Args:
        program: starts each message.
        parse: parses the arguments; the result's ``run`` is the command.
        usage: errors of wrong usage or input.
        failed: errors of a failure; of an error's classes the nearest counts. All other errors are bugs, and propagate.
        interrupted: the message after Ctrl-C or SIGTERM.
        remedies: as for `told`, of commands whose arguments have no ``remedies`` of their own.
    """
    open_closed_streams()
    arguments = argparse.Namespace()
    try:
        with sigterm_like_ctrl_c(), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: complain(
                f"warning: {told(message, getattr(arguments, 'remedies', remedies or {}))}", program
            )
            arguments = parse()
            code: int = arguments.run(arguments)
            with _stdout() as stdout:
                stdout.flush()
        return code
    except SystemExit as stop:  # argparse has printed help or an error
        return int(stop.code or 0)
    except ReaderGoneError:
        return EXIT_OK
    except KeyboardInterrupt as stop:
        complain(interrupted, program)
        return exit_code(stop)
    except CommandError as error:
        complain(str(error), program)
        return error.code
    except MemoryError as error:
        complain(f"out of memory: {error}".removesuffix(": "), program)
        return EXIT_FAILED
    except (*usage, *failed) as error:
        complain(str(error), program)
        kind = next(kind for kind in type(error).__mro__ if kind in usage or kind in failed)
        return EXIT_USAGE if kind in usage else EXIT_FAILED
    finally:
        # what an error left unwritten, or else the interpreter tells of it in its own words
        with contextlib.suppress(OSError, ValueError), _stdout() as stdout:
            stdout.flush()


def told(warning: Warning | str, remedies: Mapping[tuple[str, str], str]) -> str:
    """``warning`` as a command shows it.

    Args:
        warning: any; what a `TextsWarning` says of Python is left out.
        remedies: what helps with the options of the command, by the inputs and the cause of a `TextsWarning`;
            ``{multilingual}`` stands for the name of a model.
    """
    if not isinstance(warning, TextsWarning):
        return str(warning)
    remedy = remedies.get((warning.what, warning.cause))
    if remedy is None:
        return warning.told
    from ..model_folder.catalog import multilingual

    return f"{warning.told}; {remedy.format(multilingual=multilingual())}"


def integer(check: Callable[[Any], int]) -> Callable[[str], int]:
    """A type for argparse: an integer that ``check`` accepts."""

    def parse(text: str) -> int:
        value: int | str = text
        with contextlib.suppress(ValueError):  # then the check reports what is wrong with the text
            value = int(text)
        try:
            return check(value)
        except (TypeError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def given(text: str) -> str:
    """A type for argparse: any text but an empty one, as of a variable of the shell that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give a value")
    return text


def given_path(text: str) -> Path:
    """A type for argparse: a path, in which ``~`` stands for a home folder."""
    try:
        return expanded(given(text))
    except FileNotFoundError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def index_folder(text: str) -> str:
    """A type for argparse: the folder of an index, in which ``~`` stands for a home folder."""
    return os.path.expanduser(given(text))


def byte_size(text: str) -> int:
    """A type for argparse: ``2GB``, ``512MiB``, or bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: invalid size; expected e.g. 2GB, 512MB or 1.5GiB")
    value = float(match[1]) * _UNITS[match[2].lower()]
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a size is at least 1 byte")
    if value >= 2**63:  # also infinity, of hundreds of digits
        raise argparse.ArgumentTypeError(f"{text!r:.40}: a size is less than 2**63 bytes")
    return int(value)


def add_index_model(command: argparse.ArgumentParser) -> None:
    """Add ``--model`` of the commands that encode for an index."""
    command.add_argument("--model", metavar="MODEL", help="path of the index's model, if it was moved")


def add_encoder(command: argparse.ArgumentParser, more: str = "") -> None:
    """Add ``--model``, the prompts (their help ends with ``more``) and ``--precision`` of the commands that encode."""
    command.add_argument("--model", metavar="M", help="model folder or Hub id (default: the built-in model)")
    add_prompts(command, more)
    command.add_argument(
        "--precision",
        default="auto",
        help="fp32, bf16 or int8, on CUDA also fp16 or fp8; auto (default): the model's own, on CUDA a 16-bit type",
    )


def add_prompts(command: argparse._ActionsContainer, more: str = "", **options: Any) -> None:
    """Add ``--query-prompt`` and ``--document-prompt`` of the commands that give an index its model.

    Args:
        command: to add them to.
        more: ends the help.
        options: further ones of `argparse`.
    """
    for task in TASKS:
        command.add_argument(
            f"--{task}-prompt",
            metavar="TEXT",
            help=f"what the model reads before each {task}, e.g. '{task}: ' (default: as its folder says){more}",
            **options,
        )


def prompts_of_models(arguments: argparse.Namespace, models: int) -> list[dict[str, str]]:
    """What was given with the options of `add_prompts` for each of so many models: once for all, or once for each.

    Raises:
        CommandError: an option is given another number of times.
    """
    both: list[list[str | None]] = []
    for task in TASKS:
        texts: list[str | None] = getattr(arguments, f"{task}_prompt") or [None]
        if len(texts) not in (1, models):
            raise CommandError(EXIT_USAGE, f"give --{task}-prompt once, or once for each --model")
        both.append(texts * models if len(texts) == 1 else texts)
    return [prompts_of(query, document) for query, document in zip(*both, strict=True)]


def prompts_of(query: str | None, document: str | None) -> dict[str, str]:
    """What was given with the options of `add_prompts`, for `Encoder`."""
    both = {"query": query, "document": document}
    given = {task: text for task, text in both.items() if text is not None}
    for task, text in given.items():
        check_unicode(f"--{task}-prompt", text)
    return given


def add_threads(command: argparse.ArgumentParser) -> None:
    """Add ``--threads``."""
    command.add_argument(
        "--threads",
        type=integer(check_threads),
        metavar="N",
        help="number of threads (default: all processors)",
    )


def add_max_memory(command: argparse.ArgumentParser) -> None:
    """Add ``--max-memory``."""
    from ..index.build.memory import DEFAULT_MAX_MEMORY  # embedkit-model does not load the index package

    command.add_argument(
        "--max-memory",
        type=byte_size,
        default=DEFAULT_MAX_MEMORY,
        metavar="SIZE",
        help="memory limit of the process, e.g. 512MB (default: 2GiB)",
    )


def add_language(command: argparse.ArgumentParser, default: str | None, help: str) -> None:
    """Add ``--language``."""
    from ..index.words.languages import check_language

    def parse(text: str) -> str:
        try:
            return check_language(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    command.add_argument("--language", type=parse, default=default, metavar="LANGUAGE", help=help)


def load_encoder(
    model: str | None,
    precision: str,
    threads: int | None,
    device: str = "cpu",
    *,
    prompts: Mapping[str, str],
    before: Manifest | None = None,
    **options: Any,
) -> Encoder:
    """The encoder named by the options.

    Args:
        model, precision, threads, device: of the encoder.
        prompts: those given (`prompts_of`).
        before: of an index that is encoded again; the same model keeps its prompts and dimensions.
        options: further ones of `Encoder`.
    """
    from .. import Encoder
    from ..encoder import prompt_of

    options["prompts"] = prompts
    options = {name: value for name, value in options.items() if value not in (None, "truncate", {})}
    try:
        encoder = Encoder(model, device=device, precision=precision, threads=threads, **options)
    except (ValueError, FileNotFoundError) as error:
        raise CommandError(EXIT_USAGE, f"the model cannot be loaded: {error}") from error
    if before is not None and before.encoder.fingerprint == encoder.fingerprint:
        from ..index.encoder import like_own  # embedkit-model does not load the index package

        like_own(encoder, before)
        encoder.prompts.update(prompts)
    read: dict[str, str | None] = {task: prompt_of(encoder, task) for task in TASKS}
    warn_of_prompts(encoder.describe()["model"], read, prompts)
    return encoder


def warn_of_prompts(name: str, read: Mapping[str, str | None], given: Mapping[str, str]) -> None:
    """Tell of prompts that a known model is meant for, if it has none of its folder and none is given.

    Args:
        name: of the model.
        read: its prompts.
        given: those that the options name, if only to have none.
    """
    from ..model_folder.catalog import list_models

    known = (one.prompts for one in list_models() if Path(one.name).name == Path(name).name)
    missing = {task: text for task, text in next(known, {}).items() if not read[task] and task not in given}
    if missing:
        named = " ".join(f"--{task}-prompt {shlex.quote(text)}" for task, text in missing.items())
        warnings.warn(
            f"{name} is meant for prompts that its folder does not have: give {named} ('' for none)",
            stacklevel=2,
        )


def load_index_encoder(index: Index) -> None:
    """Load the model named in an index, before the work starts rather than in the middle of it."""
    from ..index import ModelMismatchError

    try:
        index.encoder  # noqa: B018 (loads the model)
    except (ValueError, FileNotFoundError) as error:
        if isinstance(error, ModelMismatchError):
            raise
        hint = "; if it was moved, give its path with --model" if isinstance(error, FileNotFoundError) else ""
        raise CommandError(EXIT_FAILED, f"the index's model cannot be loaded: {error}{hint}") from error


def note_old_words(index: Index, path: str | Path) -> None:
    """Say on stderr if the index at ``path`` is searched by vectors alone, as an earlier version made its words."""
    from ..index.storage.generation import OLD_WORDS

    if index.generation.has_old_words:
        complain(f"note: {OLD_WORDS.format(path)}")


def open_reranker(model: str | None, threads: int | None) -> CrossEncoder | None:
    """The cross-encoder named by ``--rerank``, if any."""
    if model is None:
        return None
    from .. import CrossEncoder
    from ..index import rerank

    try:
        opened = CrossEncoder(model, threads=threads)
        rerank(opened, [], [], 1)  # raises for a model of several classes before anything is searched
    except (ValueError, FileNotFoundError) as error:
        raise CommandError(EXIT_USAGE, f"the reranker cannot be loaded: {error}") from error
    return opened


def show(line: str) -> None:
    """Print ``line`` about the work, which goes on if nobody reads it; ? stands for what stdout cannot encode."""
    with contextlib.suppress(ReaderGoneError):
        show_result(line)
        with _stdout() as stdout:
            stdout.flush()


def show_result(line: str) -> None:
    """`show` a line that the work is done for: if nobody reads it, a `ReaderGoneError` ends the command."""
    with _stdout() as stdout:
        print(_encodable(line, stdout), file=stdout)


@contextlib.contextmanager
def _stdout() -> Iterator[TextIO]:
    """To write to stdout, with errors that name it; after one, it is the null device."""
    try:
        yield sys.stdout
    except OSError as error:
        # the interpreter flushes stdout once more when it exits
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise ReaderGoneError from None
        raise OSError(error.errno, error.strerror, "stdout") from None


def _encodable(text: str, stream: object) -> str:
    """``text`` with ? for characters that ``stream`` cannot encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def complain(message: str, program: str = "embedkit-index") -> None:
    """Print ``message`` of ``program`` to stderr."""
    # Ids, paths and JSON excerpts in messages come from files: none of it may steer the terminal.
    text = printable(message)
    with contextlib.suppress(OSError):
        print(f"{program}: {text}", file=sys.stderr)


def print_json(value: dict[str, Any], indent: int | None = None) -> None:
    """Print ``value`` as JSON."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(value, ensure_ascii=not utf8, allow_nan=False, indent=indent)
    # JSON leaves DEL and the C1 controls as they are, and some terminals obey them; lone surrogates, of file names
    # that are not UTF-8, would be written as bytes that are not, either
    with _stdout() as stdout:
        print(re.sub("[\x7f-\x9f\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text), file=stdout)


def size(value: float) -> str:
    """``value`` bytes in a readable unit."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def duration(seconds: float) -> str:
    """``seconds`` in a readable unit."""
    if seconds < 1:
        return "less than a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plural(count: int, what: str) -> str:
    """``count`` and ``what``, which gets an s unless it is one (``query``: queries)."""
    several = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{count:,} {what if count == 1 else several}"


def in_time(seconds: float, count: int) -> str:
    """``in 1.2 s (345/s)``: the time that ``count`` of something took, with a rate where there is one to speak of."""
    taken = (
        f"{seconds:.1f} s"
        if seconds >= 1
        else f"{max(seconds, 0.001):.2g} s"
        if seconds >= 0.1
        else f"{seconds * 1e3:.0f} ms"
    )
    return (
        f"in {taken} ({count / max(seconds, 1e-9):,.0f}/s)"
        if count >= 10 and seconds >= 0.1
        else f"in {taken}"
    )
