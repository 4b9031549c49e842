"""Tokenizers of BPE and Unigram with the settings of well-known models, trained here by `tokenizers` itself."""

from __future__ import annotations

import base64
import json
import random
import struct
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tokenizer_pair import SENTENCES
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

Content = dict[str, Any]

TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKED = "\u2581"
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXTS = [
    *SENTENCES,
    "it's I'LL we've they'd YOU'RE don't 'S 'sa '\u017f x'M",
    "for i in range(10):\n\tprint(i)\n\n\n    return  3.14159 12345678 \u0661\u0662\u0663\u0664",
]


def charsmap(rules: Mapping[str, str]) -> bytes:
    """The bytes of a precompiled character map: a Darts double array, a block of 256 units for each inner node."""
    children: dict[bytes, set[int]] = {b"": set()}
    for key in rules:
        data = key.encode()
        for i in range(len(data)):
            children.setdefault(data[:i], set()).add(data[i])
    inner = sorted(children)
    blocks = {prefix: 256 * (i + 1) for i, prefix in enumerate(inner)}
    leaves = [key.encode() for key in rules if key.encode() not in children]
    at_leaf = {key: 256 * (len(inner) + 1) + i for i, key in enumerate(leaves)}
    units = [0] * (256 * (len(inner) + 2 + len(leaves) // 256))
    strings, values = bytearray(), {}
    for key, value in rules.items():
        values[key.encode()] = len(strings)
        strings += value.encode() + b"\0"
    units[0] = blocks[b""] << 10
    for prefix in inner:
        for byte in children[prefix]:
            key, at = prefix + bytes([byte]), blocks[prefix] ^ byte
            base = blocks[key] if key in blocks else at_leaf[key]
            units[at] = (at ^ base) << 10 | (key in values) << 8 | byte
            if key in values:
                units[base] = 1 << 31 | values[key]
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + bytes(strings)


@cache
def nmt_nfkc() -> str:
    """A map like SentencePiece's nmt_nfkc, of Python's own Unicode data, as base64.

    NFKC of each character, composition of a letter and a mark, controls and unusual spaces.
    """
    rules: dict[str, str] = {}
    for c in range(0x30000):
        char = chr(c)
        if 0xD800 <= c <= 0xDFFF:
            continue
        after = unicodedata.normalize("NFKC", char)
        if after != char:
            rules[char] = after
        decomposed = unicodedata.normalize("NFD", char)
        if decomposed != char and after == char and not "\uac00" <= char <= "\ud7a3":
            rules[decomposed] = char
    rules |= dict.fromkeys([*map(chr, range(1, 9)), "\x0b", *map(chr, range(0x0E, 0x20)), "\x7f"], "")
    rules |= dict.fromkeys("\t\n\f\r\u1680\u200b\u200e\u200f\u2028\u2029\u2581\ufeff\ufffd", " ")
    return base64.b64encode(charsmap(rules)).decode()


def precompiled() -> Any:
    return normalizers.Precompiled(base64.b64decode(nmt_nfkc()))


def byte_level(
    normalizer: Any, pre_tokenizer: Any, *, processor: Any = None, ignore_merges: bool = False
) -> Content:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=1_500,
        special_tokens=["<|endoftext|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    # Runs of spaces as GPT-NeoX and ModernBERT have them, and a token that takes the space before it.
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in (2, 3, 8)])
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True, normalized=False, special=True)])
    if processor is not None:
        tokenizer.post_processor = processor
    return json.loads(tokenizer.to_str())


def gpt2(prefix: bool = False) -> Content:
    return byte_level(None, pre_tokenizers.ByteLevel(add_prefix_space=prefix))


def modernbert() -> Content:
    template = processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_start|>",
        special_tokens=[("<|endoftext|>", 0), ("<|im_start|>", 1)],
    )
    return byte_level(normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False), processor=template)


def split_by(pattern: str, *, nfc: bool = True, ignore_merges: bool = False) -> Content:
    steps = [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    return byte_level(
        normalizers.NFC() if nfc else None, pre_tokenizers.Sequence(steps), ignore_merges=ignore_merges
    )


def sentencepiece_bpe(
    normalizer: Any, pre_tokenizer: Any, *, byte_fallback: bool = True, fuse: bool = True
) -> Content:
    """A BPE of characters, trained on words, that then sees whole texts."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse))
    tokenizer.normalizer = normalizers.Replace(" ", MARKED)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(MARKED, "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=1_500, special_tokens=SPECIAL, limit_alphabet=300, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    content = json.loads(tokenizer.to_str())
    vocab, merges = content["model"]["vocab"], content["model"]["merges"]
    for token in [f"<0x{b:02X}>" for b in range(256)] if byte_fallback else []:
        vocab[token] = len(vocab)
    for run in range(2, 9):  # runs of spaces, from two sides
        vocab.setdefault(MARKED * run, len(vocab))
        merges.append([MARKED * (run // 2), MARKED * (run - run // 2)])
    content["model"]["byte_fallback"] = byte_fallback
    tokenizer = Tokenizer.from_str(json.dumps(content))
    if normalizer is None:
        content["normalizer"] = None
    else:
        tokenizer.normalizer = normalizer
        content["normalizer"] = json.loads(tokenizer.to_str())["normalizer"]
    if pre_tokenizer is None:
        content["pre_tokenizer"] = None
    else:
        tokenizer.pre_tokenizer = pre_tokenizer
        content["pre_tokenizer"] = json.loads(tokenizer.to_str())["pre_tokenizer"]
    return content


def unigram(normalizer: Any, pre_tokenizer: Any, *, byte_fallback: bool = False) -> Content:
    tokenizer = Tokenizer(models.Unigram())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.UnigramTrainer(
        vocab_size=1_500, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    content = json.loads(tokenizer.to_str())
    if byte_fallback:
        content["model"]["vocab"] += [[f"<0x{b:02X}>", -50.0] for b in range(256)]
        content["model"]["byte_fallback"] = True
    return content


def metaspace(scheme: str = "always", split: bool = True) -> Any:
    return pre_tokenizers.Metaspace(MARKED, prepend_scheme=scheme, split=split)


def after_spaces() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace()])


def albert() -> Content:
    steps = [
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
        normalizers.NFKD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
        precompiled(),
    ]
    return unigram(normalizers.Sequence(steps), after_spaces())


def camembert() -> Content:
    steps = [
        normalizers.Replace(Regex(r"\n"), " "),
        normalizers.Strip(left=False, right=True),
        normalizers.Replace(Regex(" {2,}"), MARKED),
    ]
    return unigram(normalizers.Sequence(steps), metaspace())


def deberta() -> Content:
    steps = [
        normalizers.Lowercase(),
        normalizers.Strip(left=True, right=True),
        normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
        normalizers.NFKC(),
    ]
    splits = [pre_tokenizers.Punctuation("isolated"), metaspace()]
    return unigram(normalizers.Sequence(steps), pre_tokenizers.Sequence(splits))


def sentencepiece() -> Content:
    steps = [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    return unigram(normalizers.Sequence(steps), metaspace())


def digits() -> Content:
    splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    return byte_level(normalizers.NFD(), pre_tokenizers.Sequence(splits))


FAMILIES: dict[str, Callable[[], Content]] = {
    "gpt2": gpt2,
    "roberta": lambda: gpt2(True),
    "modernbert": modernbert,
    "qwen3": lambda: split_by(QWEN2),
    "qwen3.5": lambda: split_by(QWEN35),
    "llama3": lambda: split_by(CL100K, nfc=False, ignore_merges=True),
    "digits": digits,
    "gemma": lambda: sentencepiece_bpe(
        normalizers.Replace(" ", MARKED), pre_tokenizers.Split(" ", "merged_with_previous")
    ),
    "llama2": lambda: sentencepiece_bpe(
        normalizers.Sequence([normalizers.Prepend(MARKED), normalizers.Replace(" ", MARKED)]), None
    ),
    "llama2, new": lambda: sentencepiece_bpe(None, metaspace("first", False)),
    "characters": lambda: sentencepiece_bpe(None, metaspace(), byte_fallback=False, fuse=False),
    "xlm-roberta": lambda: unigram(precompiled(), after_spaces()),
    "t5": lambda: unigram(
        normalizers.Sequence([precompiled(), normalizers.Replace(Regex(" {2,}"), " ")]), metaspace()
    ),
    "whole": lambda: unigram(precompiled(), metaspace(split=False), byte_fallback=True),
    "albert": albert,
    "camembert": camembert,
    "deberta": deberta,
    "sentencepiece": sentencepiece,
}


@cache
def family(name: str) -> Content:
    """The content of tokenizer.json; do not change it."""
    return FAMILIES[name]()


# What normalizers, pre-tokenizers, grapheme clusters and added tokens trip over.
FRAGMENTS = [
    *" \t\n\r\u00a0\u3000\u2028\u0085\u200b\u200c\u200d\ufeff\x00\x01\x7f",
    *("  ", "\r\n", "   ", "        ", "\u2581", "\u2581\u2581", "'", "''", "``", "'s", "'S", "'ll", "'RE", "'\u017f"),
    *"abcdeABCDEZz0123456789.,;!?-_(){}[]<>/\\\"#",
    *("the", "The", " the", "library", "ing", "1234", "\u0663\u0664", "\u00bd", "\u2460", "\u216b"),
    *("\u00e9", "e\u0301", "\u0301", "\u0340", "\u0344", "\u0308", "\u0327", "\u0345", "\u1e69", "s\u0307\u0323"),
    *("\ufb01", "\ufb01\u0301", "\u00a9", "\u00a9\u200d", "\u212b", "\u2126", "\u03a3", "\u03c2", "\u0130", "\u00df"),
    *("\uac00", "\uac01", "\u1100", "\u1161", "\u11a8", "\u11a7", "\u3131", "\uff76\uff9e", "\uff76", "\u304b\u3099"),
    *("\u4e2d\u6587", "\u4e2d", "\uf900", "\U0002f800", "\u3042", "\u30ab", "\u0416\u0438", "\u0439", "\u05d0\u05b0"),
    *("\u0915", "\u094d", "\u0915\u094d\u0937", "\u093c", "\u0958", "\u09be", "\u0bbe", "\u0600", "\u0e33", "\u0bcd"),
    *("\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea", "\U0001f1e9", "\U0001f44d\U0001f3fd", "\u2764\ufe0f"),
    *("\ufdfa", "\u00a0\u0301", "\u1f80", "\ud7a3\u11a8", "\U0001d165", "\U00016ff0", "\ue000", "\U000e0001", "\uffff"),
    *("<s>", "</s>", "<unk>", "<mask>", "[MASK]", "<|endoftext|>", "<|im_start|>", "<0x41>", "<unk><unk>"),
]  # fmt: skip


def fuzzed(count: int, seed: int) -> list[str]:
    """Texts of fragments, some long."""
    rng = random.Random(seed)
    sizes = [1, 2, 3, 4, 6, 9, 14, 30, 120]
    return ["".join(rng.choices(FRAGMENTS, k=rng.choice(sizes))) for _ in range(count)]
