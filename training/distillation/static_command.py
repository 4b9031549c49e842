"""``embedkit-train distill-static``."""

from __future__ import annotations

import argparse

from ...cli.common import given_path, show

__all__ = ["add_arguments", "run"]

_EPILOG = """examples:
  embedkit-train distill-static sentence-transformers/all-MiniLM-L6-v2 -o minilm-static
  embedkit-train distill-static my-model -o my-static --dim 128 --dtype float16

The folder opens in embedkit, model2vec and sentence-transformers. No texts are needed: every token of the vocabulary
goes through the encoder once (Model2Vec's method).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("model", metavar="MODEL", help="folder or Hub id of a transformer")
    parser.add_argument(
        "-o", "--output", type=given_path, required=True, help="folder to write; new or empty"
    )
    parser.add_argument("--dim", type=int, default=256, metavar="N", help="of its vectors (default: 256)")
    parser.add_argument(
        "--sif",
        type=float,
        default=1e-4,
        metavar="A",
        help="smooth inverse frequency; 0 for none (default: 1e-4)",
    )
    parser.add_argument(
        "--dtype", choices=("float32", "float16"), default="float32", help="of the table (default: float32)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="(default: all)")
    parser.add_argument("-q", "--quiet", action="store_true", help="only warnings and errors")


def run(options: argparse.Namespace) -> int:
    """Make the model; returns the exit status."""
    from .static import StaticOptions, distill_static

    wanted = StaticOptions(options.dim, options.sif or None, options.dtype, threads=options.threads)
    show(str(distill_static(options.model, options.output, wanted)))
    return 0
