"""``embedkit-model``: convert, export and list models."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import __version__
from .common import EXIT_OK, Parser, given_path, run, show
from .terminal import printable

if TYPE_CHECKING:
    from .. import Encoder

__all__ = ["main"]

_EPILOG = """\
examples:
  embedkit-model convert sentence-transformers/all-mpnet-base-v2 mpnet-int8 --precision int8
  embedkit-model convert mpnet-int8 mpnet-fp32 --precision fp32    # loads in sentence-transformers
  embedkit-model export sentence-transformers/all-mpnet-base-v2 mpnet-onnx --format onnx
  embedkit-model list

exit codes: 0 done, 1 failed while running, 2 wrong usage or input, 130 interrupted by Ctrl-C, 143 ended by
SIGTERM
"""

_CONVERT = """Write a model folder in another precision. fp32 folders are compatible with sentence-transformers in both
directions. int8 folders are a quarter of the size and load in embedkit only; converting one to fp32 dequantizes its
weights."""

_EXPORT = """Export a model with fp32 weights for another runtime, and compare its embeddings with those of the compiled
core. onnx: one graph from token ids to the embedding, which Encoder(OUT, backend="onnx") runs without torch."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``embedkit-model`` with ``argv`` (default: the process's arguments) and return its exit code."""
    return run(
        "embedkit-model",
        lambda: _parser().parse_args(argv),
        usage=(FileExistsError, FileNotFoundError, ValueError),
        interrupted="interrupted: nothing was written",
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="embedkit-model",
        description="Convert and export model folders, and list the models known to work.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"embedkit-model {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    convert = commands.add_parser(
        "convert", help="write a model folder in another precision", description=_CONVERT
    )
    convert.set_defaults(run=_convert)
    convert.add_argument("model", metavar="MODEL", help="model folder or Hub id")
    convert.add_argument("output", metavar="OUT", type=given_path, help="folder to write; new or empty")
    convert.add_argument(
        "--precision", choices=("fp32", "int8"), required=True, help="precision of the new folder"
    )

    export = commands.add_parser("export", help="export a model for another runtime", description=_EXPORT)
    export.set_defaults(run=_export)
    export.add_argument("model", metavar="MODEL", help="model folder or Hub id")
    export.add_argument("output", metavar="OUT", type=given_path, help="folder to write; new or empty")
    export.add_argument("--format", choices=("onnx",), required=True, help="format of the export")
    export.add_argument(
        "--precision",
        choices=("fp32", "fp16", "int8"),
        default="fp32",
        help="precision of the graph (default: fp32)",
    )

    known = commands.add_parser("list", help="list the models known to work")
    known.set_defaults(run=_list)
    return parser


def _open(model: str) -> Encoder:
    """The encoder of a folder, which must not be a cross-encoder's: `Encoder` opens that without its classifier."""
    from .. import Encoder
    from ..model_folder.json_file import present, read_json

    encoder = Encoder(model)
    path = encoder._engine.folder.path
    if not present(path / "modules.json") and present(path / "config.json"):
        kinds = read_json(path / "config.json").get("architectures")
        if isinstance(kinds, list) and any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
            raise ValueError(
                f"{path} holds a cross-encoder ({kinds[0]}), whose classifier would be lost; "
                'open it with CrossEncoder(..., precision="int8"), which needs no conversion'
            )
    return encoder


def _convert(arguments: argparse.Namespace) -> int:
    from ..model_folder.saving import check_new_folder

    check_new_folder(arguments.output)  # before the model is loaded
    with _open(arguments.model) as encoder:
        encoder.save(arguments.output, arguments.precision, dequantize=True)
        size = sum(path.stat().st_size for path in arguments.output.rglob("*") if path.is_file())
        show(
            f"{printable(str(arguments.output))}: {arguments.precision}, "
            f"{encoder.get_embedding_dimension()} dimensions, {size / 1e6:.1f} MB"
        )
    return EXIT_OK


def _export(arguments: argparse.Namespace) -> int:
    from ..export.onnx import export_onnx
    from ..model_folder.saving import check_new_folder

    check_new_folder(arguments.output)
    fidelity = export_onnx(_open(arguments.model), arguments.output, arguments.precision)
    size = sum(path.stat().st_size for path in arguments.output.rglob("*") if path.is_file())
    show(
        f"{printable(str(arguments.output))}: {arguments.precision}, {size / 1e6:.1f} MB; cosine to the "
        f"fp32 core over {fidelity.texts} texts: minimum {fidelity.least:.6f}, mean {fidelity.mean:.6f}"
    )
    return EXIT_OK


def _list(arguments: argparse.Namespace) -> int:
    from ..model_folder.catalog import list_models, list_needs
    from .terminal import table

    needs = [(one.need, one.model, one.figures or "layout tried", one.note) for one in list_needs()]
    for line in table(("need", "model", "measured", ""), needs, None, numbers=0):
        show(line)
    show("")
    rows = [
        (
            str(model.dimension),
            str(model.megabytes),
            model.name,
            str(model.max_length),
            model.language,
            model.license,
            ", ".join(f"{score:g} ({name})" for name, score in model.scores.items()),
        )
        for model in list_models()
    ]
    header = ("dimension", "MB", "model", "tokens", "language", "license", "scores")
    for line in table(header, rows, None):
        show(line)
    return EXIT_OK
