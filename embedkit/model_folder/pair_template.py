"""How a tokenizer joins two texts: the pair template of tokenizer.json, with token types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .json_file import present, read_json
from .rebuilt import rebuild
from .tokenizer import Tokenizer
from .tokenizer_files import TokenizerSettings, damaged

__all__ = ["PairTemplate", "fit_pair", "read_pair_template"]


@dataclass(frozen=True)
class PairTemplate:
    """The fixed ids around two texts, each with its token type (segment).

    Attributes:
        before: ids before the first text ([CLS]).
        between: ids between the texts ([SEP], or </s></s>).
        after: ids after the second text ([SEP]).
        before_types: token types of `before`; likewise `between_types` and `after_types`.
        text_types: token types of the first and of the second text.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    before_types: tuple[int, ...]
    between_types: tuple[int, ...]
    after_types: tuple[int, ...]
    text_types: tuple[int, int]

    @property
    def special_tokens(self) -> int:
        """How many ids are added to the two texts."""
        return len(self.before) + len(self.between) + len(self.after)


def fit_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """The number of tokens to keep of each text: ``truncation="longest_first"`` of the `tokenizers` package.

    The shorter text is kept in full if it fits into half of the room; otherwise each gets half, and an odd token
    goes to the longer one (to the second if both have the same length).

    Args:
        first: tokens of the first text.
        second: tokens of the second text.
        room: tokens for both.
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    if 2 * shorter > room:
        shorter = room // 2
    longer = room - shorter
    return (longer, shorter) if first > second else (shorter, longer)


def read_pair_template(folder: Path, tokenizer: Tokenizer) -> PairTemplate:
    """The pair template of a tokenizer's folder.

    Without tokenizer.json, it is the template of the class that transformers builds from vocab.txt: BERT's
    ``[CLS] a [SEP] b [SEP]`` or MPNet's ``<s> a </s></s> b </s>``.

    Raises:
        ValueError: tokenizer.json is damaged, or its post-processor has no template of two texts.
    """
    path, settings = folder / "tokenizer.json", TokenizerSettings(folder)
    if present(path):
        content = rebuild(read_json(path), settings, settings.class_of_transformers, path)
        return _of_processor(content.get("post_processor"), path)
    mpnet = settings.class_of_transformers == "MPNetTokenizer"
    build = _roberta if mpnet else _bert
    return build(tokenizer.prefix_ids, tokenizer.suffix_ids)


def _bert(cls: tuple[int, ...], sep: tuple[int, ...]) -> PairTemplate:
    return PairTemplate(cls, sep, sep, (0,) * len(cls), (0,) * len(sep), (1,) * len(sep), (0, 1))


def _roberta(cls: tuple[int, ...], sep: tuple[int, ...]) -> PairTemplate:
    return PairTemplate(cls, sep + sep, sep, (0,) * len(cls), (0,) * 2 * len(sep), (0,) * len(sep), (0, 0))


def _of_processor(value: Any, path: Path) -> PairTemplate:
    if value is None:
        return _bert((), ())
    if not isinstance(value, dict):
        raise damaged(path, '"post_processor" is not an object')
    kind = value.get("type")
    try:
        if kind == "ByteLevel":
            return _bert((), ())
        if kind in ("BertProcessing", "RobertaProcessing"):
            build = _bert if kind == "BertProcessing" else _roberta
            return build((int(value["cls"][1]),), (int(value["sep"][1]),))
        if kind == "Sequence":
            steps = [step for step in value["processors"] if step.get("type") != "ByteLevel"]
            if len(steps) <= 1:
                return _of_processor(steps[0] if steps else None, path)
        if kind == "TemplateProcessing":
            template = _of_parts(value["pair"], value["special_tokens"])
            if template is not None:
                return template
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise damaged(path, f"the post-processor {kind} is incomplete ({error!r})") from None
    raise ValueError(
        f"{path}: the post-processor {kind!r} has no template `first second` for two texts, which a "
        "cross-encoder needs. Take a tokenizer with BERT's or RoBERTa's template."
    )


def _of_parts(parts: list[dict[str, Any]], special: Mapping[str, Any]) -> PairTemplate | None:
    """From a TemplateProcessing's "pair"; None unless it holds A and then B, each once."""
    ids: tuple[list[int], list[int], list[int]] = ([], [], [])
    types: tuple[list[int], list[int], list[int]] = ([], [], [])
    texts: list[tuple[str, int]] = []
    for part in parts:
        if "Sequence" in part:
            texts.append((part["Sequence"]["id"], int(part["Sequence"]["type_id"])))
            if len(texts) > 2:
                return None
            continue
        token = part["SpecialToken"]
        new = [int(i) for i in special[token["id"]]["ids"]]
        ids[len(texts)].extend(new)
        types[len(texts)].extend([int(token["type_id"])] * len(new))
    if [name for name, _ in texts] != ["A", "B"]:
        return None
    before, between, after = map(tuple, ids)
    before_types, between_types, after_types = map(tuple, types)
    text_types = (texts[0][1], texts[1][1])
    return PairTemplate(before, between, after, before_types, between_types, after_types, text_types)
