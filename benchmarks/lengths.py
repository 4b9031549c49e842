"""Texts of wanted token counts, cut from running text: what a benchmark of one length, or of mixed ones, needs."""

import math
import random
from collections.abc import Iterator
from pathlib import Path


def wanted(lengths: str, count: int) -> list[int]:
    """Token counts as ``lengths`` says.

    "128": ``count`` of them; "8-256": ``count`` log-uniform ones between the two, of which most are short and most
    tokens in long ones, as in real corpora; "200,63x10": one of 200 and 63 of 10, whatever ``count`` says.
    """
    low, _, high = lengths.partition("-")
    try:
        if "," in lengths or "x" in lengths:
            parts = [part.rpartition("x") for part in lengths.split(",")]
            return [int(size) for times, _, size in parts for _ in range(int(times or 1))]
        bounds = int(low), int(high or low)
    except ValueError:
        raise SystemExit(
            f"--lengths {lengths!r}: give a number of tokens or two, such as 128 or 8-256, or a list: 200,63x10"
        ) from None
    if not 4 <= bounds[0] <= bounds[1]:
        raise SystemExit(f"--lengths {lengths!r}: from 4 tokens (two of them special) up, the lesser first")
    draw = random.Random(0)
    logs = [math.log(bound) for bound in bounds]
    return [round(math.exp(draw.uniform(*logs))) for _ in range(count)]


def texts_of_lengths(folder: Path, texts: list[str], lengths: list[int]) -> list[str]:
    """One text for each of ``lengths`` tokens, special tokens counted; each begins where the last one ended.

    Cut at a token's end, a text can be tokenized otherwise than within its line: those are cut again, shorter or
    longer by a token, and kept as they are after that; the histogram tells the exact counts.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
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
    """The texts' tokens as they are written, each with what stands before it; from the start again at the end."""
    if not texts:
        raise SystemExit("no texts to cut")
    while True:
        for text in texts:
            end = 0
            for _, stop in tokenizer.encode(text, add_special_tokens=False).offsets:  # type: ignore[attr-defined]
                if stop > end:
                    yield (" " if end == 0 else "") + text[end:stop]
                    end = stop
