"""Tokenizers that a class of transformers builds anew, whatever tokenizer.json says beside its vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from subword_families import MARKED, charsmap, family
from tokenizer_pair import Pair, special, subword_vocabulary
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from embedkit.model_folder.pair_template import read_pair_template
from embedkit.model_folder.tokenizer import changes_beside, load_tokenizer
from embedkit.model_folder.tokenizer_files import TokenizerSettings

BRACKETED = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "unk", "pad", "mask")}
CHARSMAP = charsmap({"\n": " ", "\u3000": " ", "\u2581": " "})


def write(folder: Path, tokenizer: dict[str, Any], **configs: dict[str, Any]) -> None:
    for name, config in {"tokenizer": tokenizer, **configs}.items():
        (folder / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")


def unigram_file() -> dict[str, Any]:
    """Metaspace without WhitespaceSplit, and spaces made one, as in files that transformers 4 converted."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[CLS]", "[SEP]", "[MASK]", MARKED]
    scores = [(piece, 0.0) for piece in pieces[:-1]] + [(MARKED, -2.0)]
    tokenizer = Tokenizer(models.Unigram([*scores, *((c, -3.0) for c in "abcTé\"'")], unk_id=3))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(CHARSMAP), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return json.loads(tokenizer.to_str())


def byte_level_file() -> dict[str, Any]:
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=True)])
    return json.loads(tokenizer.to_str())


def llama_file() -> dict[str, Any]:
    """As transformers 4 converted Llama's SentencePiece model: a normalizer that marks spaces, no pre-tokenizer."""
    names = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        MARKED,
        *"abcThe lirofCngsx",
        "<mask>",
    ]
    vocab = {name: i for i, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(MARKED), normalizers.Replace(" ", MARKED)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return json.loads(tokenizer.to_str())


def wordpiece_file() -> dict[str, Any]:
    written = json.loads(Pair(subword_vocabulary(), special()).reference.to_str())
    written["model"] = {**written["model"], "max_input_chars_per_word": 3, "continuing_subword_prefix": "@"}
    return {**written, "normalizer": None}


def test_another_spelling_is_no_other_tokenizer(tmp_path: Path) -> None:
    """What versions of `tokenizers` wrote for XLM-R and RoBERTa: models keep their fingerprints."""
    written = unigram_file()
    metaspace = {"type": "Metaspace", "replacement": MARKED, "str_rep": MARKED, "add_prefix_space": True}
    steps = [{"type": "WhitespaceSplit"}, metaspace]
    written["normalizer"] = written["normalizer"]["normalizers"][0]
    written["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    settings = {"tokenizer_class": "XLMRobertaTokenizer"}
    write(tmp_path, written, tokenizer_config=settings, config={"model_type": "xlm-roberta"})
    changes = changes_beside(tmp_path)
    assert not {"normalizer", "pre_tokenizer"} & changes.keys()
    written = byte_level_file()
    written["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    written["normalizer"] = None
    settings = {"tokenizer_class": "RobertaTokenizer"}
    write(tmp_path, written, tokenizer_config=settings, config={"model_type": "roberta"})
    assert not {"normalizer", "pre_tokenizer"} & changes_beside(tmp_path).keys()
    written["pre_tokenizer"]["add_prefix_space"] = True  # which the class does not take from there
    write(tmp_path, written, tokenizer_config=settings)
    assert "pre_tokenizer" in changes_beside(tmp_path)


@pytest.mark.parametrize("processor", [None, "other"])
@pytest.mark.parametrize(
    ("kind", "model_type", "settings"),
    [
        ("XLMRobertaTokenizer", "xlm-roberta", {}),
        ("XLMRobertaTokenizer", "xlm-roberta", {"bos_token": "</s>", "add_prefix_space": False}),
        (None, "xlm-roberta", {}),
        ("CamembertTokenizer", "camembert", {}),
        (None, "camembert", {}),
        ("AlbertTokenizer", "albert", {}),
        ("AlbertTokenizer", "albert", {"do_lower_case": False, "keep_accents": True}),
        (None, "albert", {}),
        ("T5Tokenizer", "t5", {}),
        ("T5TokenizerFast", "mt5", {"eos_token": "<mask>", "add_prefix_space": False}),
        (None, "t5", {}),
        (None, "mt5", {}),
        (None, "gte", {}),
        ("RobertaTokenizer", "roberta", {}),
        ("BartTokenizer", "roberta", {"cls_token": "<mask>"}),
        ("GPT2Tokenizer", "roberta", {}),
        ("BertTokenizer", "bert", {}),
        ("BertTokenizer", "bert", {"cls_token": "[MASK]", "unk_token": "[PAD]"}),
        ("ConvBertTokenizer", "bert", {}),
        ("ConvBertTokenizerFast", "bert", {"cls_token": "[MASK]"}),
        ("FunnelTokenizer", "bert", {**BRACKETED, "bos_token": "[CLS]", "eos_token": "[SEP]"}),
        ("PreTrainedTokenizerFast", "xlm-roberta", {}),
        ("LlamaTokenizer", "llama", {}),
        ("LlamaTokenizerFast", "llama", {"legacy": True}),
        ("LlamaTokenizer", "llama", {"add_prefix_space": False}),
        ("LlamaTokenizer", "mistral", {"legacy": False}),
        ("PreTrainedTokenizerFast", "llama", {}),
    ],
)
def test_what_a_class_builds_anew_against_transformers(
    tmp_path: Path, kind: str | None, model_type: str, settings: dict[str, Any], processor: str | None
) -> None:
    """Of tokenizer.json it takes the vocabulary: not another normalizer, pre-tokenizer or post-processor."""
    transformers = pytest.importorskip("transformers")
    files = {
        "roberta": byte_level_file, "bert": wordpiece_file, "llama": llama_file, "mistral": llama_file
    }  # fmt: skip
    written = files.get(model_type, unigram_file)()
    if processor is not None:
        mask, i = ("[MASK]", 4) if model_type == "bert" else ("<mask>", 4)
        processing = processors.TemplateProcessing(
            single=f"{mask} $A", pair=f"{mask} $A {mask} $B", special_tokens=[(mask, i)]
        )
        written["post_processor"] = json.loads(processing.__getstate__())
    named = {**settings, **({"tokenizer_class": kind} if kind else {})}
    write(tmp_path, written, tokenizer_config=named, config={"model_type": model_type})
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["ab c", "ab  c \n", "", " a", "  a", "T``é''", "The library of Congress", "x\u3000y", "\u2581a"]
    texts += [
        "a</s>b <mask>",
        "<s>a<pad> <unk>",
        "a[CLS]b [MASK]",
        "[SEP]c[PAD][UNK]",
    ]  # roles without settings
    loaded = load_tokenizer(tmp_path)
    found = [[*loaded.prefix_ids, *ids, *loaded.suffix_ids] for ids in loaded.encode_batch(texts)]
    assert found == [expected(text)["input_ids"] for text in texts]
    pair = read_pair_template(tmp_path, loaded)
    first, second = loaded.encode_batch(["ab", "c"])
    whole = [*pair.before, *first, *pair.between, *second, *pair.after]
    assert whole == expected("ab", "c")["input_ids"]


@pytest.mark.parametrize(
    ("kind", "model_type"),
    [
        ("XLMRobertaTokenizer", "xlm-roberta"),
        ("AlbertTokenizer", "albert"),
        ("PreTrainedTokenizerFast", "bert"),
    ],
)
def test_scores_are_as_exact_as_the_class_has_them(tmp_path: Path, kind: str, model_type: str) -> None:
    """Paths of the same pieces in another order differ in the last bit of their sums, and it decides."""
    transformers = pytest.importorskip("transformers")
    content = unigram_file()
    random = Random(kind)
    pieces = [mark + "=" * n for n in (1, 2, 3, 4, 5, 8) for mark in ("", MARKED)]
    differ = 0
    for _ in range(20):
        scores = [(piece, float(np.float32(-random.uniform(5, 13)))) for piece in pieces]
        tokenizer = {**content, "model": {**content["model"], "vocab": content["model"]["vocab"] + scores}}
        write(
            tmp_path,
            tokenizer,
            tokenizer_config={"tokenizer_class": kind},
            config={"model_type": model_type},
        )
        runs = ["=" * n for n in range(1, 60)]
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(runs, add_special_tokens=False)
        assert load_tokenizer(tmp_path).encode_batch(runs) == theirs["input_ids"]
        file = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        differ += theirs["input_ids"] != [
            one.ids for one in file.encode_batch(runs, add_special_tokens=False)
        ]
    assert (differ > 0) == (kind != "PreTrainedTokenizerFast")


def test_debertas_text_is_normalized_as_its_file_says(tmp_path: Path) -> None:
    """The models were trained so; version 5 of transformers leaves NFKC out."""
    settings = {"tokenizer_class": "DebertaV2Tokenizer"}
    write(tmp_path, family("deberta"), tokenizer_config=settings, config={"model_type": "deberta-v2"})
    written = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = ["a library \u00bd", "\uff4c\uff49\uff42", "a\u00a0b", "\u2026 \u2122"]
    ids = [written.encode(text, add_special_tokens=False).ids for text in texts]
    assert load_tokenizer(tmp_path).encode_batch(texts) == ids
    assert "normalizer" not in changes_beside(tmp_path)


@pytest.mark.parametrize(
    "kind,model_type,typed",
    [
        ("DebertaV2Tokenizer", "deberta-v2", True),
        ("", "deberta-v2", True),
        ("", "ernie", True),
        ("", "data2vec-text", False),
        ("", "t5", False),
    ],
)
def test_token_types_of_the_class_or_the_model_type(
    tmp_path: Path, kind: str, model_type: str, typed: bool
) -> None:
    named = {"tokenizer_class": kind} if kind else {}
    write(tmp_path, wordpiece_file(), tokenizer_config=named, config={"model_type": model_type})
    settings = TokenizerSettings(tmp_path)
    assert settings.uses_token_types(settings.class_of_transformers) == typed


@pytest.mark.parametrize(
    ("kind", "model_type", "token"),
    [
        ("GemmaTokenizer", "gemma3_text", "<mask>"),
        (None, "gemma3_text", "<mask>"),
        ("Qwen2Tokenizer", "qwen3", "<|endoftext|>"),
        (None, "qwen3", "<|endoftext|>"),
        (None, "qwen2", "<|endoftext|>"),
        ("GPT2Tokenizer", "qwen2", "<|endoftext|>"),
        ("PreTrainedTokenizerFast", "qwen2", "<|endoftext|>"),
    ],
)
def test_tokens_of_the_class_in_the_vocabulary_alone(
    tmp_path: Path, kind: str | None, model_type: str, token: str
) -> None:
    """No list of added tokens has them."""
    transformers = pytest.importorskip("transformers")
    if model_type == "gemma3_text":
        names = [
            "<pad>",
            "<eos>",
            "<bos>",
            "<unk>",
            "<mask>",
            *(f"<0x{i:02X}>" for i in range(256)),
            MARKED,
            *"ab",
        ]
        model = models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True, fuse_unk=True)
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.Replace(" ", MARKED)
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        names = [token, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    settings = {"tokenizer_class": kind} if kind else {}
    write(
        tmp_path, json.loads(tokenizer.to_str()), tokenizer_config=settings, config={"model_type": model_type}
    )
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [f"a {token}b", token, "ab"]
    assert (
        load_tokenizer(tmp_path).encode_batch(texts) == expected(texts, add_special_tokens=False)["input_ids"]
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"extra_ids": 1},
        {"extra_special_tokens": {"my_token": "<pad>"}},
        {"extra_special_tokens": ["<pad>"]},
        {"extra_special_tokens": None},
        {"additional_special_tokens": ["<extra_id_1>"], "extra_ids": 1},
    ],
)
@pytest.mark.parametrize("older", [{}, {"additional_special_tokens": ["<pad>"]}])
def test_tokens_of_t5_that_no_list_has(
    tmp_path: Path, settings: dict[str, Any], older: dict[str, Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    pieces = ["<pad>", "</s>", "<unk>", MARKED, "a", *(f"<extra_id_{i}>" for i in (0, 1, 100))]
    model = models.Unigram([(piece, -float(place)) for place, piece in enumerate(pieces)], unk_id=2)
    write(
        tmp_path,
        json.loads(Tokenizer(model).to_str()),
        tokenizer_config=settings,
        special_tokens_map=older,
        config={"model_type": "t5"},
    )
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["a <extra_id_0> a<extra_id_1>a", "<extra_id_100> a"]
    assert (
        load_tokenizer(tmp_path).encode_batch(texts) == expected(texts, add_special_tokens=False)["input_ids"]
    )


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("own", [{}, {"cls_token": "[MASK]"}])
def test_special_tokens_map_against_transformers(tmp_path: Path, own: dict[str, str], newer: bool) -> None:
    """It counts for more than tokenizer_config.json, and is not read if that lists the added tokens."""
    transformers = pytest.importorskip("transformers")
    settings: dict[str, Any] = {"tokenizer_class": "BertTokenizer", **own}
    if newer:
        settings["added_tokens_decoder"] = {"4": {"content": "[MASK]", "special": True}}
    write(tmp_path, wordpiece_file(), tokenizer_config=settings, special_tokens_map={"cls_token": "[PAD]"})
    loaded = load_tokenizer(tmp_path)
    around = [*loaded.prefix_ids, *loaded.encode_batch(["a"])[0], *loaded.suffix_ids]
    assert around == transformers.AutoTokenizer.from_pretrained(tmp_path)("a")["input_ids"]


def test_token_types_of_a_single_text(tmp_path: Path) -> None:
    processing = processors.TemplateProcessing(
        single="[CLS] $A:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    written = {**wordpiece_file(), "post_processor": json.loads(processing.__getstate__())}
    typed = {"model_input_names": ["input_ids", "token_type_ids"]}
    for config in (
        {},
        {**typed, "tokenizer_class": "BertTokenizer"},
    ):  # without types; with those of the class
        write(tmp_path, written, tokenizer_config=config)
        assert load_tokenizer(tmp_path).suffix_ids == (3,)
    write(tmp_path, written, tokenizer_config=typed)
    assert load_tokenizer(tmp_path, static=True).suffix_ids == (3,)
    with pytest.raises(
        ValueError, match=r"tokenizer.json: the post-processor gives a single text the token type 1"
    ):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_a_token_at_the_end_that_only_the_settings_name(tmp_path: Path, model_type: str) -> None:
    """As in e5-mistral's folder, of transformers 4: version 5 drops the setting and changes the vectors."""
    settings = {"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"}
    for ends in (None, False, True):
        write(
            tmp_path,
            llama_file(),
            config={"model_type": model_type},
            tokenizer_config={**settings, "add_eos_token": ends},
        )
        loaded = load_tokenizer(tmp_path)
        assert (loaded.prefix_ids, loaded.suffix_ids) == ((1,), (2,) if ends else ())
        assert changes_beside(tmp_path).get("ids") == (((1,), (2,)) if ends else None)
        assert load_tokenizer(tmp_path, static=True).suffix_ids == ()
    processing = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    ended = {**llama_file(), "post_processor": json.loads(processing.__getstate__())}
    write(tmp_path, ended, tokenizer_config={**settings, "add_eos_token": True})
    assert load_tokenizer(tmp_path).suffix_ids == (2,)
    write(tmp_path, llama_file(), tokenizer_config={**settings, "add_eos_token": True, "eos_token": "<none>"})
    with pytest.raises(ValueError, match='"add_eos_token" is true, and the vocabulary has no "eos_token"'):
        load_tokenizer(tmp_path)


def test_a_token_at_the_end_that_code_of_the_model_adds(tmp_path: Path) -> None:
    """As in gte-Qwen2's folder, whose class of its own reads what transformers' Qwen2Tokenizer does not."""
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "</s>", "add_eos_token": True}
    code = "tokenization_qwen.Qwen2Tokenizer"
    for own, ends in (({}, False), ({"AutoTokenizer": [code, None]}, True), ([code, None], True)):
        write(
            tmp_path,
            llama_file(),
            config={"model_type": "qwen2"},
            tokenizer_config={**settings, "auto_map": own},
        )
        assert load_tokenizer(tmp_path).suffix_ids == ((2,) if ends else ())
