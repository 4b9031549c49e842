"""What a tokenizer class of transformers makes of tokenizer.json: many take its vocabulary, and build the rest anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tokenizer_files import TokenizerSettings, typed

__all__ = [
    "BERT_CLASSES",
    "REBUILT",
    "default_tokens",
    "id_of",
    "is_wordpiece",
    "keeps_scores",
    "plain_step",
    "rebuild",
]

# Classes that build BertNormalizer, BertPreTokenizer and WordPiece from a vocab.txt. tokenizer_config.json and their
# own defaults make the normalizer.
BERT_CLASSES = {
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "MobileBertTokenizer",
    "MPNetTokenizer",
    "RetriBertTokenizer",
    "ConvBertTokenizer",
    "SqueezeBertTokenizer",
    "LayoutLMTokenizer",
    "LxmertTokenizer",
    "FunnelTokenizer",
}
_AROUND = "ConvBertTokenizer"  # takes all of tokenizer.json but its post-processor
REBUILT = BERT_CLASSES - {"RetriBertTokenizer", _AROUND}  # the former takes it as it is
_BYTE_LEVEL = {"RobertaTokenizer", "GPT2Tokenizer", "BartTokenizer", "LongformerTokenizer"}
_UNIGRAM = {"XLMRobertaTokenizer", "CamembertTokenizer", "AlbertTokenizer", "T5Tokenizer"}
_LLAMA = "LlamaTokenizer"
_BERT_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ROBERTA_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_ALBERT_TOKENS = {
    **_BERT_TOKENS,
    "bos_token": "[CLS]",
    "eos_token": "[SEP]",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
}
_TOKENS = {
    **dict.fromkeys(REBUILT | {_AROUND}, _BERT_TOKENS),
    **dict.fromkeys(_BYTE_LEVEL | _UNIGRAM, _ROBERTA_TOKENS),
    "MPNetTokenizer": {**_ROBERTA_TOKENS, "unk_token": "[UNK]"},
    "FunnelTokenizer": {**_ROBERTA_TOKENS, "sep_token": "<sep>", "cls_token": "<cls>"},
    "AlbertTokenizer": _ALBERT_TOKENS,
    "T5Tokenizer": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "GPT2Tokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
    "Qwen2Tokenizer": dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
    "GemmaTokenizer": {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
    _LLAMA: {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
}


def keeps_scores(kind: str) -> bool:
    """Whether the class ``kind`` builds its Unigram model from the scores as they are; a file's are rounded."""
    return kind in _UNIGRAM


def default_tokens(kind: str) -> dict[str, str]:
    """The tokens of the roles that a class has without settings; none of one that takes tokenizer.json as it is."""
    return _TOKENS.get(kind, {})


def is_wordpiece(model: Mapping[str, Any]) -> bool:
    """Whether the model of a tokenizer.json is WordPiece; files of old versions name no type."""
    return model.get("type", "WordPiece") == "WordPiece" and "max_input_chars_per_word" in model


def rebuild(content: dict[str, Any], settings: TokenizerSettings, kind: str, path: Path) -> dict[str, Any]:
    """The content of tokenizer.json with what the class ``kind`` of transformers (version 5) puts in its place.

    Args:
        content: of the file ``path``, not yet checked.
        settings: of the files beside it.
        kind: of the class; "" for one that takes the file as it is.
    """
    model = content.get("model")
    if not isinstance(model, dict):
        return content
    if kind in REBUILT and is_wordpiece(model):
        changes = _bert(content, model, settings, kind)
    elif kind == _AROUND:
        changes = _processor(content, settings, "BertProcessing", cls="[CLS]", sep="[SEP]")
    elif kind in _BYTE_LEVEL and model.get("type") == "BPE":
        changes = _byte_level(content, model, settings, kind)
    elif kind == _LLAMA and model.get("type") == "BPE" and model.get("byte_fallback") is True:
        changes = _llama(model, settings)
    elif kind in _UNIGRAM and model.get("type") == "Unigram":
        changes = _unigram(content, model, settings, kind, path)
    else:
        return content
    return {**content, **changes}


def plain_step(step: Any) -> Any:
    """A normalizer or pre-tokenizer in one spelling: versions of `tokenizers` write the same one differently."""
    if not isinstance(step, dict):
        return step
    kind = step.get("type")
    steps = step.get("normalizers", step.get("pretokenizers"))
    if kind == "Sequence" and isinstance(steps, list):
        plain = [plain_step(one) for one in steps]
        return plain[0] if len(plain) == 1 else {"type": kind, "steps": plain}
    if kind == "ByteLevel":
        return {"use_regex": True, **step, "trim_offsets": True}
    if kind == "Metaspace":
        scheme = "always" if step.get("add_prefix_space", True) else "never"
        kept = {name: value for name, value in step.items() if name not in ("add_prefix_space", "str_rep")}
        return {"prepend_scheme": scheme, "split": True, **kept}
    return step


def _bert(
    content: dict[str, Any], model: dict[str, Any], settings: TokenizerSettings, kind: str
) -> dict[str, Any]:
    tokens = default_tokens(kind)
    unknown = _token(settings, "unk_token", tokens["unk_token"])
    known = {"unk_token": unknown} if id_of(content, unknown) is not None else {}
    processor = "RobertaProcessing" if kind == "MPNetTokenizer" else "BertProcessing"
    return {
        "model": {**model, **known, "max_input_chars_per_word": 100, "continuing_subword_prefix": "##"},
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.flag("tokenize_chinese_chars", True),
            "strip_accents": settings.optional_flag("strip_accents"),
            "lowercase": settings.flag("do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        **_processor(content, settings, processor, cls=tokens["cls_token"], sep=tokens["sep_token"]),
    }


def _byte_level(
    content: dict[str, Any], model: dict[str, Any], settings: TokenizerSettings, kind: str
) -> dict[str, Any]:
    prefix = settings.flag("add_prefix_space", False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
    processor = _processor(content, settings, "RobertaProcessing", cls="<s>", sep="</s>")
    return {
        "model": {"type": "BPE", **{name: model[name] for name in ("vocab", "merges") if name in model}},
        "normalizer": None,
        "pre_tokenizer": byte_level,
        **({} if kind == "GPT2Tokenizer" else processor),
    }


def _llama(model: dict[str, Any], settings: TokenizerSettings) -> dict[str, Any]:
    legacy = "always" if settings.flag("legacy", False) else "first"
    scheme = legacy if settings.flag("add_prefix_space", True) else "never"
    kept = {name: model[name] for name in ("vocab", "merges") if name in model}
    return {
        "model": {"type": "BPE", "fuse_unk": True, "byte_fallback": True, **kept},
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False},
    }


def _unigram(
    content: dict[str, Any], model: dict[str, Any], settings: TokenizerSettings, kind: str, path: Path
) -> dict[str, Any]:
    written = typed(content, "normalizer", dict, {}, path)
    steps = typed(written, "normalizers", list, [], path) if written.get("type") == "Sequence" else [written]
    charsmap = [step for step in steps if isinstance(step, dict) and step.get("type") == "Precompiled"][:1]
    prefix = kind == "T5Tokenizer" or settings.flag("add_prefix_space", True)
    scheme = "always" if prefix else "never"
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    unknown: int | None = 3
    if kind == "AlbertTokenizer":
        unknown = 1
        quotes = [{"type": "Replace", "pattern": {"String": text}, "content": '"'} for text in ("``", "''")]
        accents = [] if settings.flag("keep_accents", False) else [{"type": "NFKD"}, {"type": "StripAccents"}]
        lower = [{"type": "Lowercase"}] if settings.flag("do_lower_case", True) else []
        steps = [*quotes, *accents, *lower, *charsmap]
        processor = {}
        if content.get("post_processor") is None:
            processor = _processor(content, settings, "BertProcessing", cls="[CLS]", sep="[SEP]")
    elif kind == "T5Tokenizer":
        steps, unknown, processor = charsmap, 2, _ended(content, settings)
    else:
        steps = charsmap
        processor = _processor(
            content, settings, "RobertaProcessing", cls="<s>", sep="</s>", roles=("bos_token", "eos_token")
        )
        if kind == "CamembertTokenizer":
            unknown = id_of(content, _token(settings, "unk_token", "<unk>"))
    return {
        "model": {**model, "unk_id": unknown or 0, "byte_fallback": False},
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        **processor,
    }


def _processor(
    content: dict[str, Any],
    settings: TokenizerSettings,
    kind: str,
    *,
    cls: str,
    sep: str,
    roles: tuple[str, str] = ("cls_token", "sep_token"),
) -> dict[str, Any]:
    """The post-processor around one text and two, with the tokens of two roles, or these.

    Nothing if the vocabulary has them not: transformers gives them new ids, for which the model has no embedding.
    """
    names = [_token(settings, role, default) for role, default in zip(roles, (cls, sep), strict=True)]
    before, after = ((name, id_of(content, name)) for name in names)
    if before[1] is None or after[1] is None:
        return {}
    made: dict[str, Any] = {"type": kind, "cls": [*before], "sep": [*after]}
    if kind == "RobertaProcessing":
        made |= {"trim_offsets": True, "add_prefix_space": False}
    return {"post_processor": made}


def _ended(content: dict[str, Any], settings: TokenizerSettings) -> dict[str, Any]:
    """T5's post-processor: the token at the end after each text; nothing if the vocabulary has it not."""
    end = id_of(content, _token(settings, "eos_token", "</s>"))
    if end is None:
        return {}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    token = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    return {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, token],
            "pair": [first, token, second, token],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [end], "tokens": ["</s>"]}},
        }
    }


def _token(settings: TokenizerSettings, role: str, default: str) -> str:
    token = settings.token(role, default)
    return default if token is None else str(token["content"])


def id_of(content: Mapping[str, Any], token: str) -> int | None:
    """The id of a token in the vocabulary, or among the added tokens."""
    vocab = content["model"].get("vocab")
    if isinstance(vocab, dict) and type(vocab.get(token)) is int:
        return int(vocab[token])
    if isinstance(vocab, list):  # of Unigram, with scores
        for at, row in enumerate(vocab):
            if isinstance(row, list) and row[:1] == [token]:
                return at
    added = content.get("added_tokens")
    for row in added if isinstance(added, list) else []:
        if isinstance(row, dict) and row.get("content") == token and type(row.get("id")) is int:
            return int(row["id"])
    return None
