"""The core and the `tokenizers` package with the same vocabulary and options, side by side."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from embedkit import _core

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SENTENCES = [
    line.split("\t", 1)[1]
    for line in Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").split("\n")
    if line
]
# The options of the tokenizers that are in use, and of some that are not.
OPTIONS: dict[str, dict[str, bool | None]] = {
    "uncased": {},
    "cased": {"lowercase": False},
    "uncased, accents kept": {"strip_accents": False},
    "cased, accents stripped": {"lowercase": False, "strip_accents": True},
    "no Chinese": {"handle_chinese_chars": False},
    "not cleaned": {"clean_text": False},
    "nothing": {
        "clean_text": False,
        "handle_chinese_chars": False,
        "lowercase": False,
        "strip_accents": False,
    },
}


class Pair:
    """One tokenizer twice."""

    def __init__(
        self,
        vocab: Sequence[str],
        added: Iterable[AddedToken] = (),
        *,
        clean_text: bool = True,
        handle_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        lowercase: bool = True,
        unknown: str = "[UNK]",
        prefix: str = "##",
        max_chars: int = 100,
    ) -> None:
        added = list(added)
        self.reference = Tokenizer(
            WordPiece(
                {token: i for i, token in enumerate(vocab)},
                unk_token=unknown,
                continuing_subword_prefix=prefix,
                max_input_chars_per_word=max_chars,
            )
        )
        self.reference.normalizer = BertNormalizer(
            clean_text=clean_text,
            handle_chinese_chars=handle_chinese_chars,
            strip_accents=strip_accents,
            lowercase=lowercase,
        )
        self.reference.pre_tokenizer = BertPreTokenizer()
        self.reference.add_tokens(added)
        self.core = _core.WordPiece(
            list(vocab),
            [
                _core.AddedToken(
                    content=token.content,
                    id=self.reference.token_to_id(token.content),
                    single_word=token.single_word,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    normalized=token.normalized,
                )
                for token in added
            ],
            clean_text=clean_text,
            handle_chinese_chars=handle_chinese_chars,
            strip_accents=lowercase if strip_accents is None else strip_accents,
            lowercase=lowercase,
            unknown_token=unknown,
            continuing_prefix=prefix,
            max_chars_per_word=max_chars,
        )

    def check(self, texts: Sequence[str]) -> None:
        check_same_ids(self.core, self.reference, texts)


def check_same_ids(core: _core.WordPiece | _core.Subword, reference: Tokenizer, texts: Sequence[str]) -> None:
    """Every text has equal ids."""
    wrong = []
    for start in range(0, len(texts), 20_000):
        part = list(texts[start : start + 20_000])
        expected = reference.encode_batch_fast(part, add_special_tokens=False)
        for text, ids, encoding in zip(part, core.encode_batch(part), expected, strict=True):
            if ids != encoding.ids:
                wrong.append((ascii(text)[:200], ids[:20], encoding.ids[:20]))
    assert not wrong, f"{len(wrong)} of {len(texts)} differ; (text, ids, reference): {wrong[:5]}"


def special(*, mask_lstrip: bool = False) -> list[AddedToken]:
    return [
        AddedToken(t, special=True, normalized=False, lstrip=mask_lstrip and t == "[MASK]") for t in SPECIAL
    ]


@cache
def character_vocabulary() -> list[str]:
    """Every code point of the first two planes, alone and inside a word, so that every normalization shows."""
    chars = [chr(c) for c in range(0x20000) if not 0xD800 <= c <= 0xDFFF]
    return [*SPECIAL, *chars, *("##" + c for c in chars)]


@cache
def subword_vocabulary() -> list[str]:
    """Single characters and random pieces of the sentences' words, so that the longest match matters."""
    rng = random.Random(20)
    tokens = dict.fromkeys([*SPECIAL, *(chr(c) for c in range(0x21, 0x7F)), *map(chr, range(0x3040, 0x3100))])
    normalizer = BertNormalizer()
    for sentence in SENTENCES:
        for word in normalizer.normalize_str(sentence).split():
            tokens.setdefault(word)
            for _ in range(8):
                begin = rng.randrange(len(word))
                end = rng.randint(begin + 1, len(word))
                tokens.setdefault(("##" if begin else "") + word[begin:end])
            for char in word[: rng.randint(1, len(word))]:
                tokens.setdefault("##" + char)
    return list(tokens)
