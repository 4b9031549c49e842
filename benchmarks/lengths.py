"""Texts with given token counts, cut from running text."""

import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["texts_of_lengths", "wanted"]


def wanted(lengths: str, count: int) -> list[int]:
    """Token counts from the option ``--lengths``.

    "128": ``count`` times 128. "8-256": ``count`` log-uniform counts between the two; as in real corpora, most texts
    are short and most tokens are in long texts. "200,63x10": once 200 and 63 times 10, whatever ``count`` is.
    """
    low, _, high = lengths.partition("-")
    try:
        if "," in lengths or "x" in lengths:
            parts = [part.rpartition("x") for part in lengths.split(",")]
            listed = [int(size) for times, _, size in parts for _ in range(int(times or 1))]
            bounds = min(listed), max(listed)
        else:
            listed, bounds = [], (int(low), int(high or low))
    except ValueError:
        raise SystemExit(
            f"--lengths {lengths!r}: expected a number, a range or a list of token counts: 128, 8-256, 200,63x10"
        ) from None
    if not 4 <= bounds[0] <= bounds[1]:
        raise SystemExit(
            f"--lengths {lengths!r}: expected at least 4 tokens (two are special), the smaller number first"
        )
    if listed:
        return listed
    draw = random.Random(0)
    logs = [math.log(bound) for bound in bounds]
    return [round(math.exp(draw.uniform(*logs))) for _ in range(count)]


def texts_of_lengths(folder: Path, texts: list[str], lengths: list[int]) -> list[str]:
    """One text per entry of ``lengths``, of that many tokens with special ones; each starts where the last one ended.

    A text that is cut after a token may be tokenized differently than within its line. It is then cut again, a token
    shorter or longer, up to three times; the histogram shows the exact counts.
    """
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        sys.exit(f"{folder} has no tokenizer.json, by which texts are cut; save one with transformers")
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    special = len(tokenizer.encode("").ids)
    pieces = _pieces(tokenizer, texts)
    result = []
    for length in lengths:
        parts = [next(pieces) for _ in range(length - special)]
        text = "".join(parts).strip()
        for _ in range(3):
            excess = len(tokenizer.encode(text).ids) - length
            if excess == 0:
                break
            parts = parts[:-excess] if excess > 0 else [*parts, *(next(pieces) for _ in range(-excess))]
            text = "".join(parts).strip()
        result.append(text)
    return result


def _pieces(tokenizer: object, texts: list[str]) -> Iterator[str]:
    """Endless pieces of the texts: each token as it is written, with the characters before it."""
    if not texts:
        raise SystemExit("no texts to cut")
    while True:
        for text in texts:
            end = 0
            for _, stop in tokenizer.encode(text, add_special_tokens=False).offsets:  # type: ignore[attr-defined]
                if stop > end:
                    yield (" " if end == 0 else "") + text[end:stop]
                    end = stop
