"""BPE and Unigram of a tokenizer.json for the core: what it knows of their normalizers and pre-tokenizers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from itertools import pairwise
from math import copysign, isfinite
from pathlib import Path
from typing import Any

from .. import _core
from .tokenizer_files import damaged, typed

__all__ = ["UnknownToCore", "added_ids", "subword_core"]

_LARGEST_ID = 2**31 - 2
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
# The core has no engine for regular expressions: it knows these.
_PATTERNS = {
    _GPT2: "gpt2",
    _CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST: "cl100k",
    _CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST: "qwen2",
    _CONTRACTIONS
    + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen3_5",
}
_REPLACED = {" {2,}": "replace_runs", r"\s{2,}|[\n\r\t]": "replace_breaks"}
_BEHAVIORS = {
    "Removed": "removed",
    "Isolated": "isolated",
    "MergedWithPrevious": "merged_with_previous",
    "MergedWithNext": "merged_with_next",
    "Contiguous": "contiguous",
}
# Behavior and inversion with which the matches of a known expression are the pieces.
_WHOLE = {("isolated", False), ("isolated", True), ("removed", True)}
_MOST_ADDED = 1024
_PLAIN_NORMALIZERS = {
    "NFC": "nfc",
    "NFD": "nfd",
    "NFKC": "nfkc",
    "NFKD": "nfkd",
    "Lowercase": "lowercase",
    "StripAccents": "strip_accents",
    "Nmt": "nmt",
}


class UnknownToCore(Exception):
    """The core cannot represent this tokenizer; the `tokenizers` package may."""


def subword_core(
    content: Mapping[str, Any],
    added: list[dict[str, Any]],
    path: Path,
    *,
    lowercase_first: bool,
    rounded: bool,
) -> tuple[_core.Subword, dict[str, int], int]:
    """The core's tokenizer, the id of each token, and the highest id plus one.

    Args:
        content: of tokenizer.json; its model is BPE or Unigram.
        added: its added tokens, checked.
        path: of the file, for messages.
        lowercase_first: whether text is lower-cased before the tokenizer's own normalization.
        rounded: whether the scores of a Unigram model are those that `tokenizers` reads from a file.

    Raises:
        UnknownToCore: a part of it is not known.
        ValueError: the file is damaged.
    """
    normalizer = _normalizer(content.get("normalizer"), path)
    if lowercase_first:
        normalizer.insert(0, {"kind": "lowercase"})
    splits = _splits(content.get("pre_tokenizer"), path)
    byte_level = bool(splits) and splits[-1] == {"kind": "byte_level"}
    if byte_level:
        splits.pop()
    if {"kind": "byte_level"} in splits:
        raise UnknownToCore("a step after ByteLevel")
    for place, step in enumerate(splits):
        if step.get("scheme") == "first" and (place > 0 or normalizer):
            raise UnknownToCore("Metaspace with prepend_scheme first after another step")
    model = typed(content, "model", dict, None, path)
    try:
        if model.get("type") == "BPE":
            made, vocab = _bpe(model, byte_level, path)
            free = len(vocab)
        elif byte_level:
            raise UnknownToCore("ByteLevel before Unigram")
        else:
            made, vocab = _unigram(model, path, rounded)
            free = len(model["vocab"])  # which may hold a piece twice
        ids, flagged = added_ids(added, vocab, free)
        # In a vocabulary with holes or of equal tokens, the highest id is not the last.
        size = max((*vocab.values(), *ids.values())) + 1
        core = _core.Subword(
            made,
            [_core.AddedToken(**token) for token in flagged],
            [_core.NormalizerStep(**step) for step in normalizer],
            [_core.SplitStep(**step) for step in splits],
            vocab_size=size,
        )
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        raise damaged(path, str(error)) from None
    return core, {**vocab, **ids}, size


def added_ids(
    added: list[dict[str, Any]], vocab: Mapping[str, int], size: int
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """The id of each added token, and the tokens with their ids as keywords of `_core.AddedToken`.

    An id is that of the vocabulary or the next free one, regardless of the file, as in `tokenizers`.

    Args:
        added: tokens as `tokenizer_files.added_token` returns them.
        vocab: ids by token.
        size: the first free id.

    Raises:
        ValueError: a token is so long that looking for it would take its length times that of a text.
    """
    ids: dict[str, int] = {}
    flagged: dict[int, dict[str, Any]] = {}
    for token in added:
        content = token["content"]
        if not content:
            continue
        if len(content) > _MOST_ADDED:
            raise ValueError(
                f"an added token has {len(content)} characters; at most {_MOST_ADDED} are looked for"
            )
        if content not in ids:
            ids[content] = vocab.get(content, size)
            size += ids[content] == size
        flagged[ids[content]] = {**token, "id": ids[content]}
    return ids, list(flagged.values())


def _kind(value: Any, name: str, path: Path) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise damaged(path, f'a step of the {name} is {value!r:.80}, not an object with a "type"')
    return kind


def _pattern(value: Mapping[str, Any], path: Path) -> tuple[str, str]:
    """ "String" or "Regex", and the pattern."""
    pattern = typed(value, "pattern", dict, None, path)
    for kind in ("String", "Regex"):
        if isinstance(pattern.get(kind), str) and pattern[kind]:
            return kind, pattern[kind]
    raise UnknownToCore(f"the pattern {pattern!r:.80}")


def _normalizer(value: Any, path: Path) -> list[dict[str, Any]]:
    """The steps, as keywords of `_core.NormalizerStep`."""
    if value is None:
        return []
    kind = _kind(value, "normalizer", path)
    if kind == "Sequence":
        steps = typed(value, "normalizers", list, None, path)
        return [made for step in steps for made in _normalizer(step, path)]
    if kind in _PLAIN_NORMALIZERS:
        return [{"kind": _PLAIN_NORMALIZERS[kind]}]
    if kind == "Replace":
        sort, pattern = _pattern(value, path)
        content = typed(value, "content", str, None, path)
        if sort == "String":
            return [{"kind": "replace", "pattern": pattern, "content": content}]
        if pattern in (r"\n", "\n"):
            return [{"kind": "replace", "pattern": "\n", "content": content}]
        if pattern in _REPLACED:
            return [{"kind": _REPLACED[pattern], "content": content}]
        raise UnknownToCore(f"Replace of the regular expression {pattern!r}")
    if kind == "Prepend":
        return [{"kind": "prepend", "content": typed(value, "prepend", str, None, path)}]
    if kind == "Strip":
        left = typed(value, "strip_left", bool, None, path)
        return [{"kind": "strip", "left": left, "right": typed(value, "strip_right", bool, None, path)}]
    if kind == "Precompiled":
        text = typed(value, "precompiled_charsmap", str, None, path)
        try:
            return [{"kind": "charsmap", "content": base64.b64decode(text, validate=True)}]
        except (binascii.Error, ValueError) as error:
            raise damaged(path, f'"precompiled_charsmap" is not base64 ({error})') from None
    raise UnknownToCore(f"the normalizer {kind}")


def _splits(value: Any, path: Path) -> list[dict[str, Any]]:
    """The steps, as keywords of `_core.SplitStep`; of kind "byte_level" where ByteLevel's alphabet begins."""
    if value is None:
        return []
    kind = _kind(value, "pre_tokenizer", path)
    if kind == "Sequence":
        steps = typed(value, "pretokenizers", list, None, path)
        return [made for step in steps for made in _splits(step, path)]
    if kind == "ByteLevel":
        made: list[dict[str, Any]] = []
        if typed(value, "add_prefix_space", bool, None, path):
            made.append({"kind": "prefix_space"})
        if typed(value, "use_regex", bool, True, path):
            made.append({"kind": "pattern", "pattern": "gpt2"})
        return [*made, {"kind": "byte_level"}]
    if kind == "Split":
        return _split(value, path)
    if kind == "Digits":
        individual = typed(value, "individual_digits", bool, None, path)
        return [{"kind": "digits", "behavior": "isolated" if individual else "contiguous"}]
    if kind == "Punctuation":
        return [{"kind": "punctuation", "behavior": _behavior(value, "Isolated", path)}]
    if kind == "WhitespaceSplit":
        return [{"kind": "whitespace"}]
    if kind == "BertPreTokenizer":
        return [{"kind": "whitespace"}, {"kind": "punctuation", "behavior": "isolated"}]
    if kind == "Metaspace":
        return [_metaspace(value, path)]
    raise UnknownToCore(f"the pre-tokenizer {kind}")


def _behavior(value: Mapping[str, Any], default: str | None, path: Path) -> str:
    name = typed(value, "behavior", str, default, path)
    if name not in _BEHAVIORS:
        raise damaged(path, f'"behavior" is {name!r}, not one of {", ".join(_BEHAVIORS)}')
    return _BEHAVIORS[name]


def _split(value: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    sort, pattern = _pattern(value, path)
    behavior = _behavior(value, None, path)
    inverted = typed(value, "invert", bool, None, path)
    if sort == "String" and not inverted:
        return [{"kind": "string", "text": pattern, "behavior": behavior}]
    # Matches of a known expression cover every text: nothing is between them.
    if sort == "Regex" and pattern in _PATTERNS and (behavior, inverted) in _WHOLE:
        return [{"kind": "pattern", "pattern": _PATTERNS[pattern]}]
    raise UnknownToCore(f"Split by {pattern!r:.80}, {behavior}, invert={inverted}")


def _metaspace(value: Mapping[str, Any], path: Path) -> dict[str, Any]:
    text = typed(value, "replacement", str, None, path)
    if len(text) != 1:
        raise damaged(path, f'"replacement" of Metaspace is {text!r:.80}, not one character')
    scheme = value.get("prepend_scheme", "always")
    if value.get("add_prefix_space") is False:  # of older files
        if scheme != "never" and "prepend_scheme" in value:
            raise damaged(path, f'Metaspace has "add_prefix_space" false and "prepend_scheme" {scheme!r:.80}')
        scheme = "never"
    if scheme not in ("always", "first", "never"):
        raise damaged(path, f'"prepend_scheme" of Metaspace is {scheme!r:.80}')
    split = typed(value, "split", bool, True, path)
    return {
        "kind": "metaspace",
        "text": text,
        "scheme": scheme,
        "split": split,
        "behavior": "merged_with_next",
    }


def _bpe(model: Mapping[str, Any], byte_level: bool, path: Path) -> tuple[_core.SubwordModel, dict[str, int]]:
    if model.get("dropout"):
        raise UnknownToCore("dropout")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise UnknownToCore(name)
    vocab = _ids(model.get("vocab"), path)
    unknown = model.get("unk_token")
    if unknown is not None and (type(unknown) is not str or not unknown or unknown not in vocab):
        raise UnknownToCore(f"the unknown token {unknown!r:.80}")
    byte_fallback = typed(model, "byte_fallback", bool, False, path)
    if byte_level and byte_fallback:
        raise UnknownToCore("byte_fallback after ByteLevel")
    lefts, rights = _merges(typed(model, "merges", list, None, path), path)
    made = _core.SubwordModel.bpe(
        list(vocab),
        list(vocab.values()),
        lefts,
        rights,
        unknown_token=unknown,
        byte_level=byte_level,
        byte_fallback=byte_fallback,
        fuse_unknown=typed(model, "fuse_unk", bool, False, path),
        ignore_merges=typed(model, "ignore_merges", bool, False, path),
    )
    return made, vocab


def _ids(vocab: Any, path: Path) -> dict[str, int]:
    """The vocabulary, whose ids may have holes."""
    if not isinstance(vocab, dict) or not vocab:
        raise damaged(path, 'there is no vocabulary in "model"')
    for token, i in vocab.items():
        if type(i) is not int or not 0 <= i <= _LARGEST_ID:
            raise damaged(
                path, f"the id of the token {token!r:.80} is {i!r:.80}, not from 0 to {_LARGEST_ID}"
            )
    if len(set(vocab.values())) < len(vocab):
        ids = sorted(vocab.values())
        repeated = next(i for i, following in pairwise(ids) if i == following)
        raise damaged(path, f"the vocabulary has the id {repeated} twice")
    return vocab


def _merges(merges: list[Any], path: Path) -> tuple[list[str], list[str]]:
    lefts: list[str] = []
    rights: list[str] = []
    for merge in merges:
        pair = merge
        if isinstance(merge, str):
            if merge.startswith("#version"):
                continue
            pair = merge.split(" ")
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or type(pair[0]) is not str
            or type(pair[1]) is not str
        ):
            raise damaged(path, f"{merge!r:.80} is not a merge of two tokens")
        lefts.append(pair[0])
        rights.append(pair[1])
    return lefts, rights


def _score(value: float) -> float:
    """The number as `tokenizers` reads it: its digits as a double, then scaled, which rounds twice.

    Paths of equal pieces differ in the last bit, and it decides between them.
    """
    if not isfinite(value):
        return value
    mantissa, _, scale = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    exponent = int(scale or 0) - len(fraction)
    power = float(f"1e{abs(exponent)}")
    digits = float(int(whole + fraction))
    return copysign(digits / power if exponent < 0 else digits * power, value)


def _unigram(
    model: Mapping[str, Any], path: Path, rounded: bool
) -> tuple[_core.SubwordModel, dict[str, int]]:
    entries = model.get("vocab")
    if not isinstance(entries, list) or not entries:
        raise damaged(path, 'there is no vocabulary in "model"')
    tokens: list[str] = []
    scores: list[float] = []
    for entry in entries:
        well_formed = (
            isinstance(entry, list)
            and len(entry) == 2
            and type(entry[0]) is str
            and type(entry[1]) in (int, float)
        )
        if not well_formed:
            raise damaged(path, f"{entry!r:.80} of the vocabulary is not a token and its score")
        tokens.append(entry[0])
        scores.append(_score(float(entry[1])) if rounded else float(entry[1]))
    unknown = model.get("unk_id")
    if unknown is None:
        raise UnknownToCore("no unknown token")
    if type(unknown) is not int or not 0 <= unknown < len(tokens):
        raise damaged(path, f'"unk_id" is {unknown!r:.80}; the vocabulary has {len(tokens)} tokens')
    made = _core.SubwordModel.unigram(
        tokens, scores, unknown_id=unknown, byte_fallback=typed(model, "byte_fallback", bool, False, path)
    )
    return made, {token: i for i, token in enumerate(tokens)}
