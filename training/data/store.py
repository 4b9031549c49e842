"""The texts of a training run, tokenized once into one flat array of ids, which lies in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...forking import cached_property
from ...inputs import check_unicode, windows
from ...model_folder.pair_template import PairTemplate, fit_pair, read_pair_template
from ...model_folder.tokenizer import load_tokenizer
from .texts import Selection, distinct, full_disk_named, text_keys

__all__ = ["TextStore"]

_CHUNK = 8192  # texts tokenized at once, at most: bounds the Python lists of ids

Ids = npt.NDArray[np.int32]


class TextStore:
    """Token ids of the distinct texts of a training run.

    A row is the number of a distinct text, in the order of first appearance.

    Attributes:
        rows: (n,) int64, the row of each given text, including repetitions.
        lengths: (distinct,) int32, tokens of each row with special tokens, after truncation.
        max_length: maximum number of tokens in a row or a pair, special tokens included.
        truncated: distinct texts that are longer than `max_length` and were cut.
        prefix_ids: added before the content of a text ([CLS]).
        suffix_ids: added after it ([SEP]).
    """

    def __init__(
        self,
        tokenizer_folder: str | Path,
        texts: Sequence[str],
        max_length: int,
        folder: Path | None = None,
        *,
        vectors: int | None = None,
        lowercase_first: bool = False,
    ) -> None:
        """Tokenize each distinct text once.

        Args:
            tokenizer_folder: contains tokenizer.json or vocab.txt. WordPiece runs in embedkit's core, any other
                tokenizer in the `tokenizers` package.
            texts: in any order, with repetitions.
            max_length: maximum number of tokens in a text, special tokens included; longer texts are cut at the
                tokenizer's ``truncation_side``.
            folder: where the ids are kept, in a file without a name; None for the system's temporary folder.
            vectors: the tokens that the model has vectors for, see `load_tokenizer`; None for all.
            lowercase_first: see `load_tokenizer`.

        Raises:
            FileNotFoundError: the folder has no tokenizer.
            TypeError: a text is not str.
            ValueError: the tokenizer is damaged or has more tokens than the model has vectors, a text contains a lone
                surrogate, or `max_length` leaves no room for text.
        """
        self._folder = Path(tokenizer_folder)
        self._tokenizer = tokenizer = load_tokenizer(
            self._folder, lowercase_first=lowercase_first, vectors=vectors
        )
        if vectors is not None and tokenizer.vocab_size > vectors:
            raise ValueError(
                f"{self._folder}: the tokenizer has {tokenizer.vocab_size} tokens, and vocab_size is {vectors}; "
                "the files are of different models, or model.config sets another vocab_size"
            )
        self.prefix_ids = tokenizer.prefix_ids
        self.suffix_ids = tokenizer.suffix_ids
        self.max_length = max_length
        self._special = len(self.prefix_ids) + len(self.suffix_ids)
        self._left = tokenizer.truncation_side == "left"
        self._check_room(self._special, 1, "a text")

        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"texts[{i}] is {type(text).__name__}, not str")
            if not text.isascii():
                check_unicode(f"the text {text!r:.80}", text)
        first, self.rows = distinct(text_keys(texts))
        self._flat, self._full = self._tokenize(Selection(texts, first), folder)
        self.lengths: Ids = np.minimum(self._full + self._special, max_length).astype(np.int32)
        self._offsets = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        self.truncated = int((self._full + self._special > max_length).sum())
        for shared in (self._flat, self.rows, self.lengths):
            shared.setflags(write=False)

    def __len__(self) -> int:
        """The number of distinct texts."""
        return len(self.lengths)

    def ids(self, row: int) -> Ids:
        """The ids of a row with special tokens, truncated; a read-only view."""
        return self._flat[self._offsets[row] : self._offsets[row + 1]]

    def content_ids(self, row: int) -> Ids:
        """`ids` without the special tokens."""
        start, stop = self._offsets[row], self._offsets[row + 1]
        return self._flat[start + len(self.prefix_ids) : stop - len(self.suffix_ids)]

    @cached_property
    def template(self) -> PairTemplate:
        """How the tokenizer joins two texts.

        Raises:
            ValueError: it has no template for two texts, or `max_length` leaves no room for them.
        """
        template = read_pair_template(self._folder, self._tokenizer)
        if template.special_tokens < self._special:  # then rows are cut shorter than a pair could take
            raise ValueError(
                f"{self._folder}: the tokenizer adds {self._special} special tokens to one text and only "
                f"{template.special_tokens} to two; its pairs are not supported"
            )
        self._check_room(template.special_tokens, 2, "a pair of texts")
        return template

    def pair_ids(self, first: int, second: int) -> tuple[Ids, Ids]:
        """Two rows as one input of a cross-encoder: ids and token types, each (tokens,).

        As ``tokenizer(a, b, truncation="longest_first", max_length=max_length)`` in transformers. Models without
        token types (MPNet, RoBERTa) take only the ids.
        """
        template = self.template
        kept = fit_pair(
            int(self._full[first]), int(self._full[second]), self.max_length - template.special_tokens
        )
        texts = []
        for row, tokens in zip((first, second), kept, strict=True):
            content = self.content_ids(row)
            texts.append(content[len(content) - tokens :] if self._left else content[:tokens])
        ids = np.concatenate([template.before, texts[0], template.between, texts[1], template.after])
        types = np.concatenate(
            [
                template.before_types,
                np.full(kept[0], template.text_types[0]),
                template.between_types,
                np.full(kept[1], template.text_types[1]),
                template.after_types,
            ]
        )
        return ids.astype(np.int32), types.astype(np.int32)

    def pair_lengths(self, first: npt.ArrayLike, second: npt.ArrayLike) -> Ids:
        """Tokens of `pair_ids` for arrays of rows, each (n,): (n,) int32."""
        tokens = self._full[np.asarray(first)] + self._full[np.asarray(second)] + self.template.special_tokens
        lengths: Ids = np.minimum(tokens, self.max_length).astype(np.int32)
        return lengths

    def _check_room(self, special: int, needed: int, what: str) -> None:
        if self.max_length < special + needed:
            raise ValueError(
                f"max_length={self.max_length} leaves no room for {what}: the tokenizer in "
                f"{self._folder} adds {special} special tokens; give {special + needed} or more"
            )

    def _tokenize(self, texts: Sequence[str], folder: Path | None) -> tuple[Ids, npt.NDArray[np.int64]]:
        """The flat ids with special tokens, truncated, and each text's content tokens before truncation."""
        room = self.max_length - self._special
        content = np.empty(len(texts), np.int64)
        with full_disk_named(folder), tempfile.TemporaryFile(dir=folder) as file:
            done = 0
            for chunk in windows(iter(texts), _CHUNK):
                encoded = self._tokenizer.encode_batch(chunk)
                content[done : done + len(chunk)] = [len(ids) for ids in encoded]
                done += len(chunk)
                kept = [ids[-room:] if self._left else ids[:room] for ids in encoded]
                pieces = chain.from_iterable((self.prefix_ids, ids, self.suffix_ids) for ids in kept)
                file.write(np.fromiter(chain.from_iterable(pieces), np.int32).tobytes())
            file.flush()
            # an empty file cannot be mapped
            flat: Ids = np.memmap(file, np.int32, "r") if len(texts) else np.empty(0, np.int32)
        return flat, content
