"""Learns a WordPiece vocabulary and writes the folder from which a model with random weights starts.

BERT's normalization separates Chinese characters, so Chinese texts get a vocabulary of characters and other scripts
one of word pieces.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..cli.common import EXIT_OK, Parser, run, show
from ..model_folder.json_file import write_json
from .data.readers import read

__all__ = ["SMALL_ROFORMER", "build_vocabulary", "main"]

_PROGRAM = "python -m embedkit.training.vocabulary"
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMALL_ROFORMER: dict[str, Any] = {
    "model_type": "roformer",
    "hidden_size": 256,
    "embedding_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 512,
}
"""A config.json for runs on a CPU; a recipe's ``model.config`` replaces keys of it."""


def build_vocabulary(
    texts: Iterable[str],
    size: int,
    folder: Path,
    *,
    config: Mapping[str, Any] = SMALL_ROFORMER,
) -> int:
    """Learn a vocabulary and write tokenizer.json, vocab.txt, tokenizer_config.json and config.json.

    The tokenizer class is BertTokenizer, also for a RoFormer, whose own tokenizer needs a word segmenter.

    Args:
        texts: the training texts.
        size: maximum number of entries, special tokens included. Single characters take precedence, then frequency.
        folder: created if missing; files in it are replaced.
        config: of the model; ``vocab_size`` and ``pad_token_id`` are added.

    Returns:
        The number of entries.

    Raises:
        ValueError: there are no texts, or ``size`` leaves no room for their characters.
        ImportError: `tokenizers` is not installed.
    """
    try:
        from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
        from tokenizers.models import WordPiece
        from tokenizers.trainers import WordPieceTrainer
    except ImportError as error:
        raise ImportError("a vocabulary needs tokenizers: pip install 'embedkit[train]'") from error

    if size <= len(_SPECIAL):
        raise ValueError(f"a vocabulary of {size} has no room beside the {len(_SPECIAL)} special tokens")
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=_SPECIAL,
        limit_alphabet=size - len(_SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    count = int(tokenizer.get_vocab_size())
    if count <= len(_SPECIAL):
        raise ValueError("there is no text to learn a vocabulary from")
    if count > size:  # each character that follows another in a word has an entry more
        raise ValueError(f"the characters of the texts take {count} entries; give a size of at least that")
    ids = {token: tokenizer.token_to_id(token) for token in _SPECIAL}
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    tokenizer.decoder = decoders.WordPiece()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in entries), encoding="utf-8")
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "tokenize_chinese_chars": True,
        "model_max_length": int(config.get("max_position_embeddings", 512)),
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "config.json", {**config, "vocab_size": count, "pad_token_id": ids["[PAD]"]})
    return count


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    return run(_PROGRAM, lambda: _parse(arguments), usage=(ValueError, FileNotFoundError))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog=_PROGRAM,
        description="Learn a vocabulary from tables: the folder that a recipe with model.random starts from.",
    )
    parser.set_defaults(run=_run)
    parser.add_argument(
        "sources", nargs="+", metavar="FILE:COLUMN,COLUMN", help="files with their text columns"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder")
    parser.add_argument("--size", type=int, default=8000, help="maximum number of entries (default: 8000)")
    parser.add_argument("--split", help="only rows of this split")
    parser.add_argument("--data", type=Path, help="folder of the files (default: EMBEDKIT_DATA)")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace) -> int:
    count = build_vocabulary(_texts(options), options.size, options.output)
    show(f"{options.output}: {count} entries")
    return EXIT_OK


def _texts(options: argparse.Namespace) -> Iterable[str]:
    for source in options.sources:
        path, colon, columns = source.rpartition(":")
        if not colon:
            raise ValueError(f"{source!r} names no columns; write FILE:COLUMN,COLUMN")
        names = columns.split(",")
        spec: dict[str, Any] = {"path": path, "columns": {name: name for name in names}}
        if options.split is not None:
            spec["where"] = {"split": options.split}
        table = read(spec, root=options.data)
        for name in names:
            yield from table.texts(name)


if __name__ == "__main__":
    sys.exit(main())
