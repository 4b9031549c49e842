"""`load_tokenizer`: the files of model folders, good and bad."""

from __future__ import annotations

import builtins
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from subword_families import family
from tokenizer_pair import OPTIONS, SENTENCES, SPECIAL, Pair, special, subword_vocabulary
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from embedkit.model_folder.pair_template import read_pair_template
from embedkit.model_folder.tokenizer import load_tokenizer

TEXTS = [*SENTENCES, "a [MASK] b[SEP]", "HELLO the <mask>", "x <mask>y", "<unk>"]
MPNET = ["<s>", "<pad>", "</s>", "<unk>", *subword_vocabulary(), "<mask>"]
TOKEN = {"__type": "AddedToken", "content": "a", "lstrip": True, "special": True, "normalized": False}
TOKEN |= {"rstrip": False, "single_word": False}
Edit = Callable[[dict[str, Any]], Any]


def wordpiece() -> Tokenizer:
    tokenizer = Pair(subword_vocabulary(), special()).reference
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def write(folder: Path, content: dict[str, Any], **configs: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    for name, config in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def content() -> dict[str, Any]:
    return json.loads(wordpiece().to_str())


def test_a_panic_of_tokenizers_is_an_error(tmp_path: Path) -> None:
    """Of added tokens that take the same blanks; its panics are no `Exception`."""
    flags = {"single_word": False, "normalized": False, "special": True}
    content = {
        "version": "1.0",
        "added_tokens": [
            {"id": 2, "content": "<m>", "lstrip": False, "rstrip": True, **flags},
            {"id": 3, "content": "  ", "lstrip": True, "rstrip": False, **flags},
        ],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordLevel",
            "vocab": {"[UNK]": 0, "a": 1, "<m>": 2, "  ": 3},
            "unk_token": "[UNK]",
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    loaded = load_tokenizer(tmp_path, static=True)
    assert loaded.core is None and loaded.encode_batch(["a"]) == [[1]]
    with pytest.raises(ValueError, match=r"the tokenizers package fails on one of texts\[0:2\]"):
        loaded.encode_batch(["a", "<m>   a"])
    with pytest.raises(TypeError):
        loaded.encode_batch([5])  # type: ignore[list-item]

    class Interrupted:
        def encode_batch_fast(self, *_: object, **__: object) -> None:
            raise TimeoutError("of the handler of SIGALRM")

    with pytest.raises(TimeoutError):
        dataclasses.replace(loaded, _other=Interrupted()).encode_batch(["a"])


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def test_tokenizer_json(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    tokenizer.enable_truncation(7)
    tokenizer.enable_padding(pad_id=0, length=128)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    assert loaded.core is not None
    assert loaded.encode_batch(TEXTS) == ids_of(tokenizer, TEXTS)
    assert (loaded.prefix_ids, loaded.suffix_ids, loaded.pad_id) == ((2,), (3,), 0)
    assert (loaded.truncation_max_length, loaded.model_max_length) == (7, None)
    assert loaded.truncation_side == "right"
    assert loaded.vocab_size == tokenizer.get_vocab_size()


@pytest.mark.parametrize("options", OPTIONS)
def test_normalizer_options(tmp_path: Path, options: str) -> None:
    tokenizer = Pair(subword_vocabulary(), special(), **OPTIONS[options]).reference
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert loaded.core is not None
    assert loaded.encode_batch(TEXTS) == ids_of(tokenizer, TEXTS)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("written", [False, True])
def test_lowercase_first(tmp_path: Path, options: str, written: bool) -> None:
    """sentence-transformers puts a Lowercase normalizer in front, and may have saved it."""
    tokenizer = Pair(subword_vocabulary(), special(), **OPTIONS[options]).reference
    first = normalizers.Sequence([normalizers.Lowercase(), tokenizer.normalizer])
    if written:
        tokenizer.normalizer = first
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer.normalizer = first
    loaded = load_tokenizer(tmp_path, lowercase_first=not written)
    assert loaded.core is not None
    assert loaded.encode_batch(TEXTS) == ids_of(tokenizer, TEXTS)


def test_tokenizer_config_overrides_the_normalizer(tmp_path: Path) -> None:
    config = {
        "do_lower_case": False,
        "strip_accents": None,
        "tokenize_chinese_chars": False,
        "model_max_length": 512,
    }
    cased = Pair(subword_vocabulary(), special(), lowercase=False, handle_chinese_chars=False).reference
    folder = write(tmp_path, content(), tokenizer_config={**config, "tokenizer_class": "BertTokenizerFast"})
    loaded = load_tokenizer(folder)
    assert loaded.encode_batch(TEXTS) == ids_of(cased, TEXTS)
    assert loaded.model_max_length == 512
    old = {name: value for name, value in config.items() if name != "model_max_length"} | {"max_len": 128}
    write(tmp_path, content(), tokenizer_config=old)
    assert load_tokenizer(tmp_path).model_max_length == 128
    # Classes that take tokenizer.json as it is:
    write(tmp_path, content(), tokenizer_config={**config, "tokenizer_class": "PreTrainedTokenizerFast"})
    assert load_tokenizer(folder).encode_batch(TEXTS) == ids_of(wordpiece(), TEXTS)


@pytest.mark.parametrize(
    ("processor", "around"),
    [
        (None, ((), ())),
        (processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)), ((2,), (3,))),
        (processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)), ((2,), (3,))),
        (processors.TemplateProcessing(single="$A [SEP] [SEP]", special_tokens=[("[SEP]", 3)]), ((), (3, 3))),
        (processors.TemplateProcessing(single="[CLS] $0", special_tokens=[("[CLS]", 2)]), ((2,), ())),
        (
            processors.Sequence(
                [processors.ByteLevel(), processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))],
            ),
            ((2,), (3,)),
        ),
    ],
)  # fmt: skip
def test_post_processors(
    tmp_path: Path, processor: Any, around: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    tokenizer = wordpiece()
    if processor is None:
        write(tmp_path, {**content(), "post_processor": None})
    else:
        tokenizer.post_processor = processor
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        whole = tokenizer.encode("the library").ids
        assert whole == [*around[0], *ids_of(tokenizer, ["the library"])[0], *around[1]]
    loaded = load_tokenizer(tmp_path)
    assert (loaded.prefix_ids, loaded.suffix_ids) == around


def test_added_tokens_outside_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    tokenizer.add_tokens(["library", AddedToken("<ent>", normalized=False, rstrip=True), "Noël"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    texts = [*TEXTS, "<ent>  the library", "NOËL noel"]
    assert loaded.encode_batch(texts) == ids_of(tokenizer, texts)
    assert (
        loaded.vocab_size == tokenizer.get_vocab_size(with_added_tokens=True) == len(subword_vocabulary()) + 2
    )


LISTED = {
    "content": "the",
    "lstrip": False,
    "normalized": False,
    "rstrip": False,
    "single_word": False,
    "special": True,
}


@pytest.mark.parametrize("kind", ["BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(
    "configs",
    [
        {"tokenizer_config": {"additional_special_tokens": ["the", "<x>"]}},
        {
            "tokenizer_config": {
                "extra_special_tokens": {"x_token": "the"},
                "additional_special_tokens": ["a"],
            }
        },
        {"tokenizer_config": {"added_tokens_decoder": {str(subword_vocabulary().index("the")): LISTED}}},
        {"special_tokens_map": {"additional_special_tokens": ["the"]}},
        {"added_tokens": {"the": subword_vocabulary().index("the"), "<x>": len(subword_vocabulary())}},
        {
            "tokenizer_config": {"added_tokens_decoder": {"4": {**LISTED, "content": "[MASK]"}}},
            "special_tokens_map": {"additional_special_tokens": ["the"]},
            "added_tokens": {"the": subword_vocabulary().index("the")},
        },
        {"tokenizer_config": {"mask_token": "[MASK]"}, "without": {}},
        {"tokenizer_config": {"query_token": "the", "add_a_token": True}},
        {"tokenizer_config": {"query_token": TOKEN}, "special_tokens_map": {"document_token": "the"}},
        {"special_tokens_map": {"extra_special_tokens": ["the"], "additional_special_tokens": ["a"]}},
        {"tokenizer_config": {"q_token": "the"}, "special_tokens_map": {"q_token": "a"}},
        {"tokenizer_config": {"q_token": "a", "extra_special_tokens": {"q_token": "the"}}},
        {
            "tokenizer_config": {"extra_special_tokens": {"q_token": "a"}},
            "special_tokens_map": {"extra_special_tokens": {"q_token": "the"}},
        },
        {
            "tokenizer_config": {"additional_special_tokens": None},
            "special_tokens_map": {"additional_special_tokens": ["the"]},
        },
    ],
)
def test_added_tokens_beside_tokenizer_json_against_transformers(
    tmp_path: Path, kind: str, configs: dict[str, dict[str, Any]]
) -> None:
    transformers = pytest.importorskip("transformers")
    config = {**configs.get("tokenizer_config", {}), "tokenizer_class": kind}
    changes = {"added_tokens": []} if "without" in configs else {}
    others = {name: value for name, value in configs.items() if name not in ("tokenizer_config", "without")}
    write(
        tmp_path, {**content(), **changes}, tokenizer_config=config, config={"model_type": "bert"}, **others
    )
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["thea", "aa", "x [MASK]", "<x>the"]
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode_batch(texts) == [
        expected(text, add_special_tokens=False)["input_ids"] for text in texts
    ]
    plain = load_tokenizer(tmp_path, static=True)
    assert plain.encode_batch(texts) == ids_of(Tokenizer.from_file(str(tmp_path / "tokenizer.json")), texts)


@pytest.mark.parametrize(
    "config", [{}, {"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}]
)
@pytest.mark.parametrize(
    ("kind", "model_type"),
    [
        ("BertTokenizer", "bert"),
        ("ConvBertTokenizer", "bert"),
        ("BertTokenizer", "modernbert"),
        *((None, name) for name in ("bert", "distilbert", "electra", "modernbert", "nomic_bert", "mpnet")),
    ],
)
@pytest.mark.parametrize("lowercase", [True, False])
def test_class_of_the_tokenizer_against_transformers(
    tmp_path: Path, kind: str | None, model_type: str, config: dict[str, Any], lowercase: bool
) -> None:
    """Without a name it is that of the model type; without a flag, the class's own value counts."""
    transformers = pytest.importorskip("transformers")
    written = json.loads(Pair(subword_vocabulary(), special(), lowercase=lowercase).reference.to_str())
    settings = {**config, **({"tokenizer_class": kind} if kind else {})}
    write(tmp_path, written, tokenizer_config=settings, config={"model_type": model_type})
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = [expected(text, add_special_tokens=False)["input_ids"] for text in SENTENCES]
    assert load_tokenizer(tmp_path).encode_batch(SENTENCES) == ids


@pytest.mark.parametrize("kind", ["RobertaTokenizer", "PreTrainedTokenizerFast", None])
@pytest.mark.parametrize("config", [{}, {"add_prefix_space": True}, {"add_prefix_space": False}])
@pytest.mark.parametrize("written", [True, False])
def test_prefix_space_against_transformers(
    tmp_path: Path, kind: str | None, config: dict[str, Any], written: bool
) -> None:
    transformers = pytest.importorskip("transformers")
    tokens = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])}
    vocabulary = tokens | {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 5)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=written)
    settings = {**config, **({"tokenizer_class": kind} if kind else {})}
    write(
        tmp_path, json.loads(tokenizer.to_str()), tokenizer_config=settings, config={"model_type": "roberta"}
    )
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode_batch(["ab", " ab"]) == [
        expected(text, add_special_tokens=False)["input_ids"] for text in ["ab", " ab"]
    ]


def test_split_special_tokens_is_refused(tmp_path: Path) -> None:
    write(tmp_path, content(), tokenizer_config={"split_special_tokens": True})
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: split_special_tokens is true"):
        load_tokenizer(tmp_path)


def test_side_and_padding_of_the_config(tmp_path: Path) -> None:
    config = {"truncation_side": "left", "pad_token": "[MASK]", "model_max_length": 1e30}
    loaded = load_tokenizer(write(tmp_path, content(), tokenizer_config=config))
    assert (loaded.truncation_side, loaded.pad_id, loaded.model_max_length) == ("left", 4, None)


def test_other_tokenizers_run_through_the_package(tmp_path: Path) -> None:
    words = {"<pad>": 0, "<unk>": 1, "the": 2, "library": 3, "a": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(pad_id=0, length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert loaded.core is None
    assert loaded.encode_batch(["the THE library a", ""]) == [[2, 1, 3, 4], []]
    assert (loaded.pad_id, loaded.vocab_size, loaded.prefix_ids) == (0, 5, ())
    assert load_tokenizer(tmp_path, lowercase_first=True).encode_batch(["the THE"]) == [[2, 2]]


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    real = builtins.__import__

    def fail(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "tokenizers":
            raise ImportError("no tokenizers here")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(ImportError, match="pip install tokenizers"):
        load_tokenizer(tmp_path)


def test_wordpiece_imports_nothing_heavy(tmp_path: Path) -> None:
    write(tmp_path, content())
    code = (
        "import sys; from embedkit.model_folder.tokenizer import load_tokenizer; "
        f"load_tokenizer({str(tmp_path)!r}); "
        "print([m for m in ('tokenizers', 'torch', 'transformers', 'faiss') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"tokenize_chinese_chars": False, "tokenizer_class": "BertTokenizer"},
        {"unk_token": "[MASK]", "pad_token": "[UNK]", "cls_token": TOKEN},
        {"sep_token": "<end>", "tokenizer_class": "BertTokenizerFast", "truncation_side": "left"},
        {"additional_special_tokens": ["<ent>", "the"]},
    ],
)
def test_vocabulary_file_against_transformers(tmp_path: Path, config: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join(subword_vocabulary()) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    reference = transformers.BertTokenizer.from_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    texts = [*TEXTS, "the end<end>the <ent> a", "[UNK][CLS] a"]
    assert loaded.encode_batch(texts) == reference(texts, add_special_tokens=False)["input_ids"]
    ids = reference("the", add_special_tokens=True)["input_ids"]
    assert ids == [
        *loaded.prefix_ids,
        *reference("the", add_special_tokens=False)["input_ids"],
        *loaded.suffix_ids,
    ]
    assert loaded.pad_id == reference.pad_token_id
    assert loaded.truncation_side == reference.truncation_side
    assert loaded.vocab_size == len(reference)


@pytest.mark.parametrize("named", [True, False])
def test_mpnet_vocabulary_file_against_transformers(tmp_path: Path, named: bool) -> None:
    """The class is named, or that of the model type."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join(MPNET) + "\n", encoding="utf-8")
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    kind = {"tokenizer_class": "MPNetTokenizer"} if named else {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**kind, "model_max_length": 512}))
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"mask_token": mask, "pad_token": "<pad>"}))
    reference = transformers.MPNetTokenizer.from_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode_batch(TEXTS) == reference(TEXTS, add_special_tokens=False)["input_ids"]
    assert (loaded.prefix_ids, loaded.suffix_ids, loaded.pad_id) == ((0,), (2,), 1)
    assert read_pair_template(tmp_path, loaded).between == (2, 2)


def test_vocabulary_file_with_repeated_and_empty_lines(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(
        "\n".join([*SPECIAL, "a", "", "b", "a", ""]), encoding="utf-8", newline="\r\n"
    )
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode_batch(["a b c"]) == [[8, 7, 1]]
    assert loaded.vocab_size == 9


@pytest.mark.parametrize("config", [{}, {"extra_special_tokens": ["<n>", "b", "<m>"]}, {"cls_token": "<c>"}])
def test_repeated_lines_against_transformers(tmp_path: Path, config: dict[str, Any]) -> None:
    """transformers saves such a vocabulary as a tokenizer.json with ids that no token has."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "a", "", "b", "a", "", "##b"]), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", **config})
    )
    texts = ["a b ab", "a<n>b <m>c", "[CLS] a <c>"]
    for _ in range(2):
        reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
        loaded = load_tokenizer(tmp_path)
        ids = [[*loaded.prefix_ids, *row, *loaded.suffix_ids] for row in loaded.encode_batch(texts)]
        assert ids == reference(texts)["input_ids"]
        assert loaded.vocab_size == max(reference.get_vocab().values()) + 1
        reference.save_pretrained(tmp_path)
        (tmp_path / "vocab.txt").unlink(missing_ok=True)


def without(name: str) -> Edit:
    return lambda c: c.pop(name)


DAMAGE: dict[str, tuple[Edit, str]] = {
    "no model": (without("model"), '"model" is missing'),
    "no vocabulary": (lambda c: c["model"].pop("vocab"), "no vocabulary"),
    "empty vocabulary": (lambda c: c["model"].update(vocab={}), "no vocabulary"),
    "vocabulary is a list": (lambda c: c["model"].update(vocab=["a"]), "no vocabulary"),
    "id is text": (lambda c: c["model"]["vocab"].update(a="1"), "id of the token 'a' is '1'"),
    "id is a boolean": (lambda c: c["model"]["vocab"].update(a=True), "id of the token 'a' is True"),
    "negative id": (lambda c: c["model"]["vocab"].update(zzz=-1), "has the id -1"),
    "huge id": (lambda c: c["model"]["vocab"].update(zzz=10**30), "has the id 1000"),
    "id twice": (lambda c: c["model"]["vocab"].update(zzz=2), "id 2 twice"),
    "surrogate": (lambda c: c["model"]["vocab"].update({"\ud800": 3_208}), "lone surrogate"),
    "no unknown token": (lambda c: c["model"].update(unk_token="[nope]"), "unknown token"),
    "limit is text": (lambda c: c["model"].update(max_input_chars_per_word="9"), "max_input_chars_per_word"),
    "negative limit": (lambda c: c["model"].update(max_input_chars_per_word=-1), "max_input_chars_per_word"),
    "flag is text": (lambda c: c["normalizer"].update(lowercase="yes"), "lowercase"),
    "added tokens": (lambda c: c.update(added_tokens=[3]), "3 is not an added token"),
    "added token flag": (lambda c: c["added_tokens"][0].update(lstrip=1), "lstrip"),
    "template": (lambda c: c["post_processor"].pop("special_tokens"), "post-processor"),
    "template without text": (lambda c: c["post_processor"].update(single=[]), "post-processor"),
    "template id": (lambda c: c["post_processor"]["special_tokens"]["[CLS]"].update(ids=[10**6]), "1000000"),
    "unknown processor": (lambda c: c.update(post_processor={"type": "Later"}), "Later"),
    "processor is a list": (lambda c: c.update(post_processor=[]), "post_processor"),
    "truncation": (lambda c: c.update(truncation={"max_length": "many"}), "many"),
    "model is a list": (lambda c: c.update(model=[]), "model"),
    "unknown model": (lambda c: c["model"].update(type="Later"), "tokenizer.json"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_tokenizer_json(tmp_path: Path, damage: str) -> None:
    value = content()
    edit, message = DAMAGE[damage]
    edit(value)
    with pytest.raises(ValueError, match=r"tokenizer\.json") as error:
        load_tokenizer(write(tmp_path, value))
    assert message in str(error.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff\xfe{}", b"[" * 100_000, b'{"model": {"vocab": {"a": 0', b"\x00" * 64],
)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_files_that_are_not_objects(tmp_path: Path, data: bytes, name: str) -> None:
    write(tmp_path, content())
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=name):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"model_max_length": "512"},
        {"model_max_length": 0},
        {"model_max_length": float("nan")},
        {"truncation_side": "middle"},
        {"pad_token": 3},
        {"tokenizer_class": ["BertTokenizer"]},
        {"tokenizer_class": "BertTokenizer", "do_lower_case": "no"},
    ],
)
def test_damaged_config(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"tokenizer_config\.json"):
        load_tokenizer(write(tmp_path, content(), tokenizer_config=config))


def test_truncated_file(tmp_path: Path) -> None:
    text = wordpiece().to_str()
    for part in range(1, 20):
        (tmp_path / "tokenizer.json").write_text(text[: len(text) * part // 20], encoding="utf-8")
        with pytest.raises(ValueError, match=r"tokenizer.json.*not valid JSON"):
            load_tokenizer(tmp_path)


def test_damaged_vocabulary_file(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    for data, message in [(b"", "empty"), (b"a\nb\n", "unknown token"), (b"[UNK]\n\xff\n", "not UTF-8")]:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=message) as error:
            load_tokenizer(tmp_path)
        assert "vocab.txt" in str(error.value)


def test_vocabulary_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\n")
    for named, other in (("tokenizer_config.json", "config.json"), ("config.json", "tokenizer_config.json")):
        (tmp_path / named).write_text('{"tokenizer_class": "BertJapaneseTokenizer", "model_type": "bert"}')
        (tmp_path / other).write_text("{}")
        with pytest.raises(ValueError, match="BertJapaneseTokenizer"):
            load_tokenizer(tmp_path)


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither tokenizer.json nor vocab.txt"):
        load_tokenizer(tmp_path)


def test_the_tokenizers_package_gets_few_texts_at_once(tmp_path: Path) -> None:
    """Python sees a Ctrl-C only between its calls."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    sizes: list[int] = []

    class Recorder:
        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            sizes.append(len(texts))
            return tokenizer.encode_batch_fast(texts, **options)

    texts = ["a", "b a", "", "c"] * 75
    recorded = dataclasses.replace(loaded, _other=Recorder())
    assert recorded.encode_batch(texts) == ids_of(tokenizer, texts)
    assert sizes == [128, 128, 44]


def test_byte_order_mark_of_a_vocabulary_is_not_part_of_its_first_token(tmp_path: Path) -> None:
    lines = "\n".join(subword_vocabulary())
    vocabularies = []
    for encoding in ("utf-8", "utf-8-sig"):
        folder = tmp_path / encoding
        folder.mkdir()
        (folder / "vocab.txt").write_text(lines, encoding=encoding)
        loaded = load_tokenizer(folder)
        vocabularies.append((loaded.pad_id, loaded.vocab_size, loaded.encode_batch(TEXTS)))
    assert vocabularies[0] == vocabularies[1]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(("encoding", "read"), [("utf-16", False), ("utf-32", False), ("utf-8-sig", True)])
def test_json_files_are_utf8(tmp_path: Path, name: str, encoding: str, read: bool) -> None:
    write(tmp_path, content(), tokenizer_config={}, special_tokens_map={})
    path = tmp_path / name
    path.write_text(path.read_text(encoding="utf-8"), encoding=encoding)
    if read:
        assert load_tokenizer(tmp_path).encode_batch(TEXTS) == ids_of(wordpiece(), TEXTS)
        return
    with pytest.raises(ValueError, match=f"{name}: not valid JSON"):
        load_tokenizer(tmp_path)


def words_content() -> dict[str, Any]:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "image": 1, "soft": 2, "a": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return json.loads(tokenizer.to_str())


WITHOUT_VECTOR = {
    "wordpiece": lambda: json.loads(wordpiece().to_str()),
    "bpe": lambda: dict(family("gemma")),
    "unigram": lambda: dict(family("xlm-roberta")),
    "words": words_content,
}


@pytest.mark.parametrize("kind", WITHOUT_VECTOR)
def test_an_added_token_without_a_vector_is_text(tmp_path: Path, kind: str) -> None:
    """As in EmbeddingGemma, whose tokenizer is that of models which see images."""
    content = WITHOUT_VECTOR[kind]()
    before = Tokenizer.from_str(json.dumps(content))
    size = max(before.get_vocab().values()) + 1
    image = {"content": "<image_soft_token>", "id": size, "special": True, "normalized": False}
    other = {**image, "content": "<pad>" if kind == "words" else "<another>", "id": size + 1}
    flags = {"lstrip": False, "rstrip": False, "single_word": False}
    content["added_tokens"] = [*content["added_tokens"], image | flags, other | flags]
    padding = {"pad_id": size + 1, "pad_token": other["content"], "pad_type_id": 0}
    content["padding"] = {
        **padding,
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    text = f"a soft <image_soft_token> image {other['content']}"

    known = load_tokenizer(tmp_path)
    assert known.vocab_size == size + 2 and {size, size + 1} <= set(known.encode_batch([text])[0])
    assert known.pad_id == size + 1

    loaded = load_tokenizer(tmp_path, vectors=size)
    assert loaded.vocab_size == size and loaded.pad_id is None
    assert loaded.encode_batch([text]) == [before.encode(text, add_special_tokens=False).ids]
    assert (loaded.core is None) == (kind == "words")

    for vocab in (None, 7, "x", [[]], [[[], 0.0]], {"a": "7"}, {"a": None}):
        damaged = json.dumps({**content, "model": {**content["model"], "vocab": vocab}})
        (tmp_path / "damaged").mkdir(exist_ok=True)
        (tmp_path / "damaged" / "tokenizer.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"damaged.tokenizer\.json"):
            load_tokenizer(tmp_path / "damaged", vectors=size)

    one_more = load_tokenizer(tmp_path, vectors=size + 1)
    assert size in one_more.encode_batch([text])[0] and size + 1 not in one_more.encode_batch([text])[0]
