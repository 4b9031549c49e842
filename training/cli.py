"""``embedkit-train RECIPE key=value ...``: trains or resumes a recipe.

``mine``, ``distill`` and ``distill-static`` are its subcommands.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..cli.common import EXIT_FAILED, CommandError, Parser, given, given_path, run, show, show_result

__all__ = ["main"]

_EPILOG = """examples:
  embedkit-train --list
  embedkit-train sbert --output runs/sbert training.seed=2 training.batch_size=32
  embedkit-train my-recipe.yaml --output runs/mine --show
  accelerate launch --num_processes 4 -m embedkit.training.cli hpd-128
  embedkit-train mine pairs.tsv triplets.tsv --margin 0.05
  embedkit-train distill --teacher BAAI/bge-small-en-v1.5 --texts notes/ -o small
  embedkit-train distill-static BAAI/bge-small-en-v1.5 -o static

The same command resumes a run that was stopped.
"""


_PROGRAM = "embedkit-train"
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h

_COMMANDS = {
    "mine": (
        "mine_command",
        "Add hard negatives to a file of pairs: near texts that are none of the anchor's positives.",
    ),
    "distill": (
        "distillation.command",
        "Teach one or several encoders to a small int8 student, from texts without labels.",
    ),
    "distill-static": (
        "distillation.static_command",
        "Turn an encoder into a static model (a table of token vectors).",
    ),
}
_WITHOUT_CHECKPOINTS = ("mine", "distill-static")  # which write all or nothing, at their end


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        _keep_freed_memory()
    command = given[0] if given and given[0] in _COMMANDS else None
    then = (
        "starts over: nothing is saved" if command in _WITHOUT_CHECKPOINTS else "goes on from what is saved"
    )
    return run(
        _PROGRAM,
        lambda: _parse(command, given),
        usage=(ValueError, FileNotFoundError, FileExistsError),
        failed=(OSError, FloatingPointError),
        interrupted=f"stopped; the same command {then}",
    )


@contextlib.contextmanager
def _remedies() -> Iterator[None]:
    """Add to an error of torch, and to a missing package, what helps."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError" and "DefaultCPUAllocator" not in str(error):
            raise
        remedy = "lower training.batch_size, or set training.mini_batch_size"
        raise CommandError(EXIT_FAILED, f"{error}; {remedy}") from None
    except ImportError as error:
        remedy = "" if "pip install" in str(error) else "; install the extra: pip install 'embedkit[train]'"
        raise CommandError(EXIT_FAILED, f"{error}{remedy}") from None


def _keep_freed_memory() -> None:
    """Let glibc keep the memory of tensors for the next step instead of returning it to the system.

    Fetching it anew, a page at a time, takes a fifth of a step on a CPU. For a process of our own: it is for all of it.
    """
    import ctypes

    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:  # not in musl
        set_option(_M_TRIM_THRESHOLD, 2**31 - 1)
        set_option(_M_MMAP_MAX, 0)


@_remedies()
def _parse(command: str | None, given: list[str]) -> argparse.Namespace:
    options = _options(given) if command is None else _command_options(command, given[1:])
    options.run = partial(_run, command)
    return options


@_remedies()
def _run(command: str | None, options: argparse.Namespace) -> int:
    """Run a subcommand, list the recipes, or train."""
    if command is None:
        return _list() if options.list else _train(options)
    if not hasattr(options, "quiet"):
        return int(_command(command).run(options))
    handler = _log_to_stderr(quiet=options.quiet)
    try:
        return int(_command(command).run(options))
    finally:
        logging.getLogger("embedkit").removeHandler(handler)


def _command(name: str) -> Any:
    """The module of a subcommand: ``add_arguments`` and ``run``."""
    from importlib import import_module

    return import_module(f"{__package__}.{_COMMANDS[name][0]}")


def _command_options(name: str, arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog=f"embedkit-train {name}", description=_COMMANDS[name][1])
    _command(name).add_arguments(parser)
    return parser.parse_args(arguments)


def _commands() -> str:
    """A line for each subcommand."""
    lines = (f"  {name:<15} {about}" for name, (_, about) in _COMMANDS.items())
    return "commands (embedkit-train COMMAND --help):\n" + "\n".join(lines) + "\n\n"


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="embedkit-train",
        description="Train a sentence encoder from a recipe.",
        epilog=_commands() + _EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", nargs="?", help="a YAML file, or the name of a built-in recipe")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="override a key of the recipe")
    parser.add_argument("--list", action="store_true", help="list the built-in recipes")
    parser.add_argument("--show", action="store_true", help="print the resolved recipe and stop")
    parser.add_argument(
        "-o", "--output", type=given_path, help="folder of the run (default: runs/RECIPE-SEED)"
    )
    parser.add_argument(
        "--data", type=given_path, help="folder of the recipe's data files (default: EMBEDKIT_DATA)"
    )
    parser.add_argument("--cache", type=given_path, help="folder for teachers' outputs, which runs can share")
    parser.add_argument(
        "--report-to",
        action="append",
        type=given,
        default=[],
        metavar="NAME",
        help="wandb, mlflow, ...: may be repeated",
    )
    parser.add_argument(
        "--push-to-hub", type=given, metavar="USER/NAME", help="upload the finished model to the Hub"
    )
    parser.add_argument("--private", action="store_true", help="as a private repository")
    parser.add_argument("-q", "--quiet", action="store_true", help="only warnings and errors")
    options, unknown = parser.parse_known_intermixed_args(arguments)
    if options.recipe in _COMMANDS:  # whose options may be the unknown ones
        parser.error(f"put {options.recipe} before the options: embedkit-train {options.recipe} ...")
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.list and options.recipe is not None:
        parser.error(
            f"--list is of all recipes; to see {options.recipe}: embedkit-train {options.recipe} --show"
        )
    if not options.list and options.recipe is None:
        parser.error("give a recipe, or --list")
    return options


def _list() -> int:
    from .recipe import list_recipes

    recipes = list_recipes()
    width = max(map(len, recipes))
    for name, description in recipes.items():
        show(f"{name:{width}}  {description}")
    return 0


def _train(options: argparse.Namespace) -> int:
    import yaml

    from .recipe import find_recipe, load_recipe

    recipe = load_recipe(find_recipe(options.recipe), options.overrides)
    shown = yaml.safe_dump(recipe.resolved(), sort_keys=False, allow_unicode=True)
    if options.private and not options.push_to_hub:
        raise ValueError("--private is of the repository that --push-to-hub names")
    if options.push_to_hub:
        from .hub import check_repository

        check_repository(options.push_to_hub)
    if options.show:
        show_result(shown.removesuffix("\n"))
        return 0
    _log_to_stderr(quiet=options.quiet or os.environ.get("RANK", "0") != "0")  # one process logs
    logging.getLogger("embedkit").info("recipe %s:\n%s", recipe.name, shown)
    from .trainer import train

    output = options.output or Path("runs") / f"{recipe.name}-{recipe.training.seed}"
    with _missing_made(shown):
        result = train(
            recipe, output, data_root=options.data, cache=options.cache, report_to=options.report_to
        )
    if result:
        _report(output, result)
        if options.push_to_hub:
            from .hub import push_to_hub

            show(push_to_hub(output / "model", options.push_to_hub, private=options.private))
    return 0


@contextlib.contextmanager
def _missing_made(shown: str) -> Iterator[None]:
    """Name the command that makes a missing folder of the recipe ``shown``, which is no model of the Hub."""
    from .recipe import made_by

    try:
        yield
    except FileNotFoundError as error:
        for folder in re.findall(r"(?<![\w./~-])runs/[\w./-]+", shown):
            if folder in str(error) and not Path(folder).exists() and (command := made_by(folder)):
                raise FileNotFoundError(
                    f"there is no folder {folder}, which this makes: {command}"
                ) from error
        raise


def _report(output: Path, result: dict[str, Any]) -> None:
    show(f"{output / 'model'}: {result['steps']} steps, {result['train_seconds']:.0f} s")
    for part in ("dev", "test"):
        if result[part]:
            show(f"{part}: {result[part]}")


def _log_to_stderr(*, quiet: bool) -> logging.Handler:
    logger = logging.getLogger("embedkit")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    return handler


if __name__ == "__main__":
    sys.exit(main())
