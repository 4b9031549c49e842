"""The tokenizer of a model folder: the core's if possible, otherwise the `tokenizers` package."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from .. import _core
from .json_file import present, read_json
from .rebuilt import BERT_CLASSES, default_tokens, id_of, is_wordpiece, keeps_scores, plain_step, rebuild
from .subword import UnknownToCore, added_ids, subword_core
from .tokenizer_files import ROLES, TokenizerSettings, added_token, check_types, damaged, template_ids, typed

__all__ = ["Tokenizer", "changes_beside", "load_tokenizer", "vocabulary_tokens"]

_CHUNK = 128  # texts passed to `tokenizers` at once: Ctrl-C waits until it returns
_ENDED = ("GemmaTokenizer", "LlamaTokenizer")  # of transformers 4, with a template of settings
_ENDED_BY_CODE = ("Qwen2Tokenizer",)  # by code of the model's own: gte-Qwen2


@dataclass(frozen=True)
class Tokenizer:
    """Text to content ids, and the special ids around them.

    Attributes:
        core: the compiled tokenizer; None if `encode_batch` uses the `tokenizers` package.
        prefix_ids: added before the content ids of a text ([CLS]).
        suffix_ids: added after them ([SEP]).
        truncation_side: the end at which a long text is cut.
        model_max_length: of tokenizer_config.json, in tokens including prefix and suffix; None without a limit.
        truncation_max_length: of the truncation in tokenizer.json, which is not applied here; None if unset.
        pad_id: id of the padding token; None if there is none.
        vocab_size: the highest id, including added tokens, plus one.
        unknown_id: id of the token for words that are not in the vocabulary; None if there is none.
    """

    core: _core.Tokenizer | None
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    truncation_side: Literal["left", "right"]
    model_max_length: int | None
    truncation_max_length: int | None
    pad_id: int | None
    vocab_size: int
    _other: Any = field(default=None, repr=False)  # a tokenizers.Tokenizer
    unknown_id: int | None = None

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The content ids of each text, without prefix and suffix, not truncated.

        Raises:
            TypeError: a text is not str.
            ValueError: a text contains a lone surrogate, or the `tokenizers` package fails.
        """
        if self.core is not None:
            return self.core.encode_batch(list(texts))
        ids: list[list[int]] = []
        for start in range(0, len(texts), _CHUNK):
            chunk = list(texts[start : start + _CHUNK])
            try:
                encodings = self._other.encode_batch_fast(chunk, add_special_tokens=False)
            except BaseException as error:
                if isinstance(error, TypeError) or not _of_tokenizers(error):
                    raise
                raise ValueError(
                    f"the tokenizers package fails on one of texts[{start}:{start + len(chunk)}] with the model's "
                    f"tokenizer.json: {error}"
                ) from error
            ids += [encoding.ids for encoding in encodings]
        return ids


def load_tokenizer(
    folder: str | Path, *, lowercase_first: bool = False, static: bool = False, vectors: int | None = None
) -> Tokenizer:
    """Read the tokenizer of a model folder: tokenizer.json or, without it, vocab.txt.

    The ids are those of transformers, which combines tokenizer.json with the settings beside it. DeBERTa's are those of
    tokenizer.json, as the models were trained: version 5 of transformers leaves its normalization (NFKC) out.

    Args:
        folder: contains the tokenizer's files.
        lowercase_first: `do_lower_case` of sentence_bert_config.json: text is lower-cased before the
            tokenizer's own normalization (added tokens of the text are found before that).
        static: of a static model, which takes tokenizer.json alone.
        vectors: the tokens that the model has vectors for. An added token of tokenizer.json with a higher id is not
            looked for, so that it is ordinary text (EmbeddingGemma's `<image_soft_token>`). None: all are looked for.

    Raises:
        FileNotFoundError: neither file exists.
        ValueError: a file is damaged or not supported; the message names it.
        ImportError: the core does not know the tokenizer and the `tokenizers` package is missing.
    """
    folder = Path(folder)
    settings = TokenizerSettings(folder)
    if not static and settings.class_of_transformers == "RoFormerTokenizer":
        # Its tokenizer.json does not show this: by that file alone, Chinese text would get other ids.
        raise ValueError(
            f"{settings.path}: RoFormerTokenizer segments Chinese words with jieba, which embedkit does not support. "
            "Use a model with a character tokenizer (tokenizer_class BertTokenizer)."
        )
    if settings.flag("split_special_tokens", False):
        raise ValueError(
            f"{settings.path}: split_special_tokens is true, which embedkit does not apply; set it to false, or use "
            "sentence-transformers for this model"
        )
    path = folder / "tokenizer.json"
    if present(path):
        return _from_json(path, settings, lowercase_first, static, vectors)
    vocabulary = folder / "vocab.txt"
    if present(vocabulary):
        return _from_vocabulary(vocabulary, settings, lowercase_first)
    raise FileNotFoundError(
        f"{folder} holds neither tokenizer.json nor vocab.txt. Save the tokenizer there: "
        f"transformers.AutoTokenizer.from_pretrained(MODEL).save_pretrained({str(folder)!r})"
    )


def token_ids(folder: Path, tokens: Sequence[str]) -> list[int | None]:
    """The ids of tokens in the vocabulary of a folder's tokenizer.json; None for those that are not there."""
    path = folder / "tokenizer.json"
    if not present(path):
        return [None] * len(tokens)
    settings = TokenizerSettings(folder)
    content = rebuild(read_json(path), settings, settings.class_of_transformers, path)
    try:
        vocabulary = content["model"]["vocab"]
        if not isinstance(vocabulary, dict):  # Unigram's list of pieces
            vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
        added = {entry["content"]: entry["id"] for entry in content.get("added_tokens") or ()}
        found = [added.get(token, vocabulary.get(token)) for token in tokens]
        return [None if place is None else int(place) for place in found]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"the vocabulary is incomplete ({error!r})") from None


def changes_beside(folder: Path) -> dict[str, Any]:
    """What the settings beside tokenizer.json make otherwise than it says, in the form of JSON; mostly nothing.

    Raises:
        ValueError: a file is damaged.
    """
    path = folder / "tokenizer.json"
    settings = TokenizerSettings(folder)
    kind = settings.class_of_transformers
    written = read_json(path)
    made = rebuild(written, settings, kind, path)
    changes = {
        name: plain_step(made.get(name))
        for name in ("normalizer", "pre_tokenizer")
        if plain_step(made.get(name)) != plain_step(written.get(name))
    }
    model = typed(made, "model", dict, None, path)
    if fields := _other_fields(model, written["model"]):
        changes["model"] = fields
    ids = _ids_around(made, settings, path)
    try:
        same = ids == template_ids(written.get("post_processor"), path)
    except ValueError:  # one that is replaced need not be known
        same = False
    if not same:
        changes["ids"] = ids
    truncation = typed(written, "truncation", dict, {}, path)
    if settings.truncation_side(typed(truncation, "direction", str, "right", path)) == "left":
        changes["truncation_side"] = "left"
    if missing := _missing_tokens(settings, kind, _added(written, path), model):
        changes["added_tokens"] = missing
    return changes


def _other_fields(made: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a model that are not as written, its tokens aside; one that is left out is as one of null."""

    def plain(model: Mapping[str, Any], name: str) -> Any:
        value = model.get(name)
        return value if type(value) is int else value or None

    # The unknown token of a BPE that a class builds is never needed: its vocabulary has the bytes.
    aside = {"vocab", "merges", *(("unk_token",) if made.get("type") == "BPE" else ())}
    names = sorted({*made, *written} - aside)
    return {name: made.get(name) for name in names if plain(made, name) != plain(written, name)}


def vocabulary_tokens(
    settings: TokenizerSettings, vocabulary: Collection[str]
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """The tokens of the roles and all added tokens of a tokenizer without tokenizer.json."""
    defaults = default_tokens(settings.class_of_transformers) or default_tokens("BertTokenizer")
    found = {name: settings.token(name, default) for name, default in defaults.items()}
    roles = {name: token for name, token in found.items() if token is not None}
    return roles, _added_of_settings(settings, list(roles.values()), vocabulary)


def _added(content: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    tokens = typed(content, "added_tokens", list, [], path)
    return [added_token(token, path, special=False) for token in tokens]


@dataclass
class _Normalizer:
    """The options of BertNormalizer."""

    clean_text: bool = True
    handle_chinese_chars: bool = True
    strip_accents: bool | None = None
    lowercase: bool = True
    lowercase_first: bool = False  # a Lowercase normalizer before this one

    def override(self, settings: TokenizerSettings) -> None:
        """Apply the settings with which transformers overrides tokenizer.json."""
        self.lowercase = settings.flag("do_lower_case", self.lowercase)
        self.handle_chinese_chars = settings.flag("tokenize_chinese_chars", self.handle_chinese_chars)
        if "strip_accents" in settings.values:
            self.strip_accents = settings.optional_flag("strip_accents")

    def core_options(self) -> dict[str, bool]:
        return {
            "clean_text": self.clean_text,
            "handle_chinese_chars": self.handle_chinese_chars,
            "strip_accents": self.lowercase if self.strip_accents is None else self.strip_accents,
            # Lower-casing before or after the other steps has the same result for every code point.
            "lowercase": self.lowercase or self.lowercase_first,
        }


def _from_json(
    path: Path, settings: TokenizerSettings, lowercase_first: bool, static: bool, vectors: int | None
) -> Tokenizer:
    kind = "" if static else settings.class_of_transformers
    content = rebuild(read_json(path), settings, kind, path)
    model = typed(content, "model", dict, None, path)
    truncation = typed(content, "truncation", dict, {}, path)
    limit = truncation.get("max_length")
    if limit is not None and (type(limit) is not int or limit < 0):
        raise damaged(path, f'"max_length" of the truncation is {limit!r}')
    side = settings.truncation_side(typed(truncation, "direction", str, "right", path))
    padding = typed(content, "padding", dict, {}, path)
    if static:
        prefix, suffix = template_ids(content.get("post_processor"), path)
    else:
        prefix, suffix = _ids_around(content, settings, path)
    if not static and settings.uses_token_types(kind):
        check_types(content.get("post_processor"), path)
    padding_token = settings.token("pad_token")
    pad_id = padding.get("pad_id")
    normalizer = _bert_normalizer(content, path)
    added = _added(content, path)
    missing = [] if static else _missing_tokens(settings, kind, added, model)
    added += missing
    if vectors is not None and (unknown := _without_vector(added, model, vectors)):
        added = [token for token in added if token["content"] not in unknown]
        missing = [token for token in missing if token["content"] not in unknown]
        kept = [
            token
            for token in content.get("added_tokens") or ()
            if (token if isinstance(token, str) else token["content"]) not in unknown
        ]
        content = {**content, "added_tokens": kept}
    core: _core.Tokenizer | None = None
    other = None
    if normalizer is not None and is_wordpiece(model):
        normalizer.lowercase_first |= lowercase_first
        vocab = _checked_vocabulary(model.get("vocab"), path)
        core, ids_of_added = _build(vocab, added, model, normalizer, path)
        ids = {**vocab, **ids_of_added}
        size = max(ids.values()) + 1
    else:
        try:
            if model.get("type") not in ("BPE", "Unigram"):
                raise UnknownToCore("another model")
            core, ids, size = subword_core(
                content, added, path, lowercase_first=lowercase_first, rounded=not keeps_scores(kind)
            )
        except UnknownToCore:
            other = _load_other(path, content, missing, lowercase_first)
            ids = other.get_vocab(with_added_tokens=True)
            size = max(ids.values(), default=-1) + 1
    if padding_token is not None:
        pad_id = ids.get(padding_token["content"])
    if pad_id is not None and type(pad_id) is not int:
        raise damaged(path, f'"pad_id" is {pad_id!r}, not an integer')
    if pad_id is not None and vectors is not None and pad_id >= vectors:
        pad_id = None
    _check_ids((*prefix, *suffix), size, path)
    return Tokenizer(
        core,
        prefix,
        suffix,
        side,
        settings.model_max_length,
        limit,
        pad_id,
        size,
        other,
        unknown_id=_unknown_id(model, ids),
    )


def _without_vector(added: list[dict[str, Any]], model: Mapping[str, Any], vectors: int) -> set[str]:
    """The added tokens whose ids are not below ``vectors``; none of a damaged vocabulary, which is refused later."""
    vocab: Any = model.get("vocab")
    try:
        if len(vocab) + len(added) <= vectors:  # mostly so; else Unigram's rows have to become a table
            return set()
        ids = vocab if isinstance(vocab, dict) else {row[0]: i for i, row in enumerate(vocab)}
        found, _ = added_ids(added, ids, len(vocab))
        return {content for content, i in found.items() if i >= vectors}
    except (ValueError, TypeError, IndexError, KeyError):
        return set()


def _ids_around(
    content: Mapping[str, Any], settings: TokenizerSettings, path: Path
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids before and after a text, of the template in ``content`` and of ``add_eos_token``.

    transformers 5 drops that setting. Models whose template lacks the token were trained with it, by transformers 4,
    and pool its vector (e5-mistral), or by code of their own.
    """
    prefix, suffix = template_ids(content.get("post_processor"), path)
    ended = _ENDED + _ENDED_BY_CODE if settings.has_own_code else _ENDED
    if settings.tokenizer_class in ended and settings.optional_flag("add_eos_token"):
        token = settings.token("eos_token")
        end = None if token is None else id_of(content, token["content"])
        if end is None:
            raise damaged(settings.path, '"add_eos_token" is true, and the vocabulary has no "eos_token"')
        if suffix[-1:] != (end,):
            suffix = (*suffix, end)
    return prefix, suffix


def _missing_tokens(
    settings: TokenizerSettings, kind: str, added: list[dict[str, Any]], model: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The added tokens that the settings have and tokenizer.json has not; ``kind`` is the tokenizer's class."""
    known = {token["content"] for token in added}
    defaults = default_tokens(kind)
    roles = [token for name in ROLES if (token := settings.token(name, defaults.get(name))) is not None]
    vocab: Any = model.get("vocab")
    if isinstance(vocab, list):  # of Unigram, with scores; checked later
        vocab = {row[0] for row in vocab if isinstance(row, list) and row and isinstance(row[0], str)}
    elif not isinstance(vocab, dict):
        vocab = ()
    # One that the vocabulary has not either would need an embedding that the model rarely has.
    missing = [token for token in roles if token["content"] not in known and token["content"] in vocab]
    return [token for token in _added_of_settings(settings, missing, vocab) if token["content"] not in known]


def _unknown_id(model: Mapping[str, Any], ids: Mapping[str, int]) -> int | None:
    """The id of the model's unknown token, by its name or, in Unigram models, by number."""
    name, number = model.get("unk_token", "[UNK]" if is_wordpiece(model) else None), model.get("unk_id")
    if isinstance(name, str):
        return ids.get(name)
    return number if type(number) is int else None


def _from_vocabulary(path: Path, settings: TokenizerSettings, lowercase_first: bool) -> Tokenizer:
    kind = settings.class_of_transformers
    if kind and kind not in BERT_CLASSES and kind not in ("PreTrainedTokenizer", "TokenizersBackend"):
        raise ValueError(
            f"{settings.path}: a {kind} cannot be built from vocab.txt here. Save it as tokenizer.json: "
            f"transformers.AutoTokenizer.from_pretrained({str(path.parent)!r}).save_pretrained(FOLDER)"
        )
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise damaged(path, f"not UTF-8 ({error})") from None
    if lines[-1] == "":
        lines.pop()
    # As in transformers, the last of duplicate lines counts.
    vocab = {token: i for i, token in enumerate(lines)}
    roles, added = vocabulary_tokens(settings, vocab)
    contents = {name: token["content"] for name, token in roles.items()}
    normalizer = _Normalizer(lowercase_first=lowercase_first)
    normalizer.override(settings)
    core, ids_of_added = _build(vocab, added, {"unk_token": contents["unk_token"]}, normalizer, path)
    prefix, suffix = (ids_of_added[contents["cls_token"]],), (ids_of_added[contents["sep_token"]],)
    pad_id = ids_of_added[contents["pad_token"]]
    size = max(len(lines), max(ids_of_added.values()) + 1)
    side = settings.truncation_side()
    unknown_id = vocab.get(contents["unk_token"])
    return Tokenizer(
        core, prefix, suffix, side, settings.model_max_length, None, pad_id, size, unknown_id=unknown_id
    )


def _build(
    vocab: Mapping[str, int],
    added: list[dict[str, Any]],
    model: Mapping[str, Any],
    normalizer: _Normalizer,
    path: Path,
) -> tuple[_core.WordPiece, dict[str, int]]:
    """The core, and the id of each added token."""
    tokens = [""] * (max(vocab.values(), default=-1) + 1)  # an empty string is an unused id
    for token, i in vocab.items():
        tokens[i] = token
    limit = typed(model, "max_input_chars_per_word", int, 100, path)
    if limit < 0:
        raise damaged(path, f'"max_input_chars_per_word" is {limit}')
    try:
        ids, flagged = added_ids(added, vocab, len(vocab))
        core = _core.WordPiece(
            tokens,
            [_core.AddedToken(**token) for token in flagged],
            **normalizer.core_options(),
            unknown_token=typed(model, "unk_token", str, "[UNK]", path),
            continuing_prefix=typed(model, "continuing_subword_prefix", str, "##", path),
            max_chars_per_word=limit,
        )
    except (ValueError, TypeError) as error:  # a surrogate in a token raises ValueError
        raise damaged(path, str(error)) from None
    return core, ids


def _checked_vocabulary(vocab: Any, path: Path) -> dict[str, int]:
    """The vocabulary of a WordPiece model; an id may be missing, as of a vocab.txt that repeats a line."""
    if not isinstance(vocab, dict) or not vocab:
        raise damaged(path, 'there is no vocabulary in "model"')
    ids = list(vocab.values())
    if set(map(type, ids)) != {int}:
        token = next(token for token, i in vocab.items() if type(i) is not int)
        raise damaged(path, f"the id of the token {token!r:.80} is {vocab[token]!r:.80}, not an integer")
    ids.sort()
    repeated = next((i for i, following in pairwise(ids) if i == following), None)
    strange = next((i for i in (ids[0], ids[-1]) if not 0 <= i < 2 * len(ids)), None)
    if repeated is not None or strange is not None:
        problem = f"has the id {strange}" if repeated is None else f"has the id {repeated} twice"
        raise damaged(path, f"the vocabulary of {len(ids)} tokens {problem}")
    return vocab


def _bert_normalizer(content: Mapping[str, Any], path: Path) -> _Normalizer | None:
    """The normalizer, if it and the pre-tokenizer are those of BERT."""
    pre_tokenizer = typed(content, "pre_tokenizer", dict, {}, path)
    value = typed(content, "normalizer", dict, {}, path)
    if pre_tokenizer.get("type") != "BertPreTokenizer":
        return None
    lowercase_first = False
    if value.get("type") == "Sequence":
        steps = typed(value, "normalizers", list, [], path)
        if not steps or any(step != {"type": "Lowercase"} for step in steps[:-1]):
            return None
        lowercase_first = len(steps) > 1
        value = steps[-1]
    if not isinstance(value, dict) or value.get("type") != "BertNormalizer":
        return None
    strip_accents = value.get("strip_accents")
    return _Normalizer(
        clean_text=typed(value, "clean_text", bool, True, path),
        handle_chinese_chars=typed(value, "handle_chinese_chars", bool, True, path),
        strip_accents=None if strip_accents is None else typed(value, "strip_accents", bool, None, path),
        lowercase=typed(value, "lowercase", bool, True, path),
        lowercase_first=lowercase_first,
    )


def _load_other(
    path: Path, content: Mapping[str, Any], missing: list[dict[str, Any]], lowercase_first: bool
) -> Any:
    """The tokenizer of the `tokenizers` package; ``content`` is that of the file, ``missing`` tokens to add."""
    try:
        import tokenizers
        from tokenizers import normalizers
    except ImportError as error:
        raise ImportError(
            f"{path} holds a tokenizer that embedkit's core does not know: it runs with the `tokenizers` "
            "package, which is not installed: pip install tokenizers"
        ) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
        tokenizer.add_tokens([tokenizers.AddedToken(**token) for token in missing])
    except BaseException as error:
        if not _of_tokenizers(error):
            raise
        raise damaged(path, str(error)) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if lowercase_first:
        steps = [normalizers.Lowercase()]
        if tokenizer.normalizer is not None:
            steps.append(tokenizer.normalizer)
        tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _of_tokenizers(error: BaseException) -> bool:
    """Whether it is of the `tokenizers` package, and not of Ctrl-C or a signal's handler.

    The package raises `Exception` itself, built-in ones for wrong arguments, and panics that derive from BaseException.
    """
    panic = type(error).__module__ == "pyo3_runtime"
    return panic or type(error) is Exception or isinstance(error, (TypeError, ValueError, RecursionError))


def _added_of_settings(
    settings: TokenizerSettings, roles: list[dict[str, Any]], vocabulary: Collection[str]
) -> list[dict[str, Any]]:
    """The added tokens of the files beside tokenizer.json, in the order in which they get new ids."""
    path = settings.path
    decoder = typed(settings.values, "added_tokens_decoder", dict, {}, path)
    try:
        listed = [decoder[key] for key in sorted(decoder, key=int)]
    except ValueError:
        raise damaged(path, 'a key of "added_tokens_decoder" is not an integer') from None
    added = [added_token(token, path, special=False) for token in listed]
    if any(type(i) is not int for i in settings.added.values()):
        raise damaged(settings.added_path, "an id is not an integer")
    if "added_tokens_decoder" not in settings.values:  # beside which transformers reads no older file
        for content in sorted(settings.added, key=settings.added.__getitem__):
            added.append(added_token(content, settings.added_path, special=False))
    named = {token["content"] for token in added}
    for token in [*roles, *settings.special_tokens(vocabulary)]:
        if token["content"] not in named:
            named.add(token["content"])
            added.append(token)
    return added


def _check_ids(ids: tuple[int, ...], size: int, path: Path) -> None:
    for i in ids:
        if not 0 <= i < size:
            raise damaged(path, f"the post-processor adds the id {i}; the vocabulary ends at {size - 1}")
