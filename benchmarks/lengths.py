"""Texts of wanted token counts, cut from running text: what a benchmark of one length, or of mixed ones, needs."""

import math
import random
from collections.abc import Iterator
from pathlib import Path


def wanted(lengths: str, count: int) -> list[int]:
    """``count`` token counts as ``lengths`` says: "128", or "8-256" for log-uniform ones between the two.

    Most texts of a mixture are short and most of its tokens in long ones, as in real corpora.
    """
    low, _, high = lengths.partition("-")
    try:
        bounds = int(low), int(high or low)
    except ValueError:
        raise SystemExit(
            f"--lengths {lengths!r}: give a number of tokens or two, such as 128 or 8-256"
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
