"""Token ids as input: back to the text they are of, and checked by tokenizing it again."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

from ..encoder import Encoder
from .errors import ApiError

__all__ = ["TokenDecoder"]

_MOST = 1 << 20
"""Ids of a request: each takes some hundred bytes while it is decoded and tokenized again."""
_HINT = (
    "Send the text, or the ids of this model's own tokenizer: those of tiktoken are another vocabulary's "
    "(LangChain's OpenAIEmbeddings sends them unless check_embedding_ctx_length=False)."
)


class TokenDecoder:
    """Texts of token ids, for an `Encoder`.

    Ids are taken with or without the model's special tokens around them. A text whose own ids differ from those
    given is refused, so that no vector is of anything but the tokens that were sent.
    """

    def __init__(self, encoder: Encoder) -> None:
        """Read the vocabulary of the encoder's folder when it is first needed."""
        self._encoder = encoder
        self._tokens: list[str] | None = None
        self._other: Any = None
        self._size = 0  # one more than the largest id
        self._loading = threading.Lock()  # noqa: TID251 (no forked child serves)
        (empty,) = encoder.tokenize([""])["input_ids"]
        (single,) = encoder.tokenize(["a"])["input_ids"]
        same = zip(empty, single, strict=False)
        before = next((i for i, (a, b) in enumerate(same) if a != b), len(empty))
        self._prefix, self._suffix = empty[:before], empty[before:]

    def texts(self, ids: Sequence[Sequence[int]], param: str, task: str | None = None) -> list[str]:
        """The text of each list of ids; of a model with a Router for a ``task`` whose tokenizer is the default's.

        Raises:
            ApiError: 400, some ids are not those of a text; ``param`` and the index are named.
        """
        if (total := sum(map(len, ids))) > _MOST:
            raise ApiError(
                400,
                f"{param} holds {total:,} token ids; a request may hold {_MOST:,}. Send fewer, or texts",
                param=param,
            )
        contents = [self._content(list(row)) for row in ids]
        with self._loading:
            if not self._size:
                self._load()
                # once: tokenizers before 0.23 makes a map of the vocabulary whenever it is asked for its size
                known = (
                    range(len(self._tokens or ()))
                    if self._other is None
                    else self._other.get_vocab().values()
                )
                self._size = max(known, default=-1) + 1
        texts = []
        for index, content in enumerate(contents):
            text = self._decode(content)
            if text is None:
                raise _refused(f"{param}[{index}]", "holds an id outside this model's vocabulary")
            texts.append(text)
        engine = self._encoder._engine.of(task)
        length = self._encoder._length_on(engine)
        room = length - len(self._prefix) - len(self._suffix)
        for index, (content, again) in enumerate(zip(contents, engine.token_ids(texts, length), strict=True)):
            if self._content(again) not in (content[:room], content[-room:]):
                raise _refused(f"{param}[{index}]", "is not what this model's tokenizer makes of a text")
        return texts

    def _content(self, ids: list[int]) -> list[int]:
        """The ids without the special tokens around them."""
        before, after = len(self._prefix), len(self._suffix)
        if len(ids) >= before + after and ids[:before] == self._prefix:
            if not after:
                return ids[before:]
            if ids[-after:] == self._suffix:
                return ids[before:-after]
        return ids

    def _load(self) -> None:
        folder = self._encoder._engine.folder.transformer  # of the default route
        path = folder / "tokenizer.json"
        if not path.is_file():
            vocabulary = folder / "vocab.txt"
            if not vocabulary.is_file():
                raise ApiError(400, f"this model's tokenizer takes no token ids; {_HINT}", param="input")
            self._tokens = vocabulary.read_text(encoding="utf-8").split("\n")
            return
        content = json.loads(path.read_text(encoding="utf-8"))
        model = content.get("model", {})
        if model.get("continuing_subword_prefix") == "##":
            vocab: dict[str, int] = dict(model["vocab"])
            vocab.update({token["content"]: token["id"] for token in content.get("added_tokens", ())})
            tokens = [""] * (max(vocab.values()) + 1)
            for token, number in vocab.items():
                tokens[number] = token
            self._tokens = tokens
        else:
            try:
                import tokenizers
            except ImportError:
                raise ApiError(
                    400,
                    "token ids of this model need the package tokenizers beside the server (pip install tokenizers); "
                    f"{_HINT}",
                    param="input",
                ) from None
            self._other = tokenizers.Tokenizer.from_file(str(path))

    def _decode(self, ids: list[int]) -> str | None:
        """A text that might have these ids; None if one is outside the vocabulary."""
        if any(not 0 <= i < self._size for i in ids):
            return None
        if self._other is not None:
            return str(self._other.decode(ids, skip_special_tokens=False))
        assert self._tokens is not None
        text = ""
        for i in ids:
            token = self._tokens[i]
            text += token[2:] if token.startswith("##") else f" {token}" if text else token
        return text


def _refused(param: str, why: str) -> ApiError:
    return ApiError(400, f"{param} {why}. {_HINT}", param=param)
