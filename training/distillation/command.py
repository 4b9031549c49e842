"""``embedkit-train distill``."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from ...cli.common import given, given_path, show

__all__ = ["add_arguments", "run"]

_EPILOG = """examples:
  embedkit-train distill --teacher BAAI/bge-small-en-v1.5 --texts notes/ -o small
  embedkit-train distill --teacher big-model --teacher other-model --texts corpus.jsonl --layers 4 --dim 128 -o small
  embedkit-train distill --teacher big-model --texts corpus.jsonl -o small \\
      --dev-queries queries.tsv --dev-documents documents.tsv --dev-judgments qrels.tsv

OUTPUT/model is the int8 student, OUTPUT/float its fp32 form for sentence-transformers, OUTPUT/report.json and
report.png compare teacher and student. The same command goes on with a run that was stopped.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "--teacher",
        action="append",
        required=True,
        metavar="MODEL",
        help="folder or Hub id of an encoder; repeatable: the vectors of several are joined",
    )
    parser.add_argument(
        "--texts",
        action="append",
        required=True,
        type=given,
        metavar="FILE",
        help="file or folder of texts; repeatable",
    )
    parser.add_argument(
        "--text-field", type=given, default="text", metavar="NAME", help="field of the text (default: text)"
    )
    parser.add_argument(
        "-o", "--output", type=given_path, required=True, help="folder of the run and the student"
    )
    student = parser.add_argument_group("the student")
    student.add_argument(
        "--layers",
        type=_layers,
        metavar="N",
        help="layers of the first teacher to keep: their number, or indices such as 0,3,6,9 (default: 6)",
    )
    student.add_argument("--student", metavar="MODEL", help="a smaller encoder to start from instead")
    student.add_argument("--dim", type=int, default=256, metavar="DIM", help="of its vectors (default: 256)")
    student.add_argument(
        "--bytes",
        type=int,
        metavar="N",
        help="bytes per stored vector: DIM for int8 (default), ¾ DIM for 6 bits, 4 DIM for float32",
    )
    student.add_argument(
        "--prefixes",
        type=_numbers,
        metavar="N,N",
        help="dimensions to which vectors may be truncated (default: halves of --dim down to 64)",
    )
    student.add_argument(
        "--max-length", type=int, default=256, metavar="N", help="tokens of a text (default: 256)"
    )
    student.add_argument("--license", default="other", metavar="NAME", help="of the student (default: other)")
    training = parser.add_argument_group("the training")
    training.add_argument(
        "--prompt",
        action="append",
        metavar="TEXT",
        help="that the teachers read each text with (default: none); or once for each teacher, '' for none",
    )
    training.add_argument(
        "--prompt-words",
        type=int,
        metavar="N",
        help="put the prompt only before texts of at most N words, which read like queries (default: all)",
    )
    training.add_argument(
        "--query-prompt",
        default="",
        metavar="TEXT",
        help="that the student reads queries with: it learns the texts of at most --prompt-words words twice, as they "
        "are and as queries, which the teachers read with their --prompt",
    )
    training.add_argument(
        "--teacher-precision", default="auto", metavar="NAME", help="fp32, int8 or auto (default)"
    )
    training.add_argument(
        "--teacher-weights",
        type=_weights,
        metavar="X,X",
        help="of each of several teachers (default: equal)",
    )
    training.add_argument(
        "--center",
        action="store_true",
        help="learn the teachers' vectors without their mean: finds slightly more, but cosines are not the teachers'",
    )
    training.add_argument(
        "--whiten",
        type=float,
        default=0.0,
        metavar="X",
        help="whiten the student's vectors partly at the end, from 0 (default) to 1: .3 finds more, but cosines are "
        "not the teachers'",
    )
    training.add_argument("--epochs", type=float, default=1.0, metavar="N", help="(default: 1)")
    training.add_argument("--max-steps", type=int, default=-1, metavar="N", help="instead of --epochs")
    training.add_argument(
        "--batch-tokens", type=int, default=3072, metavar="N", help="mean tokens of a step (default: 3072)"
    )
    training.add_argument(
        "--eval-steps",
        type=float,
        default=0.1,
        metavar="N",
        help="steps between checkpoints, or a fraction of the training (default: 0.1)",
    )
    training.add_argument("--learning-rate", type=float, default=3e-4, metavar="X", help="(default: 3e-4)")
    training.add_argument(
        "--head-learning-rate",
        type=float,
        default=5e-4,
        metavar="X",
        help="of the projection (default: 5e-4)",
    )
    training.add_argument(
        "--precision",
        default="fp32",
        metavar="NAME",
        help="fp32 (default), bf16, or auto: bf16 if the device has instructions for it",
    )
    training.add_argument("--seed", type=int, default=1, metavar="N", help="(default: 1)")
    training.add_argument(
        "--early-stopping", type=int, metavar="N", help="stop after N dev scores without improvement"
    )
    dev = parser.add_argument_group(
        "a dev set, whose score selects the best checkpoint (default: texts that are held out)"
    )
    for name, columns in (
        ("queries", "query_id, text"),
        ("documents", "doc_id, text"),
        ("judgments", "query_id, doc_id, rel"),
    ):
        dev.add_argument(f"--dev-{name}", type=given, metavar="FILE", help=f"with the columns {columns}")
    dev.add_argument(
        "--dev-pairs",
        type=given,
        metavar="FILE",
        help="or scored pairs, with the columns text1, text2, label",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="only warnings and errors")


def run(options: argparse.Namespace) -> int:
    """Distill, and print the comparison."""
    from .options import DistillOptions
    from .run import distill

    fields = {field.name for field in dataclasses.fields(DistillOptions)}
    chosen = {name: value for name, value in vars(options).items() if name in fields}
    chosen["index_precision"] = _index_precision(options.dim, options.bytes)
    prompts = options.prompt or [""]
    if options.layers is None:
        del chosen["layers"]
    elif options.student is not None:
        raise ValueError("--layers are of a teacher, and --student is a model of its own; give one of them")
    if options.prompt_words is not None and not any(prompts) and not options.query_prompt:
        raise ValueError("--prompt-words says before which texts --prompt or --query-prompt is put; give one")
    chosen |= {
        "dimension": options.dim,
        "evaluation": _evaluation(options),
        "prompt": prompts[0] if len(prompts) == 1 else prompts,
    }
    report = distill(
        options.teacher,
        options.texts,
        options.output,
        DistillOptions(**chosen),
        text_field=options.text_field,
    )
    if report:
        show(f"{options.output / 'model'}: {report['steps']} steps, {report['train_seconds']:.0f} s")
        for label, row in report["rows"].items():
            show(f"  {label}: " + ", ".join(f"{name} {value:,}" for name, value in row.items()))
    return 0


def _index_precision(dimension: int, size: int | None) -> str:
    """What ``--bytes`` means.

    Raises:
        ValueError: it is neither six bits a column nor a byte nor four.
    """
    bits = -(-6 * dimension // 8)
    precisions = {None: "int8", 4 * dimension: "fp32", bits: "int6", dimension: "int8"}
    if size not in precisions:
        raise ValueError(
            f"--bytes {size} with --dim {dimension}: give {bits}, {dimension} or {4 * dimension} (six bits, a byte or "
            f"four a column), or another --dim, such as {size}"
        )
    return precisions[size]


def _evaluation(options: argparse.Namespace) -> dict[str, Any]:
    """The recipe's ``evaluation`` of the dev set that was given.

    Raises:
        ValueError: a part of it is missing, or there are two.
    """
    parts = {name: getattr(options, f"dev_{name}") for name in ("queries", "documents", "judgments")}
    given = [name for name, path in parts.items() if path is not None]
    if options.dev_pairs is not None:
        if given:
            raise ValueError(
                "give --dev-pairs or --dev-queries, --dev-documents and --dev-judgments, not both"
            )
        return {
            "pairs": {"dev": {"path": _absolute(options.dev_pairs)}},
            "select": "dev_spearman",
        }
    if not given:
        return {}
    missing = [f"--dev-{name}" for name in parts if name not in given]
    if missing:
        raise ValueError(f"a dev set of queries needs {' and '.join(missing)} as well")
    return {
        "retrieval": {"dev": {name: _absolute(path) for name, path in parts.items()}},
        "select": "dev_ndcg",
    }


def _absolute(path: str) -> str:
    return str(Path(path).resolve())


def _layers(text: str) -> int | list[int]:
    numbers = _numbers(text)
    return numbers if "," in text else numbers[0]


def _weights(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid weights: {text!r}; expected e.g. 1,1.6") from None


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found:
        raise argparse.ArgumentTypeError(f"invalid numbers: {text!r}; expected e.g. 128,64")
    return found
